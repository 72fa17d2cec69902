"""The engine: clipped sums of per-record gradients, by the fastest method that has proved itself on this model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedprivacy._support.native import out_of_memory
from fedprivacy.gradients.clipping import Clipping, FlatClipping
from fedprivacy.gradients.invariance import EXTREMES, hostile_rows, make_hostile
from fedprivacy.gradients.layout import (
    ONE_ROW,
    WHOLE,
    Batch,
    Layout,
    RecordedPart,
    cut,
    filled,
    plain,
    round_up,
    same_bits,
)
from fedprivacy.gradients.methods import Admitted, Obstacle, admit_method, first_line, still_apart
from fedprivacy.gradients.models import Loss, restoring_parameters, trainable_parameters
from fedprivacy.gradients.pieces import STRETCH, Placed, Sums, add_by_halves, keep_counted, squared_norms
from fedprivacy.gradients.products import as_recorded, on_gpu, zero_on
from fedprivacy.gradients.selfcheck import DisagreementError, Loop, made_up_records
from fedprivacy.gradients.stack_check import admitted_stack
from fedprivacy.gradients.stacked import Stack
from fedprivacy.gradients.surroundings import Modes, Surroundings, by_speed, computing_with, one_at_a_time, undisturbed
from fedprivacy.gradients.watch import IndicesInRange, checked_lookups

log = logging.getLogger(__name__)

_LONGEST_SQUARED = 2.0**200
"""Largest squared norm of a finite gradient: beyond it the scale would lose digits in float32."""

_MOST_KINDS = 8
"""Maximum number of shapes and sizes for which an engine is prepared at a time: a recording holds a GPU's memory."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """The contribution of a batch.

    Attributes:
        total: sum of the clipped gradients, shape [d], float64.
        norms: of each part, squared norms of its rows' gradients before clipping, finite, and the mask of the rows that
            are records with a finite gradient; None: all. Private.
    """

    total: Tensor
    norms: list[tuple[Tensor, Tensor | None]]

    @property
    def squared_norms(self) -> list[Tensor]:
        """Squared norms of the records' gradients where they are finite, in parts of any length. Private."""
        return [squared if usable is None else squared[usable] for squared, usable in self.norms]

    @property
    def records(self) -> int:
        """Number of records with a finite gradient. Private."""
        return sum(len(part) for part in self.squared_norms)

    @classmethod
    def join(cls, parts: Sequence[Clipped]) -> Clipped:
        """Join the parts of one batch, at least one: sums are added in float64, as blocks are."""
        total = reduce(torch.add, (part.total for part in parts))
        return cls(total, [norms for part in parts for norms in part.norms])

    def same_as(self, other: Clipped) -> bool:
        """Return whether every number is the same."""
        ours, theirs = ((clipped.total, *clipped.squared_norms) for clipped in (self, other))
        return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))

    def within(self, clipping_norm: float) -> int:
        """Count the records whose gradients are no longer than the clipping norm. Private."""
        return sum(int((part <= clipping_norm**2).sum()) for part in self.squared_norms)


@dataclass(frozen=True, slots=True)
class _Measured:
    """A part of a batch, before it is clipped."""

    pieces: list[Placed]
    squared_norms: Tensor  # squared norms of the rows within each group, [groups, rows], float64
    whole: Tensor  # squared norms of the rows' whole gradients, [rows]
    usable: Tensor | None  # mask of the rows that are records with a finite gradient, bool; None: all
    finite: bool  # whether the other rows' gradients are finite, too


class _Chosen(NamedTuple):
    """The choices for records of one shape and type."""

    admitted: Admitted
    company: Batch
    looks_up: bool
    recorded: RecordedPart | None


