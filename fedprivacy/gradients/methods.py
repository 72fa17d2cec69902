"""Methods that compute a model's gradients, and the choice among them: admission.

Several methods compute the same gradients: a traced program, book-keeping, `vmap`, a loop. The first that applies is
tried on made-up records: it must agree with the loop, and a record's gradient must not depend on the rest of its batch.
Only then is it used on records. Admission also chooses the number of records at a time.

Book-keeping takes one forward pass, and one backward pass for activation gradients only (Bu et al. 2023). It works for
any module made of layers that have a rule. A part without one is recomputed by `vmap`, a bare parameter with a leading
axis of one is expanded. During a forward pass, the rules replace the layers' `forward`; afterwards the model is as
before: no wrapper, no hook, no renamed parameter, no `.grad`. Where it must be given up, an `Obstacle` names the line
of the model that is in the way.

Two methods wrap another one. `SingleRows` is for a processor whose products do not treat all rows alike: it costs a few
times as much, the loop a hundred times. `AveragedOverRows` is for records of several rows: views (De et al. 2022), or
the rows of a person, each with a target of its own. Both are checked on made-up records like any method.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import Parameter

from fedprivacy._support.native import matrix_library
from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.layout import TURN, WHOLE, Layout, round_up, sizes_up_to, with_small
from fedprivacy.gradients.models import InPlaceError, Loss, LossGradient, LossShapeError, UnsupportedModelError
from fedprivacy.gradients.pieces import Placed
from fedprivacy.gradients.products import on_gpu, one_row_at_a_time
from fedprivacy.gradients.program import Program
from fedprivacy.gradients.rules import Rule, opaque, rule_for
from fedprivacy.gradients.selfcheck import (
    PROBES,
    DisagreementError,
    Loop,
    Method,
    PlaceError,
    Vectorised,
    check_half,
    check_method,
)
from fedprivacy.gradients.surroundings import computing_with
from fedprivacy.gradients.tape import Tape
from fedprivacy.gradients.watch import OnePath, ValueDependentError

log = logging.getLogger(__name__)

_NOT_THE_MODEL = (Path(torch.__file__).parent, Path(__file__).parent)
_TRANSFORMERS_MASKS = Path("transformers", "masking_utils.py")

_COSTS = {"loop": "6 to 600", "vmap": "2 to 30"}
_COST_OF_SINGLE_ROWS = "1 to 6"
"""Slowdown of a step compared with one without privacy: docs/explanation/benchmarks.md#on-other-processors."""

_MASK = (
    "give a causal model attn_implementation='eager', and others an attention mask of four axes; "
    "see docs/how-to/transformers.md"
)
_BY_VALUE = "compute both branches and choose with torch.where, and keep records in their places"
_OWN_LAYER = "see docs/how-to/own-layer.md"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a model's gradients are computed by a slower method.

    Attributes:
        what: text of the error that the model raised on made-up records.
        place: file and line of the model's code, "model.py:12"; "": no single line is at fault.
        remedy: the advised change.
    """

    what: str
    place: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place or 'the model'}: {self.what.rstrip('.')}; {self.remedy}."


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type's name if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _obstacle_of(error: Exception, *, on_gpu: bool) -> Obstacle:
    """Describe the obstacle behind an error that a method raised on made-up records."""
    if isinstance(error, PlaceError) and on_gpu:
        return Obstacle(first_line(error), "", "nothing is wrong; a CPU may treat all rows alike, and be faster")
    if isinstance(error, PlaceError):  # no line of the model is at fault
        return Obstacle(f"products here ({matrix_library()}) do not treat all rows alike", "", matrix_library().remedy)
    calls = [call for call in traceback.extract_tb(error.__traceback__) if _in_model(call.filename)]
    what = first_line(error)
    place = f"{calls[-1].filename}:{calls[-1].lineno}" if calls else ""
    if calls and Path(*Path(calls[-1].filename).parts[-2:]) == _TRANSFORMERS_MASKS:
        return Obstacle(what, place, _MASK)
    return Obstacle(what, place, _BY_VALUE if isinstance(error, ValueDependentError) else _OWN_LAYER)


def _in_model(file: str) -> bool:
    """Return whether a file is neither torch's nor ours; a name in angle brackets is no file."""
    return not file.startswith("<") and not any(Path(file).is_relative_to(folder) for folder in _NOT_THE_MODEL)


