"""Private gradients for any training loop: charged first, then sampled, clipped and noised, and only then shown."""

from __future__ import annotations

import math
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, cast

import torch
from torch import Tensor, distributed, nn

from fedprivacy._support.native import keep_freed_memory
from fedprivacy.accounting import pld
from fedprivacy.gradients import GradientEngine, Loss, check_model, check_on_blank
from fedprivacy.gradients.layout import Layout
from fedprivacy.gradients.methods import warn_of
from fedprivacy.gradients.surroundings import undisturbed
from fedprivacy.guard import Guard
from fedprivacy.guard.errors import BudgetExhaustedError
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.runs.settings.device import check_device, choose_device
from fedprivacy.runs.usable import check_usable, usable_records
from fedprivacy.single.account import KeptAccount, PassingAccount, Release, StepAccount
from fedprivacy.single.arguments import check_numbers, check_path, check_trainable
from fedprivacy.tasks.augmentation import LARGEST_MULTIPLICITY, Augmentation
from fedprivacy.tasks.sheet import CellTally, Fault
from fedprivacy.tasks.task import Shard, check_null, holding_nan
from fedprivacy.training.adaptive import ADAPTIVE, CLIPPINGS
from fedprivacy.training.batches import Views
from fedprivacy.training.dpsgd import NoisyMean
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import CLIPPING_NORMS, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import RECORD, Unit, check_rows_in_a_step

if TYPE_CHECKING:
    from torch.utils.data import Dataset


Records = Shard | tuple[Tensor, Tensor]
"""Inputs, shape [records, ...], and targets, shape [records, ...]."""


_REASONS = 3
"""Maximum number of reasons that the owner is told of."""

_PAIRS = "let the Dataset return (input, target) of the prototype's shapes and types"


def shard_of(data: Records | Dataset[Any], prototype: tuple[Tensor, Tensor] | None) -> tuple[Shard, list[str]]:
    """Return the records as tensors, and for their owner why some of a `Dataset` cannot be read.

    Raises:
        ValueError: a tuple is no pair, or a `Dataset` has no length or index, or comes without a prototype.
    """
    if isinstance(data, Shard):
        return data, []
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"data is a tuple of {len(data)}; give inputs and targets.")
        return Shard(*data), []
    if not (isinstance(data, Sized) and hasattr(data, "__getitem__")):
        raise ValueError(
            f"data is of type {type(data).__name__}, without a length or an index; give inputs and targets, or a "
            "Dataset."
        )
    if prototype is None:
        raise ValueError(
            "prototype is open, and the types of a Dataset's records would be found out from all of them: give one "
            "made-up pair of their shapes and types, for example prototype=(torch.zeros(3), torch.tensor(0))."
        )
    inputs, targets = (like.new_zeros(len(data), *like.shape) for like in prototype)
    reasons = [_copy_record(cast(Any, data), place, inputs, targets) for place in range(len(data))]
    tally = CellTally()
    for reason in filter(None, reasons):
        tally.add("", Fault(reason, _PAIRS))
    null = torch.tensor([bool(reason) for reason in reasons]).bool()  # of nobody, too
    shard = Shard(inputs, targets, null=null | holding_nan(inputs) if inputs.is_floating_point() else null)
    return shard, [str(cells) for cells in tally.unreadable()[:_REASONS]]


def _copy_record(data: Any, place: int, inputs: Tensor, targets: Tensor) -> str:
    """Copy one record of a data set to its place; return why it is unreadable or not of the prototype's kind, or ""."""
    try:
        item = data[place]
        if isinstance(item, Mapping) or len(item) != 2:
            return f"an item that is a {type(item).__name__} of {len(item)}"
        values = [torch.as_tensor(value).detach() for value in item]
        for name, value, rows in zip(("input", "target"), values, (inputs, targets), strict=True):
            plain = type(value) is Tensor and value.layout is torch.strided and value.shape == rows.shape[1:]
            if not (plain and torch.can_cast(value.dtype, rows.dtype)):
                given, wanted = (f"shape {list(v.shape)} and {v.dtype}" for v in (value, rows[0]))
                return f"an {name} of {given}, where the prototype's is of {wanted}".replace("an target", "a target")
        for value, rows in zip(values, (inputs, targets), strict=True):
            rows[place].copy_(value)
    except Exception as error:  # any error that a record causes in the data set counts against that record alone
        return f"an item that raises {type(error).__name__}"
    return ""


