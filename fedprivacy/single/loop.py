"""A training loop on one shard, over private gradients: a model, a loss, records and a budget."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from fedprivacy._support.console import bar_on, console_of
from fedprivacy._support.durable import write_durably
from fedprivacy.gradients import Loss
from fedprivacy.runs.records.folder import check_writable
from fedprivacy.single.arguments import (
    argument_text,
    check_function,
    check_numbers,
    check_path,
    check_trainable,
    check_within,
)
from fedprivacy.single.private_gradients import PrivateGradients, Records, device_of
from fedprivacy.tasks.augmentation import Augmentation
from fedprivacy.training.optimizers import LARGEST_WEIGHT_DECAY, MOMENTA, SGD, Adam, AdamW, build_optimizer
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.numbers import number_of
from fedprivacy.values.wording import budget_text, epsilon_text

if TYPE_CHECKING:
    from torch.utils.data import Dataset


GivenOptimizer: TypeAlias = "str | torch.optim.Optimizer | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]"
"""A name; an optimiser of the model's parameters; or a factory of one, given the parameters."""

Rates: TypeAlias = Callable[[int], float]
MakesScheduler: TypeAlias = Callable[[torch.optim.Optimizer], LRScheduler]
GivenSchedule: TypeAlias = Rates | MakesScheduler
"""(number of the step, from 1) -> learning rate; or a class of torch's schedulers, as it is or in a `partial`."""

_OF_TORCH: dict[type, Callable[..., torch.optim.Optimizer]] = {
    SGD: torch.optim.SGD,
    Adam: torch.optim.Adam,
    AdamW: torch.optim.AdamW,
}
"""Optimisers of torch by ours, which have the same formulas and the same names of settings."""


class Optimisation:
    """Moves a model's parameters by their gradients, at the rate of the schedule.

    Attributes:
        optimizer: torch optimiser.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: GivenSchedule | None, steps: int) -> None:
        """Check that both can take every step.

        Raises:
            ValueError: the schedule gives no learning rate for some step, or needs a measurement.
        """
        self.optimizer = optimizer
        self._rates: list[float] | None = None
        self._scheduler: LRScheduler | None = None
        if schedule is None:
            return
        made = schedule.func if isinstance(schedule, partial) else schedule
        if isinstance(made, type) and issubclass(made, LRScheduler):
            self._scheduler = scheduler = cast(MakesScheduler, schedule)(optimizer)
            _check_takes_nothing("schedule", scheduler)
        else:
            self._rates = [_rate(cast(Rates, schedule), step) for step in range(1, steps + 1)]

    def step(self, number: int) -> None:
        """Take a step, counted from 1."""
        if self._rates is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rates[number - 1]
        self.optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()

    def state_dict(self) -> dict[str, object]:
        """Return the state of both, as torch has it."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self._scheduler.state_dict() if self._scheduler else None,
        }

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        """Restore what `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["schedule"])


def optimizer_of(
    given: GivenOptimizer, model: nn.Module, learning_rate: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return the optimiser of a model's trained parameters.

    Raises:
        ValueError: there is no such optimiser, it moves other parameters, or it needs several gradients in a step.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if isinstance(given, str):
        ours: Any = build_optimizer(given, learning_rate, momentum=momentum, weight_decay=weight_decay)
        if type(ours) not in _OF_TORCH:
            raise ValueError(f"optimizer is '{given}', which torch does not have; give a torch optimiser.")
        settings = asdict(ours)
        return _OF_TORCH[type(ours)](trained, lr=settings.pop("learning_rate"), **settings)
    if momentum or weight_decay:
        raise ValueError("momentum and weight_decay are those of a named optimizer; give them to the optimiser itself.")
    if not (isinstance(given, torch.optim.Optimizer) or callable(given)):
        raise ValueError(
            f"optimizer is {argument_text(given)}; give a name, a torch.optim.Optimizer, or a factory of one."
        )
    made = given if isinstance(given, torch.optim.Optimizer) else given(trained)
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(f"optimizer makes a {type(made).__name__}; give a torch.optim.Optimizer, or a factory of one.")
    moved = [p for group in made.param_groups for p in group["params"]]
    if not set(moved) <= set(model.parameters()):
        raise ValueError("optimizer moves parameters that are not the model's; make it of model.parameters().")
    _check_takes_nothing("optimizer", made)
    return made


def _rate(schedule: Rates, step: int) -> float:
    try:
        rate = float(schedule(step))
    except Exception as error:
        raise ValueError(
            f"schedule fails for step {step} ({error}); give a function of a step's number that returns a learning "
            "rate, or functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=steps)."
        ) from error
    if not 0.0 <= rate < math.inf:
        raise ValueError(f"schedule is {rate} for step {step}; return a learning rate from 0 on.")
    return rate


def _check_takes_nothing(setting: str, moving: torch.optim.Optimizer | LRScheduler) -> None:
    needed = [p.name for p in signature(moving.step).parameters.values() if p.default is Parameter.empty]
    if needed:
        kind = type(moving).__name__
        raise ValueError(f"{setting} is {kind}, whose steps need {needed[0]}; give one that steps by gradients alone.")


FILE = "training.pt"
ACCOUNT = "account.log"
"""Name of the account in the folder of a checkpoint, if none is given."""

_VERSION = 1


def write(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint, whole or not at all; it is on the disk when this returns.

    Raises:
        OSError: it cannot be written; the former one is still there.
    """
    content = io.BytesIO()
    torch.save({"version": _VERSION, **state}, content)
    write_durably(folder / FILE, content.getvalue())