@cache
def warn_of(method: str, obstacle: Obstacle | None) -> None:
    """Log, once in a process, that gradients are computed by a slow method; no obstacle, no log."""
    if obstacle is not None:
        times = _COSTS.get(method, _COST_OF_SINGLE_ROWS)
        log.warning(
            "Gradients are exact, but slow (%s): a step takes %s times as long as without privacy. %s",
            method,
            times,
            obstacle,
        )


class SingleRows:
    """The gradients of another method, computed from products of one row each."""

    def __init__(self, method: Method) -> None:
        self.name, self._method = f"{method.name}, one row at a time", method

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes that the activations of the last batch took."""
        return self._method.held_bytes

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Placed]:
        with one_row_at_a_time():
            return self._method.pieces(inputs, targets, kept_bytes)


class UncoveredError(ValueError):
    """No rule covers a module."""


class BookKeeping:
    """Method that computes per-record gradients by the layers' rules."""

    name = "book-keeping"

    def __init__(self, model: nn.Module, loss: Loss, autocast: torch.dtype | None = None) -> None:
        """Choose a rule for every layer; `autocast` computes activations in half precision where that is safe.

        Raises:
            UncoveredError: the outermost module owns a parameter that cannot be expanded, or a layer's `forward` is
                not its class's.
        """
        self._model, self._loss, self._autocast = model, LossGradient(loss), autocast
        if autocast is not None:
            self.name = f"{self.name} in {str(autocast).removeprefix('torch.')}"
        self._indices = {p: i for i, p in enumerate(p for p in model.parameters() if p.requires_grad)}
        self._axes: dict[str, int] = {}
        self._expanded: dict[str, Parameter] = {}
        self._rules: list[tuple[str, nn.Module, Rule]] = []
        self.held_bytes = 0
        self._proven = False
        self._choose("", model)

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Placed]:
        """See `Method`.

        Raises:
            ValueDependentError: the records' paths depend on their values; checked on the first batch, which is made
                up.
        """
        tape = Tape(self._indices, self._axes, len(inputs), kept_bytes, learning=not self._proven)
        try:
            with torch.enable_grad():
                with self._installing_rules(tape), nullcontext() if self._proven else OnePath(inputs):
                    outputs = self._forward(tape, inputs)
                torch.autograd.grad(self._loss.summed(outputs, targets), tape.roots, allow_unused=True)
        finally:
            tape.roots.clear()  # break the cycle: roots hold the graph, whose hooks hold the tape
        self.held_bytes, self._proven = tape.held_bytes, True
        return tape.finish()

    def _forward(self, tape: Tape, inputs: Tensor) -> Tensor:
        copies = {name: tape.expand(p).squeeze(1) for name, p in self._expanded.items()}
        with torch.autocast(inputs.device.type, self._autocast, enabled=self._autocast is not None):
            outputs: Tensor = functional_call(self._model, copies, (inputs,)) if copies else self._model(inputs)
        return outputs.float() if self._autocast else outputs

    def _choose(self, name: str, module: nn.Module) -> None:
        rule = rule_for(module)
        own = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        expandable = all(p.dim() > 1 and p.shape[0] == 1 for p in own.values())
        if rule is None and expandable:
            self._expanded |= {f"{name}.{n}" if name else n: p for n, p in own.items()}
            for child, inner in module.named_children():
                self._choose(f"{name}.{child}" if name else child, inner)
        elif "forward" in vars(module):
            raise UncoveredError(f"layer '{name}' has a forward of its own")
        elif rule is not None or name:
            self._rules.append((name, module, rule or opaque))
        else:
            raise UncoveredError(f"parameter '{next(iter(own))}' of the model itself is used by no layer with a rule")

    @contextmanager
    def _installing_rules(self, tape: Tape) -> Iterator[None]:
        """Replace the layers' `forward` by their rules, in this thread; others see the layers unchanged."""
        try:
            for name, module, rule in self._rules:
                module.__dict__["forward"] = partial(_in_thread, get_ident(), partial(rule, tape, name), module)
            yield
        finally:
            for _, module, _ in self._rules:
                module.__dict__.pop("forward", None)


def _in_thread(thread: int, rule: Rule, module: nn.Module, *arguments: Any, **options: Any) -> Any:
    compute = rule if get_ident() == thread else type(module).forward
    return compute(module, *arguments, **options)


def _average_rows(of_rows: Method, layout: Layout) -> Method:
    """Return the method for records, given that for rows."""
    return of_rows if layout.each == 1 else AveragedOverRows(of_rows, layout)