_ALLOW = "Mend them, or say allow_null=True to train on the others."


class PrivateGradients:
    """Gives the trained parameters of a model private gradients, for any optimiser and any loop.

    Formal guarantee: everything that `backward` ever shows is (epsilon, delta)-differentially private for a record,
    whatever the loop does with it and whatever parameters it asks at, if the arguments were chosen without looking at
    the records. Every call is charged before a record is read, and no call shows more than one release of `event`. The
    neighbouring relation is that of `fedprivacy.train`.

    >>> import fedprivacy as fp, torch
    >>> sides = torch.arange(400) % 2
    >>> data, model = (torch.randn(400, 2) + 3.0 * sides[:, None], sides), torch.nn.Linear(2, 2)
    >>> gradients = fp.PrivateGradients(
    ...     model, torch.nn.CrossEntropyLoss(reduction="none"), data,
    ...     epsilon=3.0, delta=1e-4, steps=30, sampling_rate=0.25, batch_size=100,
    ... )
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> while gradients.left:
    ...     gradients.backward()
    ...     optimizer.step()
    >>> gradients.taken, gradients.epsilon <= 3.0
    (30, True)

    The gradient is taken of a copy of the model, which gets the present values of the trained parameters in every step.
    Layers, their modes (train or eval), frozen parameters and buffers are those of when this object was made.

    While this object lives, `loss.backward()` on the model raises an error: it would add a gradient without protection.

    Attributes:
        event: event of one step: sampling rate, noise multiplier in clipping norms, and the neighbouring relation.
        delta: delta of the budget.
        steps: number of steps that the training may take.
        taken: number of steps taken so far.
        clipping_norm: C of the next step; it moves only with adaptive clipping.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Records | Dataset[Any],
        *,
        prototype: tuple[Tensor, Tensor] | None = None,
        epsilon: float,
        delta: float,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        sampling_rate: float,
        batch_size: float | None = None,
        size_public: bool = False,
        clipping_norm: float = 1.0,
        clipping: str = "flat",
        augmentation: Augmentation | None = None,
        augmentation_multiplicity: int = 8,
        rows_per_step: int | None = None,
        person_gradient: str = "mean",
        device: str | None = None,
        seed: int | None = None,
        account: str | Path | None = None,
        resume: Mapping[str, Any] | None = None,
        allow_null: bool = False,
    ) -> None:
        """Check all arguments on made-up records; nothing is charged, and no record is used but to find null rows.

        Args:
            model: its layers must not mix records (no BatchNorm). `backward` sets the `grad` of its trained parameters.
            loss, data, prototype, epsilon, delta: see `fedprivacy.train`.
            steps: number of steps that the budget is for, at least 1; None: as many as the noise multiplier allows.
            noise_multiplier: sigma, in clipping norms; None: the least with which the budget allows all steps.
            sampling_rate, batch_size, size_public, clipping_norm, clipping: see `fedprivacy.train`.
            augmentation, augmentation_multiplicity, rows_per_step, person_gradient, seed: see `fedprivacy.train`.
            device: device that computes the gradients: "cpu", "cuda", "cuda:N" or "auto"; None: the model's.
            account: file of the shard's account, in an existing folder. It outlives the process and counts all
                trainings, under one budget; it is created if it does not exist. None: the account ends with this
                object, and trainings on the same records add up to more than their epsilon.
            resume: what `state_dict` returned, to go on with a training of the same arguments; None: a new one begins.
            allow_null: see `fedprivacy.train`.

        Raises:
            UnsupportedModelError: the model mixes records, or cannot be trained with DP-SGD for another reason.
            LossShapeError: the loss is not one value for each record.
            GuardError: the account cannot be used, or has promised another relation or unit of privacy.
            ValueError: as `fedprivacy.train`; or the noise multiplier does not allow the steps, or `resume` is not the
                state of a training of this account.
        """
        relation = NeighbouringRelation.ZERO_OUT if size_public else NeighbouringRelation.ADD_OR_REMOVE_ONE
        numbers = {
            "epsilon": epsilon,
            "delta": delta,
            "steps": steps,
            "noise_multiplier": noise_multiplier,
            "sampling_rate": sampling_rate,
            "batch_size": batch_size,
            "clipping_norm": clipping_norm,
            "augmentation_multiplicity": augmentation_multiplicity,
            "seed": seed,
        }
        check_numbers(
            numbers,
            whole=("steps", "augmentation_multiplicity", "seed"),
            optional=("steps", "noise_multiplier", "batch_size", "seed"),
        )
        budget, state = PrivacyBudget(epsilon, delta), None if resume is None else _State.of(resume)
        _check_settings(batch_size, steps, noise_multiplier, clipping, augmentation_multiplicity)
        if augmentation is not None and not isinstance(augmentation, Augmentation):
            raise ValueError(f"augmentation is {augmentation!r}; give a fedprivacy.Augmentation.")
        check_trainable(model, loss)
        check_model(model)
        self._shown, self._own = model, deepcopy(model)
        if device is not None:
            self._own.to(device_of(device))
        shard, reasons = shard_of(data, prototype)
        shard = shard.present().to(next(self._own.parameters()).device)
        self._shard = shard.holding(shard.inputs.detach(), shard.targets.detach())  # no resize_ adds rows to these
        check_null(self._shard, relation)
        check_rows_in_a_step(self._shard.rows, rows_per_step, person_gradient)
        kind = self._shard.blank
        keep_freed_memory()
        check_on_blank(self._own, loss, *kind)
        mechanism = SampledGaussianSum(PoissonSampledGaussian(sampling_rate, 1.0, relation), clipping_norm)
        adaptive = ADAPTIVE[clipping]() if clipping in ADAPTIVE else None
        if adaptive is not None:  # with the count, a record's part of the noisy sum is larger than C
            _ = replace(mechanism, clipping_norm=adaptive.sensitivity(clipping_norm))
        divisor = _divisor(batch_size, sampling_rate * len(self._shard) if size_public else None)
        views = None if augmentation is None else Views(augmentation, augmentation_multiplicity, kind[0])

        multiplicity, summed = views.multiplicity if views else 1, person_gradient == "sum"
        layout = Layout(self._shard.rows, multiplicity, rows_per_step, summed)
        self._engine = GradientEngine(self._own, loss, CLIPPINGS[clipping](), layout=layout)
        self._engine.prepare(*kind)
        warn_of(self._engine.method, self._engine.obstacle)
        unit = Unit("person", self._shard.rows) if self._shard.by_person else RECORD
        with undisturbed:
            usable = usable_records(self._engine, self._shard, views)
        check_usable(usable, "data", "" if allow_null else _ALLOW, unit=unit.name, reasons=reasons)
        self._account, self._run = _open_account(account, budget, relation, unit, state)
        noise, planned = _noise_and_steps(self._account, mechanism.event, steps, noise_multiplier, state)
        self.steps, self.delta, self.event = (
            int(planned),
            delta,
            replace(mechanism.event, noise_multiplier=float(noise)),
        )
        self.taken, self.clipping_norm = (state.taken, state.clipping_norm) if state else (0, float(clipping_norm))
        self._keystream = Keystream.secret() if seed is None else Keystream.from_seed(seed, "single")
        self._gradient = NoisyMean(replace(mechanism, event=self.event), divisor, adaptive, views)
        self._busy, self._process = threading.Lock(), os.getpid()
        for p in _trained_in(model).values():
            weakref.finalize(self, p.register_post_accumulate_grad_hook(_refuse).remove)

    @property
    def left(self) -> int:
        """Number of steps that may still be taken; an account that counts other trainings may allow fewer."""
        return self.steps - self.taken

    @property
    def epsilon(self) -> float:
        """Privacy loss of everything that the account has charged so far, at `delta`, in nats."""
        history = self._account.history()
        return pld.epsilon(history, self.delta) if history else 0.0

    def backward(self) -> None:
        """Charge one step, and set `grad` of every trained parameter to its part of the noisy mean gradient.

        An earlier `grad` is replaced. Its scale is that of a mean loss: the noisy sum of clipped gradients, divided by
        the expected batch size.

        Raises:
            BudgetExhaustedError: all steps are taken, or the account allows no more. Nothing was computed.
            GuardError: the account's file cannot be used.
            RuntimeError: the model's trained parameters have other names or shapes than before; or another step is
                being taken, or another process made this object. Nothing was charged.
        """
        with self._alone(), undisturbed:
            shown = self._shown_parameters()
            self._engine.prepare(*self._shard.blank)
            if not self.left:
                raise BudgetExhaustedError(
                    f"steps is {self.steps}, and all of them are taken: epsilon {self.epsilon:.4g} at delta "
                    f"{self.delta} is spent. More steps must be planned before a training begins."
                )
            release = self._account.release(self.taken + 1, self.event, self._compute)
            self.taken, self.clipping_norm = self.taken + 1, release.following
            pieces = release.gradient.split([p.numel() for p in shown])
            for p, piece in zip(shown, pieces, strict=True):
                p.grad = piece.view(p.shape).to(p.device, p.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return what `resume` takes: public numbers and a name, which JSON and `torch.save` can hold.

        Raises:
            ValueError: the account ends with this process, so that nobody could go on without forgetting it.
        """
        if not self._run:
            raise ValueError("account is open, so no other process can go on with this one; give account='a/file'.")
        noise = self.event.noise_multiplier
        return asdict(_State(self._run, noise, self.steps, self.taken, self.clipping_norm))

    def _compute(self, position: Position) -> Release:
        with torch.no_grad():
            for own, p in zip(_trained_in(self._own).values(), self._shown_parameters(), strict=True):
                own.copy_(p)
        step = self._engine, self._shard, self.clipping_norm, self._keystream, position
        return Release(*self._gradient.release(*step))

    def _shown_parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the model that the loop sees, which must be those of the copy."""
        shown = _trained_in(self._shown)
        now, before = ({name: p.shape for name, p in each.items()} for each in (shown, _trained_in(self._own)))
        if list(now.items()) != list(before.items()):
            changed = ", ".join(sorted({name for name, _ in now.items() ^ before.items()})) or "in another order"
            raise RuntimeError(
                f"The model's trained parameters are not those of the beginning ({changed}). Give it the former ones, "
                "or make another PrivateGradients with the same account."
            )
        return list(shown.values())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if os.getpid() != self._process:  # both would draw the same noise
            raise RuntimeError("PrivateGradients was made in another process; make one in this process.")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("PrivateGradients is taking a step already; take one after the other.")
        try:
            yield
        finally:
            self._busy.release()

    def __reduce_ex__(self, protocol: object) -> Never:
        raise TypeError(
            "PrivateGradients cannot be copied or pickled: two would draw the same noise under one charge. Keep its "
            "state_dict(), and make another with resume=."
        )


@dataclass(frozen=True, slots=True)
class _State:
    """The state of a training between two steps."""

    run: str  # name of the training in its account
    noise_multiplier: float
    steps: int
    taken: int
    clipping_norm: float

    @classmethod
    def of(cls, resume: Mapping[str, Any]) -> _State:
        """Read what `state_dict` returned."""
        with suppress(TypeError):
            state, (low, high) = cls(**resume), CLIPPING_NORMS
            if state.run and 0 <= state.taken <= state.steps and low <= state.clipping_norm <= high:
                return state
        raise ValueError("resume is no state of a training; give what state_dict() returned.")


def _open_account(
    account: str | Path | None, budget: PrivacyBudget, relation: NeighbouringRelation, unit: Unit, state: _State | None
) -> tuple[StepAccount, str]:
    """Open an account; return with it the name of this training there."""
    if account is None:
        if state is not None:
            raise ValueError("resume is given, but account is open; give the file of the account that it began with.")
        several = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        if several > 1:
            raise ValueError(
                f"account is open in one of {several} processes, each of which would count its own steps alone; give "
                "account='a/file', which counts those of all, or train in one process."
            )
        return PassingAccount(budget), ""
    check_path("account", account)
    guard = Guard(Path(account).absolute(), budget, unit=unit)
    guard.check(relation)
    run = f"training-{secrets.token_hex(8)}" if state is None else state.run
    if state and state.taken and run not in guard.by_run():
        raise ValueError(f"resume is of '{run}', which {account} never charged; give the account of its beginning.")
    return KeptAccount(guard, run), run


def _noise_and_steps(
    account: StepAccount, event: PoissonSampledGaussian, steps: int | None, noise: float | None, state: _State | None
) -> tuple[float, int]:
    """Find the noise multiplier and the number of steps; `event` has the sampling rate and the relation."""
    if state is not None:
        for name, given, before in (("steps", steps, state.steps), ("noise_multiplier", noise, state.noise_multiplier)):
            if given not in (None, before):
                raise ValueError(f"{name} is {given}, and the training that goes on has {before}; leave it so.")
        return state.noise_multiplier, state.steps
    if noise is None:
        if steps is None:
            raise ValueError("steps and noise_multiplier are open; give one of them.")
        return account.noise_multiplier(event.sampling_rate, steps, event.relation), steps
    allowed = account.quota(replace(event, noise_multiplier=noise))
    if allowed < (steps or 1):
        raise ValueError(
            f"noise_multiplier is {noise}, with which the budget allows {allowed} steps; choose fewer steps, more "
            "noise or a larger epsilon."
        )
    return noise, steps or allowed


def _trained_in(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _refuse(p: Tensor) -> None:
    p.grad = None
    raise RuntimeError(
        "loss.backward() reached a model whose gradients are private, and would add one without protection. Call "
        "PrivateGradients.backward() instead; for a loss on public data add torch.autograd.grad's gradient yourself."
    )


def device_of(name: str) -> torch.device:
    """Return the device of this name. Raises ConfigError: no device has it, or this machine lacks it."""
    check_device(str(name))
    return choose_device(str(name))


def _divisor(batch_size: float | None, public: float | None) -> float:
    """Return the public number by which noisy sums are divided."""
    if batch_size is None and public is None:
        raise ValueError(
            "batch_size is open, and how many records there are is private; give sampling_rate times a public guess of "
            "it, or say size_public=True."
        )
    return max(public or 0.0, 1.0) if batch_size is None else batch_size


def _check_settings(
    batch_size: float | None, steps: int | None, noise: float | None, clipping: str, multiplicity: int
) -> None:
    for name, value in (("batch_size", batch_size), ("noise_multiplier", noise)):
        if value is not None and not 0.0 < value < math.inf:
            raise ValueError(f"{name} is {value}; choose a positive number.")
    if steps is not None and steps < 1:
        raise ValueError(f"steps is {steps}; choose a whole number, at least 1.")
    if not 1 <= multiplicity <= LARGEST_MULTIPLICITY:
        raise ValueError(
            f"augmentation_multiplicity is {multiplicity}; choose a number from 1 to {LARGEST_MULTIPLICITY}."
        )
    if clipping not in CLIPPINGS:
        raise ValueError(f"clipping is '{clipping}'; choose one of {', '.join(CLIPPINGS)}.")