def read(folder: Path) -> dict[str, Any] | None:
    """Read a folder's checkpoint; None: there is none. Nothing in the file is run.

    Raises:
        ValueError: it is not what `write` wrote, or an optimiser's state is of kinds that are not read.
    """
    if not (folder / FILE).exists():
        return None
    try:
        state = torch.load(folder / FILE, map_location="cpu", weights_only=True)
        if state.pop("version") == _VERSION:
            return dict(state)
        problem = "it is of another version"
    except Exception as error:
        problem = str(error).partition("\n")[0]
    raise ValueError(
        f"'{folder / FILE}' cannot be read as a checkpoint ({problem}). Put an undamaged copy back, or begin in a new "
        "folder with account= the same; what was spent stays in the account. An optimiser or schedule must keep "
        "numbers and tensors alone."
    )


Row = dict[str, float]
"""Figures of an evaluation: "step", "epsilon", and what was measured, by name."""

Evaluate = Callable[[nn.Module], float | Mapping[str, float]]
"""(a copy of the model, ready to predict) -> a number, or numbers by name."""

_SHOWN_EVERY = 0.5  # seconds between two looks at the account by the progress bar


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model and its privacy cost.

    Attributes:
        model: trained model, ready to predict.
        epsilon: privacy loss at `delta`, in nats, of all that the account has charged.
        delta: delta of the budget.
        event: event of one step: sampling rate, noise multiplier in clipping norms, and the neighbouring relation.
        steps: number of executed steps.
        rows: figures of each evaluation, in order.
    """

    model: nn.Module
    epsilon: float
    delta: float
    event: PoissonSampledGaussian
    steps: int
    rows: tuple[Row, ...] = ()


def train(
    model: nn.Module,
    loss: Loss,
    data: Records | Dataset[Any],
    *,
    prototype: tuple[Tensor, Tensor] | None = None,
    epsilon: float,
    delta: float,
    steps: int,
    sampling_rate: float,
    batch_size: float | None = None,
    size_public: bool = False,
    clipping_norm: float = 1.0,
    clipping: str = "flat",
    learning_rate: float = 0.1,
    optimizer: GivenOptimizer = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: GivenSchedule | None = None,
    augmentation: Augmentation | None = None,
    augmentation_multiplicity: int = 8,
    rows_per_step: int | None = None,
    person_gradient: str = "mean",
    device: str | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    callbacks: Iterable[Callable[[int, float], object]] = (),
    progress: bool = True,
    seed: int | None = None,
    account: str | Path | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    allow_null: bool = False,
) -> Trained:
    """Train a copy of a model with DP-SGD on records that lie in one place.

    Formal guarantee: the returned value is (epsilon, delta)-differentially private for a record, even against an
    observer of every step. The number of records is private: neighbours differ in the presence of one record
    (add-or-remove-one). With `size_public` the number is known to everybody, and in neighbours one record is replaced
    by a null record (zero-out). It holds for arguments that were chosen without looking at the records. Batches are
    Poisson samples, and the noise is the least that the budget allows. The loop is a short one over `PrivateGradients`,
    which serves any other loop, too.

    >>> import fedprivacy as fp, torch
    >>> sides = torch.arange(400) % 2
    >>> data = torch.randn(400, 2) + 3.0 * sides[:, None], sides
    >>> loss = torch.nn.CrossEntropyLoss(reduction="none")
    >>> trained = fp.train(
    ...     torch.nn.Linear(2, 2), loss, data, epsilon=3.0, delta=1e-4, steps=30, sampling_rate=0.25, batch_size=100
    ... )
    >>> trained.epsilon <= 3.0, trained.steps, str(trained.event.relation)
    (True, 30, 'add-or-remove-one')

    Args:
        model: its layers must not mix records (no BatchNorm). It is not changed. A layer in `eval()` is trained so:
            dropout does nothing there, and BatchNorm keeps pretrained statistics.
        loss: (outputs, targets) -> one loss for each record, shape [batch], for example with reduction="none".
        data: a `Shard`; or inputs and targets, shape [records, ...] each; or a `torch.utils.data.Dataset` of pairs.
        prototype: a made-up pair, input and target of one record, whose shapes and types all pairs of a `Dataset` have.
            A pair of other shapes or types, or one that cannot be read, is a null row. The prototype must be given with
            a `Dataset` and chosen without looking at the records: if types were inferred from all records, one record
            could change every other.
        epsilon: maximum privacy loss, in nats.
        delta: delta of that budget, in (0, 1), well below 1 / number of records.
        steps: number of steps, at least 1.
        sampling_rate: q, probability with which each record joins a step, in (0, 1].
        batch_size: expected batch size, by which the noisy sums are divided: q times a public guess of how many records
            there are. None: q times their number, where that is public.
        size_public: whether the number of records is public.
        clipping_norm: C, bound on the Euclidean norm of one record's gradient; with adaptive clipping, of the first
            step.
        clipping: "flat", "per-layer", "automatic" or "adaptive". With "adaptive", C follows the median norm of the
            gradients, which is read from the same noisy sum: it costs no epsilon, but half a percent more noise.
        learning_rate: step size.
        optimizer: "sgd", "adam" or "adamw"; or a torch optimiser of `model.parameters()`, which is copied with the
            model; or a factory of one, given the copy's trained parameters, such as
            `functools.partial(torch.optim.RMSprop, lr=1e-3)`. Those have a learning rate of their own.
        momentum: momentum of sgd, in [0, 1).
        weight_decay: weight decay of sgd and adamw.
        schedule: function of a step's number, from 1, that returns its learning rate; or a class of torch's
            schedulers, such as `functools.partial(CosineAnnealingLR, T_max=steps)`. None: the rate stays.
        augmentation: function that makes random views of a record; its gradient is averaged over them before it is
            clipped (De et al. 2022), which costs no epsilon. None: the records as they are.
        augmentation_multiplicity: number of views, from 1 to 256; the work grows in proportion.
        rows_per_step: of a `Shard` of persons, number of each one's rows that are drawn anew for each step; None: all.
        person_gradient: what is clipped of a person: the "mean" of the rows' gradients, so that persons count alike, or
            their "sum" over the most rows that a step can have, so that rows do.
        device: "cpu", "cuda", "cuda:N" or "auto", where the copy is trained; None: where the model is.
        evaluate: function of a copy of the model, ready to predict, that returns a number or numbers by name, and to
            which no account applies: give it public records, or some that are not among `data`.
        evaluate_every: number of steps between evaluations; None: all. The models before the first step and after the
            last are always evaluated.
        callbacks: functions that are called after each step with its number and the epsilon so far.
        progress: whether a bar shows the steps, in the terminal or the notebook.
        seed: seed that makes the training repeatable but gives no protection against anybody who knows it; trainings
            with one seed share their noise unless they share an account, so that their losses do not add up. None:
            secret randomness, which is not stored.
        account: file that counts this training and others on the same records under one budget, as in
            `PrivateGradients`; None: `account.log` in the folder of the checkpoint, or, without one, none.
        checkpoint: folder in which the training is kept after each step, so that it can go on; it is made.
            Everything in it is public numbers or released gradients, and what was made of them.
        resume: whether to go on, with the same arguments, with a training that was stopped; if there is none in the
            folder, it begins. Steps that were charged are not charged again, and with a seed not a bit differs.
        allow_null: whether more than half of the records may count for nothing, because they are null rows or have no
            gradient. Their owner is told of such records before the first charge, in the log; most are refused.

    Raises:
        UnsupportedModelError: the model mixes records, or cannot be trained with DP-SGD for another reason.
        LossShapeError: the loss is not one value for each record.
        BudgetExhaustedError: the account allows no further step.
        GuardError: the account cannot be used.
        ValueError: an argument is out of range, the augmentation cannot make views of such records, no noise meets the
            budget, a `Dataset` is given without a prototype, or `size_public` is set for whole numbers without a
            statement of the null rows; most records count for nothing; or the checkpoint is of other arguments, or
            damaged. Nothing has been charged.
    """
    rates = {"learning_rate": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
    callbacks = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    _check(rates, evaluate, evaluate_every, callbacks)
    check_trainable(model, loss)
    folder = _folder(checkpoint, resume=resume)
    plan: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "steps": steps,
        "sampling_rate": sampling_rate,
        "batch_size": batch_size,
        "size_public": size_public,
        "clipping_norm": clipping_norm,
        "clipping": clipping,
        "augmentation_multiplicity": augmentation_multiplicity,
        "rows_per_step": rows_per_step,
        "person_gradient": person_gradient,
    }
    named = optimizer if isinstance(optimizer, str) else "its own"
    settings = plan | rates | {"optimizer": named, "evaluate_every": evaluate_every}
    kept = _read_checkpoint(folder, settings) if folder and resume else None
    model, optimizer = deepcopy((model, optimizer))  # together, for an optimiser holds the model's parameters
    if device is not None:
        model.to(device_of(device))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        account = folder / ACCOUNT if account is None else account
    gradients = PrivateGradients(
        model,
        loss,
        data,
        prototype=prototype,
        augmentation=augmentation,
        seed=seed,
        account=account,
        resume=kept["gradients"] if kept else None,
        allow_null=allow_null,
        **plan,
    )
    optimisation = Optimisation(optimizer_of(optimizer, model, **rates), schedule, steps)
    training = _Training(model, gradients, optimisation, evaluate, evaluate_every or steps, folder, settings)
    training.begin(kept)
    with _bar(console_of(shown=progress), gradients, epsilon) as show:
        while gradients.left:
            training.step()
            for callback in callbacks:
                callback(gradients.taken, gradients.epsilon)
            show()
    model.zero_grad()
    return Trained(model.eval(), gradients.epsilon, delta, gradients.event, gradients.taken, tuple(training.rows))


@dataclass(slots=True)
class _Training:
    """A training under way: what moves, what is measured of it, and where it is kept."""

    model: nn.Module
    gradients: PrivateGradients
    optimisation: Optimisation
    evaluate: Evaluate | None
    evaluate_every: int
    folder: Path | None
    settings: Mapping[str, Any]
    rows: list[Row] = field(default_factory=list)

    def begin(self, kept: Mapping[str, Any] | None) -> None:
        """Go on where a checkpoint was written, or measure and keep the state before the first step."""
        if kept is not None:
            self.model.load_state_dict(kept["model"])
            self.optimisation.load_state_dict(kept["optimisation"])
            self.rows += kept["rows"]
            return
        self._measure()
        self._keep()
        if self.folder is not None:
            read(self.folder)  # raises now if it could not be read then

    def step(self) -> None:
        """Take a step, measure the model if it is time, and keep the state."""
        self.gradients.backward()
        self.optimisation.step(self.gradients.taken)
        self._measure()
        self._keep()

    def _measure(self) -> None:
        taken = self.gradients.taken
        if self.evaluate is None or (self.gradients.left and taken % self.evaluate_every):
            return
        with torch.no_grad():
            found = self.evaluate(deepcopy(self.model).eval())
        row = {"step": taken, "epsilon": self.gradients.epsilon}
        for name, value in (found if isinstance(found, Mapping) else {"value": found}).items():
            if (number := number_of(value)) is None or not isinstance(name, str) or name in {"step", "epsilon"}:
                raise ValueError(
                    f"evaluate returns a {type(value).__name__} as {name!r}; return a number, or numbers by name, none "
                    "of them called step or epsilon."
                )
            row[name] = float(number)
        self.rows.append(row)

    def _keep(self) -> None:
        if self.folder is not None:
            state = {
                "gradients": self.gradients.state_dict(),
                "model": self.model.state_dict(),
                "optimisation": self.optimisation.state_dict(),
                "settings": {name: _plain(value) for name, value in self.settings.items()},
                "rows": self.rows,
            }
            write(self.folder, state)


def _check(rates: dict[str, float], evaluate: object, evaluate_every: int | None, callbacks: Sequence[object]) -> None:
    check_numbers(rates | {"evaluate_every": evaluate_every}, whole=("evaluate_every",), optional=("evaluate_every",))
    if not 0.0 < rates["learning_rate"] < math.inf:
        raise ValueError(f"learning_rate is {rates['learning_rate']}; choose a positive number.")
    check_within("momentum", rates["momentum"], *MOMENTA)
    check_within("weight_decay", rates["weight_decay"], 0.0, LARGEST_WEIGHT_DECAY)
    if evaluate_every is not None and evaluate_every < 1:
        raise ValueError(f"evaluate_every is {evaluate_every}; choose a whole number, at least 1.")
    if evaluate is not None:
        check_function("evaluate", evaluate, "a function of a model that returns a number, or numbers by name", None)
    elif evaluate_every is not None:
        raise ValueError(f"evaluate_every is {evaluate_every}, but evaluate is open; give what measures the model.")
    for callback in callbacks:
        check_function("callbacks", callback, "a list of functions of the step's number and epsilon", 1, 0.0)


def _folder(checkpoint: str | Path | None, *, resume: bool) -> Path | None:
    """Return the folder of the checkpoint, if there is to be one."""
    folder = None
    if checkpoint is not None:
        check_path("checkpoint", checkpoint)
        check_writable(folder := Path(checkpoint), "checkpoint")
    if resume and folder is None:
        raise ValueError(
            f"resume is {resume!r}, but checkpoint is open; give the folder of the training that is to go on."
        )
    if folder is not None and not resume and (folder / FILE).exists():
        raise ValueError(f"checkpoint is '{folder}', which holds a training; say resume=True, or name another folder.")
    return folder


def _read_checkpoint(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the checkpoint to go on with, which must be of the same settings; None: there is none yet."""
    kept = read(folder)
    for name, before in kept["settings"].items() if kept else ():
        if _plain(settings[name]) != before:
            raise ValueError(
                f"{name} is {settings[name]}, and the training in '{folder}' has {before}; go on with the same, or "
                "begin another one in a new folder."
            )
    return kept


def _plain(setting: str | float | None) -> str | float | None:
    """Return a setting as a checkpoint holds it, where numbers may be NumPy's."""
    return setting if setting is None or isinstance(setting, str) else float(setting)


@contextmanager
def _bar(console: Console, gradients: PrivateGradients, budget: float) -> Iterator[Callable[[], None]]:
    """Show a bar, and yield the function that moves it after a step."""
    bar, looked = bar_on(console, "step"), -math.inf
    task = bar.add_task("", total=gradients.steps, completed=gradients.taken)

    def show() -> None:
        nonlocal looked
        if gradients.left and time.monotonic() < looked + _SHOWN_EVERY:
            bar.update(task, completed=gradients.taken)
            return
        looked = time.monotonic()
        spent = f"epsilon {epsilon_text(gradients.epsilon, budget)} of {budget_text(budget)}"
        bar.update(task, completed=gradients.taken, description=f"[cyan]{spent}")

    with bar:
        yield show