class AveragedOverRows:
    """Gradients of records as averages over their rows."""

    def __init__(self, of_rows: Method, layout: Layout) -> None:
        """Take the method for rows, and the rows that a record has."""
        self.name, self._of_rows, self._layout = of_rows.name, of_rows, layout

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes that the activations of the last batch took."""
        return self._of_rows.held_bytes

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Placed]:
        """Compute every trained parameter's piece, for targets [batch, ...] or [batch, m, ...]."""
        inputs, targets, weights = self._layout.lay_out(inputs, targets)
        by_record = weights.view(-1, self._layout.each)
        rows = self._of_rows.pieces(inputs, targets, kept_bytes)
        return [Placed(part, piece.average(by_record, kept_bytes)) for part, piece in rows]


_IN_CACHE = 17 * 2**20
"""Number of bytes that a processor's cache holds: the fastest size of a part of a batch."""

_MODERATE = 64 * 2**20
"""Maximum number of bytes of a part of 8 to 32 records where one record alone fills the cache."""

_LEAST_PART = 8
"""Minimum number of records in a part, so that a layer's matrices are large enough for a processor."""

_MOST_ROWS = 256
"""Maximum number of records in a part: more are no faster, and every part is tried before it is used."""

_MOST_ROWS_FOR_A_BATCH = 1024
"""The same on a GPU, where the size of a batch is known: measured, a small model is 2.7 times as fast as in parts of
256.
"""

_COSTLY, _TURN_BYTES = 2**16, 2**21
"""Number of bytes of a record from which small parts for few records pay, and of the records that take as long as a
turn's fixed time: measured, a row of 100 KB takes a twentieth of that, and one of a megabyte as long.
"""

_ON_GPU = 2**32
"""Maximum number of bytes of a part on a GPU, which needs many records at a time."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The admitted method, and the sizes of the portions in which it computes."""

    method: Method  # method for records; it averages if they have several rows
    sizes: tuple[int, ...]  # numbers of records that are computed at a time, the largest first
    kept_bytes: int  # bytes of written gradients, for each parameter
    threads: int  # number of torch's threads with which it was proven; all for a large model
    turn: int = TURN  # number of records that take as long as the fixed time of a part
    alone: bool = False  # True if each record is computed alone, so that it has no company
    obstacle: Obstacle | None = None  # reason why no faster method is used
    refused: tuple[str, ...] = ()  # faster methods and why they were not used, a line each


def admit_method(
    model: nn.Module,
    loss: Loss,
    probe: tuple[Tensor, Tensor],
    *,
    autocast: torch.dtype | None,
    layout: Layout,
    max_memory: int | None,
    rows: int | None = None,
) -> Admitted:
    """Return the first method that agrees with the loop on made-up records, `probe`, and keeps records apart.

    The other arguments are those of the engine, and the number of records that a part on a GPU is to hold.

    Raises:
        InPlaceError: a layer's input is changed in place.
        LossShapeError: the loss is not one value for each record.
        UnsupportedModelError: not even the loop agrees with itself.
    """
    obstacle, refused = None, list[str]()
    for kind in (Program, BookKeeping, Vectorised, Loop):  # the fastest first
        if autocast and kind is Program:
            continue
        try:
            method = _checked_method(kind, model, loss, probe, autocast)
            chosen = _in_portions(
                method, model, probe, layout, max_memory=max_memory, rows=rows, half=autocast is not None
            )
            return replace(chosen, obstacle=obstacle or chosen.obstacle, refused=(*refused, *chosen.refused))
        except (InPlaceError, LossShapeError):
            raise
        except Exception as reason:
            log.debug("Gradients are not computed by %s: %s", kind.name, reason)
            refused.append(_refusal(kind.name, reason))
            if kind is not Program or isinstance(reason, PlaceError):  # other reasons concern chains alone
                obstacle = obstacle or _obstacle_of(reason, on_gpu=on_gpu(probe[0]))
    raise UnsupportedModelError(
        "The model computes something else each time: it draws random numbers, or keeps something of a batch for "
        "the next. Leave dropout out, and compute everything anew in every forward pass."
    )


def _checked_method(
    kind: type[Program | BookKeeping | Vectorised | Loop],
    model: nn.Module,
    loss: Loss,
    probe: tuple[Tensor, Tensor],
    autocast: torch.dtype | None,
) -> Method:
    """Make a method of one kind and check it against the loop; raise if they disagree or the kind does not apply."""
    method = check_method(kind, model, loss, probe)
    if autocast is None or kind is not BookKeeping:
        return method
    # Half precision would hide what a small nudge shows; the layers and their axes are the same without.
    half = BookKeeping(model, loss, autocast)
    check_half(half, model, loss, probe)
    return half