class GradientEngine:
    """Clipped sums of one model's per-record gradients.

    Any number of engines may compute in any number of threads, of one model or of several that share layers: each sum
    is what it would be without the others, because they wait for one another.

    >>> model, loss = nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none")
    >>> engine = GradientEngine(model, loss)
    >>> total = engine.clipped_sum(torch.ones(5, 2), torch.tensor([0, 1, 1, 0, 1]), clipping_norm=0.5)
    >>> len(total), bool(total.norm() <= 5 * 0.5)
    (6, True)

    Attributes:
        model: the model; read in every call, and afterwards as before. Meanwhile no other thread may change it, nor
            call it during `prepare`.
        layout: rows of a record.
    """

    @one_at_a_time()
    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clipping: Clipping | None = None,
        *,
        layout: Layout = ONE_ROW,
        max_memory: int | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        """Make an engine; the shape of the first batch decides how it computes, so nothing is prepared yet.

        Args:
            model: a model that `check_model` accepts. Gradients are those of the modes that its layers have now, train
                or eval, whatever `model.train()` does later.
            loss: loss that returns one value for each record.
            clipping: rule that bounds one record's contribution; None: `FlatClipping`.
            layout: rows of a record: the views of one (De et al. 2022), inputs [batch, views, ...]; the rows of a
                person, inputs and targets [batch, m, ...]; or both, inputs [batch, m, views, ...]. One gradient of
                them all is clipped (`Layout.lay_out`), and a person with a row that has no finite gradient counts for
                nothing.
            max_memory: maximum number of bytes of activations and written gradients. Batches are computed in parts and
                added up; the parts have the fastest size that fits.
            autocast: `torch.bfloat16` computes activations and their gradients in this type, where that is safe. Norms
                are those of the rounded gradients that are summed, so a record is bounded as in float32. None: float32.
        """
        self.model = model
        self._loss, self._clipping, self._max_memory = loss, clipping or FlatClipping(), max_memory
        self.layout, self._autocast = layout, autocast
        trained = trainable_parameters(model)
        self._shapes = [p.shape for p in trained.values()]
        self._dtype = reduce(torch.promote_types, (p.dtype for p in trained.values()), torch.float32)
        self._groups = self._clipping.groups(list(trained))
        # Memory of the model besides its trained parameters.
        self._read = [p for p in model.parameters() if not p.requires_grad] + list(model.buffers())
        self._public, self._modes = [p.clone() for p in trained.values()], Modes(model)
        self._kind: tuple[object, ...] = ()
        self._prepared: dict[tuple[object, ...], _Chosen] = {}
        self._company: tuple[Tensor, ...] = ()  # made-up records of the shape and type for which the engine is prepared
        self._recorded: RecordedPart | None = None  # a part on a GPU
        self._looks_up = False  # True on a GPU if something is looked up by records' numbers, which may be out of range
        self._stacks: dict[tuple[object, ...], Stack | None] = {}
        self._surroundings = Surroundings(model, loss)
        self._admitted = Admitted(Loop(model, loss), (1,), 0, torch.get_num_threads())

    @property
    def prepared(self) -> bool:
        """True once the method is chosen for records of some shape: this process then holds most of what it takes."""
        return bool(self._prepared)

    @property
    def method(self) -> str:
        """Name of the method by which gradients are computed; the self-check has admitted it."""
        name = self._admitted.method.name
        return name if self._recorded is None else f"{name} as a CUDA graph"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of records that are computed at a time, the largest first."""
        return self._admitted.sizes

    @property
    def turn(self) -> int:
        """Number of records that take as long as the fixed time of a part."""
        return self._admitted.turn

    @property
    def refused(self) -> tuple[str, ...]:
        """The faster methods that were not used, and why: a line each."""
        return self._admitted.refused

    @property
    def threads(self) -> int:
        """Number of torch's threads that compute gradients."""
        return self._admitted.threads

    @property
    def obstacle(self) -> Obstacle | None:
        """The reason why gradients are not computed by book-keeping; None: they are."""
        return self._admitted.obstacle

    @one_at_a_time()
    def prepare(self, inputs: Tensor, targets: Tensor, usual: float | None = None) -> None:
        """Choose the method for records of this shape and type, on made-up records alone; done once, and again after a
        change of what torch computes (`Surroundings`).

        The number of threads is chosen, too: at most as many as torch has, and fewer only where that changes no bit.

        Meanwhile the model has the parameters with which the engine was made: the current ones may come from a server,
        which could choose them so that the check passes although real records would be mixed.

        No value is read of inputs and targets, [any, ...] each, which are of the shape of one row. A GPU computes parts
        that hold the `usual` number of records, a public number that few batches exceed.

        Raises:
            LossShapeError: the loss is not one value for each record.
            UnsupportedModelError: a layer's input is changed in place, or the model draws random numbers.
            Exception: any error that the model raises on a record of zeros; or memory does not hold the smallest part.
        """
        self._forget_if_changed()
        most = torch.get_num_threads()  # kernels share their rows among them
        kind: tuple[object, ...] = inputs.shape[1:], inputs.dtype, inputs.device, targets.shape[1:], targets.dtype, most
        rows = None
        if on_gpu(inputs):
            rows = None if usual is None else round_up(usual, WHOLE)
            kind = *kind, rows, *(tensor.data_ptr() for tensor in self._read)  # a recording reads the same memory
        if kind != self._kind:
            self._kind = ()  # in case of an error
            if kind not in self._prepared:
                if len(self._prepared) == _MOST_KINDS:
                    del self._prepared[next(iter(self._prepared))]
                self._prepared[kind] = self._choose(inputs, targets, rows, most)
            self._admitted, self._company, self._looks_up, self._recorded = self._prepared[kind]
            self._kind = kind

    def _choose(self, inputs: Tensor, targets: Tensor, rows: int | None, most: int) -> _Chosen:
        """Choose the method, with parts for so many rows and at most so many threads; see `prepare`."""
        with undisturbed, self._as_made() as parameters, checked_lookups(inputs) as lookups:
            probe = made_up_records(inputs, targets, partial(Loop(self.model, self._loss).pieces, kept_bytes=0))
            self._company = self.layout.make_records(probe)
            self._admitted = admit_method(
                self.model,
                self._loss,
                probe,
                autocast=self._autocast,
                layout=self.layout,
                max_memory=self._max_memory,
                rows=rows,
            )
            if lookups is not None:
                lookups.used = False
            self._admitted.method.pieces(*self._company, self._admitted.kept_bytes)
            self._looks_up, self._recorded = lookups is not None and lookups.used, None
            with torch.no_grad(), computing_with(self._admitted.threads):
                self._admitted = replace(self._admitted, sizes=self._sizes_that_fit(probe))
            if self._admitted.threads < most:
                make_hostile(parameters, torch.Generator().manual_seed(0), wide=False)
                self._admitted = replace(self._admitted, threads=self._fastest_threads(probe))
        repeats = inputs.is_cuda or (as_recorded and on_gpu(inputs))
        if repeats and self._admitted.obstacle is None and not self._looks_up:
            with undisturbed, self._as_made() as parameters, torch.no_grad():
                self._recorded = self._record(probe, parameters)
        return _Chosen(self._admitted, self._company, self._looks_up, self._recorded)

    def _record(self, probe: Batch, parameters: list[nn.Parameter]) -> RecordedPart | None:
        """Record parts of this size; None if that cannot be, or if a recording has other bits than what it repeats."""
        size = self._admitted.sizes[0]
        try:
            recorded = RecordedPart(self._part, self.model, *self._hostile_batch(probe, size))
            for records in (size, size // 2 + 1):
                make_hostile(parameters, torch.Generator().manual_seed(records), wide=False)
                inputs, targets = self._hostile_batch(probe, records)
                for place, extreme in enumerate(EXTREMES if inputs.is_floating_point() else ()):
                    inputs[(7 * place + 3) % records] = extreme
                rows = filled(inputs, size), filled(targets, size)
                norm = torch.full((), 0.5, dtype=torch.float64, device=inputs.device)
                expected = self._part(*rows, _first(records, rows[0]), norm)
                if not all(map(same_bits, recorded(inputs, targets, 0.5), expected)):
                    raise DisagreementError("a CUDA graph computes other bits than what it repeats")
        except Exception as error:
            log.warning("Gradients are computed without a CUDA graph, which takes longer: %s", first_line(error))
            return None
        return recorded

    def _part(self, inputs: Tensor, targets: Tensor, counted: Tensor, clipping_norm: Tensor) -> tuple[Tensor, ...]:
        """Compute a part's sum, squared norms and mask of usable rows, without reading a value."""
        part = self._finite(inputs, targets, counted)
        if part is None or part.usable is None:
            raise DisagreementError("no parameter has any influence")
        sums = self._new_sums(inputs.device)
        self._add(sums, part, clipping_norm)
        return sums.total(), part.whole, part.usable

    def _forget_if_changed(self) -> None:
        """Forget what was proven if torch, a layer, its class or the loss has other functions than then."""
        if self._surroundings.has_changed():
            self._kind, self._prepared, self._stacks = (), {}, {}
            self._surroundings = Surroundings(self.model, self._loss)

    def _sizes_that_fit(self, probe: tuple[Tensor, Tensor]) -> tuple[int, ...]:
        """Find the sizes of parts that fit into memory, from the forward pass to the sum; raise if there are none.

        They are tried with made-up records: the number of records in a part is private, so no choice may depend on it.
        """
        fitting: list[int] = []
        for size in self._admitted.sizes:
            try:
                self._try_part(probe, size)
                fitting.append(size)
            except Exception as error:
                if not out_of_memory(error) or (size == self._admitted.sizes[-1] and not fitting):
                    raise
        # A GPU's products add many stretches at once, and may add them in another order in a part of another size.
        return tuple(fitting[:1] if on_gpu(probe[0]) else fitting)

    def _try_part(self, probe: tuple[Tensor, Tensor], size: int) -> None:
        """Compute and sum `size` made-up records, beside everything else that a part with failing records holds."""
        made_up = self.layout.make_records(probe)
        rows = torch.arange(size, device=probe[0].device) % len(probe[0])
        inputs, targets = (plain(tensor[rows]) for tensor in made_up)
        besides = [(inputs.clone(), targets.clone()) for _ in range(2)]
        measured = self._finite(inputs, targets, _first(size, inputs))
        if measured is not None:
            self._add(self._new_sums(inputs.device), replace(measured, finite=False), 1.0)
        del besides

    def _fastest_threads(self, probe: tuple[Tensor, Tensor]) -> int:
        """Find the fastest of the numbers of threads with which every bit is the same as with one thread."""
        batches = [self._hostile_batch(probe, size) for size in self._admitted.sizes]
        with computing_with(1):
            expected = [self._clipped_sum(*batch, 1.0) for batch in batches]
        for threads in by_speed(lambda: self._clipped_sum(*batches[0], 1.0)):
            with computing_with(threads):
                computed = (self._clipped_sum(*batch, 1.0) for batch in batches)
                if threads == 1 or (
                    all(map(Clipped.same_as, computed, expected))
                    and still_apart(self._admitted, self.model, self.layout.make_records(probe))
                ):
                    return threads
        return 1

    def _hostile_batch(self, probe: tuple[Tensor, Tensor], records: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(records)
        inputs, targets = (hostile_rows(t, records, generator, wide=False) for t in self.layout.make_records(probe))
        return inputs, targets

    @one_at_a_time()
    def stack(self, inputs: Tensor, targets: Tensor) -> Stack | None:
        """Return a stack that computes the same gradients for many clients at once; None: the model cannot be stacked.

        No value of inputs and targets, [any, ...], is read. Like `prepare`, the first call takes a while.
        """
        self._forget_if_changed()
        kind = (inputs.shape[1:], inputs.dtype, inputs.device, targets.shape[1:], targets.dtype)
        if kind not in self._stacks:
            stackable = self.layout == ONE_ROW and self._autocast is None
            with undisturbed, self._as_made():
                found = admitted_stack(self.model, self._loss, self._clipping, inputs, targets) if stackable else None
            self._stacks[kind] = found
        return self._stacks[kind]

    @contextmanager
    def _as_made(self) -> Iterator[list[nn.Parameter]]:
        """Give parameters and layers their values and modes of when the engine was made.

        The current parameters may be a server's.
        """
        with restoring_parameters(self.model) as parameters, self._modes.keeping():
            for p, values in zip(parameters, self._public, strict=True):
                p.data.copy_(values)
            yield parameters

    def clipped_sum(self, inputs: Tensor, targets: Tensor, clipping_norm: float, mask: Tensor | None = None) -> Tensor:
        """Sum over the batch of each record's gradient, scaled down to Euclidean norm at most `clipping_norm`.

        Formal guarantee: let the batch lose the record at one place, and its last record take that place. The result
        changes by a vector of norm at most C (1 + `SUM_ALLOWANCE`): see `fedprivacy.mechanisms.gaussian_sum`.

        A record's scaled gradient is a function of the record, the parameters and public numbers alone, bit for bit,
        as far as `fedprivacy.gradients.invariance` can tell; the batch adds only the rounding of the record's own
        block of the sum. It holds for models that `check_model` accepts. A record without a finite gradient, or whose
        gradient cannot be computed, contributes zero, because the failure of a batch must not depend on one record.

        Args:
            inputs: the batch, shape [batch, ...]; may be empty.
            targets: shape [batch, ...].
            clipping_norm: C.
            mask: True for rows that are records and not padding, shape [batch], bool; None: all. The guarantee compares
                batches after masked rows are left out.

        Returns:
            Shape [d], float64, all trainable parameters' gradients flattened and joined in the order of
            `trainable_parameters`.

        Raises:
            LossShapeError: the loss is not one value for each record.
            MemoryError, RuntimeError: memory holds neither a part nor smaller ones of `STRETCH` rows, though it did in
                `prepare`.
        """
        return self.clip(inputs, targets, clipping_norm, mask).total

    @one_at_a_time()
    def clip(
        self,
        inputs: Tensor,
        targets: Tensor,
        clipping_norm: float,
        mask: Tensor | None = None,
        usual: float | None = None,
    ) -> Clipped:
        """Return the clipped sum and the norms before clipping; see `clipped_sum`, and `prepare` for `usual`."""
        if mask is not None:
            inputs, targets = inputs[mask], targets[mask]
        if len(inputs) > 0:
            self.prepare(*self.layout.kinds(inputs, targets), usual)
        with computing_with(self._admitted.threads), self._modes.keeping():
            return self._clipped_sum(inputs, targets, clipping_norm)

    def _clipped_sum(self, inputs: Tensor, targets: Tensor, clipping_norm: float) -> Clipped:
        """Compute the clipped sum of records for which the method is prepared."""
        norms = list[tuple[Tensor, Tensor | None]]()
        with undisturbed, torch.no_grad():  # methods that need autograd's graph enable it
            if self._recorded is not None:
                with suppress(Exception):  # what fails here is computed below, where one record's fault is found
                    return self._repeated(self._recorded, inputs, targets, clipping_norm)
            sums = self._new_sums(inputs.device)
            for start, stop, size in cut(len(inputs), self._admitted.sizes, self._admitted.turn):
                norms += self._add_part(sums, inputs[start:stop], targets[start:stop], size, clipping_norm)
            return Clipped(sums.total(), norms)

    def _repeated(self, part: RecordedPart, inputs: Tensor, targets: Tensor, clipping_norm: float) -> Clipped:
        total = torch.zeros(sum(shape.numel() for shape in self._shapes), dtype=torch.float64, device=inputs.device)
        norms = list[tuple[Tensor, Tensor | None]]()
        for start, stop, _ in cut(len(inputs), self._admitted.sizes):
            own, squared, usable = part(inputs[start:stop], targets[start:stop], clipping_norm)
            total += own
            norms.append((squared.clone(), usable.clone()))
        return Clipped(total, norms)

    def _new_sums(self, device: torch.device) -> Sums:
        return Sums(self._shapes, self._dtype, device, self._admitted.sizes[0])

    def _add(self, sums: Sums, part: _Measured, clipping_norm: float | Tensor) -> None:
        """Clip a part and add it to the sums."""
        scales = self._clipping.scales(part.squared_norms, clipping_norm)
        if part.usable is not None:
            scales = scales.where(part.usable, zero_on(scales.device))
            if not part.finite:
                keep_counted(part.pieces, part.usable)
        sums.add(part.pieces, scales, self._groups)

    def _add_part(
        self, sums: Sums, inputs: Tensor, targets: Tensor, size: int, clipping_norm: float
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Clip a part of `size` rows and add it to the sums; return the `norms` of what was added.

        If memory does not hold it, it is computed in smaller parts: norms and float32 sums of `STRETCH` rows keep their
        bits, and the float64 sum may change in its last bit. A chunk's tensors are freed before the next is computed,
        also after a failure. Otherwise whether a chunk fits would depend on earlier records.
        """
        smaller = [part for part in self._admitted.sizes if STRETCH <= part < size and size % part == 0]
        rows, fits = (filled(inputs, size), filled(targets, size)), True
        try:
            part = self._measure(*rows, len(inputs))
        except Exception as error:
            if not out_of_memory(error):
                raise
            fits = False
        if not fits and not smaller:
            part = self._measured_beside_made_up(*rows, len(inputs))
        if fits or not smaller:
            if part is None:
                sums.skip(size)
                return []
            self._add(sums, part, clipping_norm)
            return [(part.whole, part.usable)]
        del rows
        some = zip(inputs.split(smaller[0]), targets.split(smaller[0]), strict=True)
        counted = [self._add_part(sums, *rows, smaller[0], clipping_norm) for rows in some]
        for _ in range(len(counted), size // smaller[0]):
            sums.skip(smaller[0])
        return [norms for part_of_it in counted for norms in part_of_it]

    def _measure(self, inputs: Tensor, targets: Tensor, records: int) -> _Measured | None:
        """Compute pieces and norms of a part whose first rows are records; None if none of them counts.

        Rows that cannot be computed, or have no finite gradient, keep their places and are filled with another record.
        So neither the other gradients nor the order of their addition changes.
        """
        try:
            return self._finite(inputs, targets, None if records == len(inputs) else _first(records, inputs))
        except Exception as error:  # errors that concern all records were raised by `prepare`
            if self._concerns_all(error):
                raise
        usable = self._computable(inputs, targets, _first(records, inputs))
        return self._finite(*_filled_up(inputs, targets, usable), usable) if bool(usable.any()) else None

    def _measured_beside_made_up(self, inputs: Tensor, targets: Tensor, records: int) -> _Measured | None:
        """Measure a part that memory does not hold, without the records that need more memory than made-up ones.

        Each record is tried beside made-up ones, so that the result depends on no other record. If memory does not hold
        made-up records alone, no record is at fault, and this is an error.
        """
        size = len(inputs)
        self._pieces(*(filled(public, size) for public in self._company))
        usable = torch.zeros(size, dtype=torch.bool, device=inputs.device)
        for place in range(records):
            own = inputs[place : place + 1], targets[place : place + 1]
            pairs = zip(own, self._company, strict=True)
            usable[place] = self._computes(*(filled(torch.cat(pair), size) for pair in pairs))
        return self._finite(*_filled_up(inputs, targets, usable), usable) if bool(usable.any()) else None

    def _concerns_all(self, error: Exception) -> bool:
        """Return whether an error is no single record's fault: memory does not hold a part of records computed
        together.
        """
        return out_of_memory(error) and not self._admitted.alone

    def _finite(self, inputs: Tensor, targets: Tensor, usable: Tensor | None) -> _Measured | None:
        """Compute pieces and norms of rows that can all be computed; None if no parameter had any influence."""
        pieces = self._pieces(inputs, targets)
        if not pieces:
            return None
        groups = [self._groups[part.place] for part, _ in pieces]
        squared = squared_norms([piece for _, piece in pieces], groups, max(self._groups) + 1)
        whole = squared[0] if len(squared) == 1 else add_by_halves([list(squared.unbind())])[0]
        if not on_gpu(whole) and float(whole.max()) <= _LONGEST_SQUARED:  # the maximum is NaN if any is
            return _Measured(pieces, squared, whole, usable, finite=True)
        finite = whole <= _LONGEST_SQUARED
        return _Measured(pieces, squared, whole, finite if usable is None else finite & usable, finite=False)

    def _computable(self, inputs: Tensor, targets: Tensor, candidates: Tensor) -> Tensor:
        """Return which of the candidates, bool [rows], do not make the computation fail, by repeated halving.

        If records are computed alone anyway, each is tried alone: its memory is then its own.
        """
        places = candidates.nonzero().squeeze(1)
        if self._admitted.alone:
            rows = {place: (inputs[place : place + 1], targets[place : place + 1]) for place in places.tolist()}
            failing = [place for place, own in rows.items() if not self._computes(*map(plain, own))]
            return candidates.index_fill(0, places.new_tensor(failing), False)
        try:
            self._pieces(*_filled_up(inputs, targets, candidates))
            return candidates
        except Exception as error:
            if self._concerns_all(error):
                raise
        if len(places) == 1:
            return torch.zeros_like(candidates)
        first = candidates.clone().index_fill_(0, places[len(places) // 2 :], False)
        second = candidates & ~first
        return self._computable(inputs, targets, first) | self._computable(inputs, targets, second)

    def _computes(self, inputs: Tensor, targets: Tensor) -> bool:
        try:
            self._pieces(inputs, targets)
        except Exception:
            return False
        return True

    def _pieces(self, inputs: Tensor, targets: Tensor) -> list[Placed]:
        """Compute the pieces of the records' gradients."""
        with IndicesInRange() if self._looks_up else nullcontext():
            return self._admitted.method.pieces(inputs, targets, self._admitted.kept_bytes)


def _first(records: int, rows: Tensor) -> Tensor:
    """Return the mask of the first `records` rows, bool."""
    return torch.arange(len(rows), device=rows.device) < records


def _filled_up(inputs: Tensor, targets: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the unusable rows by copies of the first usable one."""
    places = torch.where(usable, torch.arange(len(usable), device=usable.device), usable.int().argmax())
    return plain(inputs[places]), plain(targets[places])