def _refusal(name: str, reason: Exception) -> str:
    """Explain in one line why a method was not used."""
    return f"{name}: {first_line(reason).removeprefix(f'{name} ')}"


def still_apart(admitted: Admitted, model: nn.Module, records: tuple[Tensor, Tensor]) -> bool:
    """Return whether the admitted method keeps records apart with another number of threads, too, in all sizes."""
    if admitted.alone:
        return True
    try:
        sizes = admitted.sizes
        return sizes_that_agree(admitted.method, model, records, sizes, admitted.kept_bytes) == sizes
    except Exception:  # as `admit_method` takes it
        return False


def _in_portions(
    method: Method,
    model: nn.Module,
    probe: tuple[Tensor, Tensor],
    layout: Layout,
    *,
    max_memory: int | None,
    rows: int | None,
    half: bool,
) -> Admitted:
    """Find the sizes of parts in which the method keeps records apart; raise if there is none."""
    gpu = on_gpu(probe[0])
    kept_bytes = (max_memory or (_ON_GPU if gpu else _MODERATE)) // 2
    pieces = method.pieces(*probe, PROBES * kept_bytes // _LEAST_PART)
    held = probe[0].nbytes + method.held_bytes + sum(piece.kept_bytes for _, piece in pieces)
    each = (held // PROBES + 1) * layout.each
    least = 2 * WHOLE if half else WHOLE  # half precision needs larger multiples
    largest = _fastest(each, max_memory, on_gpu=gpu)
    if rows is not None and largest >= least:
        most = min(_ON_GPU // each, max_memory // each if max_memory else _ON_GPU, _MOST_ROWS_FOR_A_BATCH)
        parts = -(-rows // (most - most % least))
        largest = round_up(rows / parts, least)
    small = each >= _COSTLY and not half and not gpu
    threads = 1 if largest >= WHOLE and not gpu else torch.get_num_threads()
    of_records = _average_rows(method, layout)
    if isinstance(method, Loop):
        return Admitted(of_records, (min(largest, WHOLE),), kept_bytes, threads, alone=True)
    tried = [largest]
    while tried[-1] < WHOLE and (max_memory is None or 2 * tried[-1] * each <= max_memory):
        tried.append(2 * tried[-1])  # smaller parts leave elements over
    wanted = [with_small(sizes) if small else sizes for sizes in (sizes_up_to(rows, least) for rows in tried)]
    try:
        turn = min(TURN, _TURN_BYTES // each)
        chosen = Admitted(of_records, (1,), kept_bytes, threads, turn=turn)
        return _apart(chosen, model, layout.make_records(probe), wanted, by_single_rows=not half)
    except DisagreementError:
        if largest >= WHOLE or layout.each > 1:
            raise
    return Admitted(method, (1,), kept_bytes, threads, alone=True)  # too large for parts that are alike


def _apart(
    chosen: Admitted,
    model: nn.Module,
    records: tuple[Tensor, Tensor],
    wanted: Sequence[tuple[int, ...]],
    *,
    by_single_rows: bool,
) -> Admitted:
    """Return `chosen` with the first of the wanted sizes in which it keeps records apart.

    If this processor's products depend on a record's place, they may take one row at a time.

    Raises:
        DisagreementError: there are no such sizes.
    """

    def sizes_of(method: Method) -> tuple[int, ...]:
        for sizes in wanted[:-1]:
            with suppress(DisagreementError):
                return sizes_that_agree(method, model, records, sizes, chosen.kept_bytes)
        return sizes_that_agree(method, model, records, wanted[-1], chosen.kept_bytes)

    with computing_with(chosen.threads):
        try:
            return replace(chosen, sizes=sizes_of(chosen.method))
        except PlaceError as reason:
            if not by_single_rows:
                raise
            method = SingleRows(chosen.method)
            refused = (_refusal(chosen.method.name, reason),)
            obstacle = _obstacle_of(reason, on_gpu=on_gpu(records[0]))
            return replace(chosen, method=method, sizes=sizes_of(method), obstacle=obstacle, refused=refused)


def _fastest(record_bytes: int, max_memory: int | None, *, on_gpu: bool) -> int:
    """Return the number of records of `record_bytes` to take at a time: a power of two, which most batches fill."""
    if on_gpu:
        fastest = _ON_GPU // record_bytes
    else:
        fastest = max(_IN_CACHE // record_bytes, min(_MODERATE // record_bytes, 4 * _LEAST_PART), _LEAST_PART)
    allowed = fastest if max_memory is None else max_memory // record_bytes
    most = max(1, min(fastest, allowed, _MOST_ROWS))
    return 1 << (most.bit_length() - 1)
