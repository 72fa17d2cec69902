"""Tape of a forward pass, so that one backward pass yields every parameter's piece.

A layer's rule computes the layer as usual and tells the tape which parameters it used. The tape watches the layer's
output. When the backward pass brings the gradient of that output, the rule's pieces are made, and memory that is no
longer needed is freed. Autograd never computes a weight gradient (book-keeping; Bu et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import Parameter

from fedprivacy.gradients.models import InPlaceError
from fedprivacy.gradients.pieces import Part, Piece, Placed, Written, join_pieces

_SHARED = -1
"""Value in place of the number of a record axis if there is none."""


class NoRecordAxisError(ValueError):
    """No axis of a layer's input counts the records."""


class OverlapError(ValueError):
    """Parts of one parameter share rows: their gradients could not be added before the norm is taken."""


class Gathered:
    """The pieces of one backward pass: all uses of a part are added before its norm is taken."""

    def __init__(self, kept_bytes: int, expected: Mapping[Part, int] | None = None) -> None:
        """Expect this many uses of each part that shares no row with another; None: uses will be announced."""
        self._kept_bytes = kept_bytes
        self._placed: list[Placed] = []
        self._expected = dict(expected or {})
        self._uses: dict[Part, list[Piece]] = {}
        self._parts: dict[int, set[Part]] = {}

    def expect(self, part: Part) -> None:
        """Announce one use of a part; raise an `OverlapError` if another part has some of the same rows."""
        parts = self._parts.setdefault(part.place, {part})
        if part not in parts:
            if any(part.overlaps(other) for other in parts):
                raise OverlapError(f"parameter {part.place} is used in parts that share rows")
            parts.add(part)
        self._expected[part] = self._expected.get(part, 0) + 1

    def add(self, part: Part, piece: Piece) -> None:
        """Add the piece of one use."""
        if self._expected[part] == 1:
            self._placed.append(Placed(part, piece))
            return
        uses = self._uses.setdefault(part, [])
        uses.append(piece)
        if len(uses) == self._expected[part]:
            self._complete(part)

    def finish(self) -> list[Placed]:
        """Return every piece, also of parts that were used without influence on the loss."""
        for part in list(self._uses):
            self._complete(part)
        return self._placed

    def _complete(self, part: Part) -> None:
        self._placed.append(Placed(part, join_pieces(self._uses.pop(part), self._kept_bytes)))


PiecesOf = Callable[[Tensor], Sequence[Piece | None]]
"""(gradient of a layer's output) -> one piece for each part that the layer used; None will do for an untrained one."""


class Tape:
    """One batch's uses of parameters, and the pieces that the backward pass makes of them.

    Attributes:
        roots: tensors that the backward pass must reach.
        held_bytes: approximate number of bytes of the batch's activations.
    """

    def __init__(
        self, indices: Mapping[Parameter, int], axes: dict[str, int], records: int, kept_bytes: int, *, learning: bool
    ) -> None:
        """Start an empty tape.

        Args:
            indices: place of each trainable parameter in the flat vector's order.
            axes: record axis of each layer's input; filled on the first pass, used on the others.
            records: number of records in the batch.
            kept_bytes: number of bytes of written gradients that each parameter may keep.
            learning: whether `axes` may still be filled: on made-up records only, because later checks prove them.
        """
        self.records, self.kept_bytes, self.held_bytes = records, kept_bytes, 0
        self.roots: list[GradientEdge] = []
        self._indices, self._axes, self._learning = indices, axes, learning
        self._pieces = Gathered(kept_bytes)

    def part(self, parameter: Tensor | None, start: int = 0, stop: int | None = None) -> Part | None:
        """Return the part of a parameter that is trained, or None if it is frozen or absent."""
        index = self._indices.get(parameter) if isinstance(parameter, Parameter) else None
        return None if index is None else Part(index, start, stop)

    def record_axis(self, layer: str, source: Tensor) -> int:
        """Return the axis of a layer's input that counts the records: the first or the second.

        On the first pass it is read off the shape; the engine's self-check then proves or refutes it. Later passes use
        the same axis, because a sequence may be as long as a batch by chance.

        Raises:
            NoRecordAxisError: neither axis does, or the layer was not used on the first pass.
        """
        if self._learning:
            self._axes.setdefault(layer, 0 if source.shape[:1] == (self.records,) else 1)
        axis = self._axes.get(layer)
        if axis is None:
            raise NoRecordAxisError(f"layer '{layer}': not used by the records that its record axis was proven on")
        if source.dim() <= axis or source.shape[axis] != self.records:
            raise NoRecordAxisError(f"layer '{layer}': no axis of its input {list(source.shape)} counts the records")
        return axis

    def require_records_first(self, layer: str, source: Tensor) -> None:
        """Raise a `NoRecordAxisError` if the first axis of a layer's input does not count the records."""
        if self.record_axis(layer, source) != 0:
            raise NoRecordAxisError(f"layer '{layer}': the first axis of its input does not count the records")

    def shared(self, layer: str, source: Tensor) -> bool:
        """Return whether all records share a layer's input, such as the positions 0 to T - 1: no axis of it counts
        them.

        This is decided on the first pass, like `record_axis`: later there may be as many positions as records by
        chance.
        """
        if self._learning and layer not in self._axes and self.records not in source.shape[:2]:
            self._axes[layer] = _SHARED
        return self._axes.get(layer) == _SHARED

    def watch(
        self, layer: str, source: Tensor, output: Tensor, parts: Sequence[Part | None], pieces_of: PiecesOf
    ) -> None:
        """Have `pieces_of` called with the gradient of `output`.

        Args:
            layer: the layer's name, for errors.
            source: the layer's input; must keep its values until the backward pass.
            output: the layer's output, before anything changes it.
            parts: the parameters that it used; None for one that is not trained.
            pieces_of: function that makes one piece for each part.

        Raises:
            InPlaceError: in the backward pass, if `source` was changed in place.
        """
        trained = [part for part in parts if part is not None]
        if not trained:
            return
        for part in trained:
            self._pieces.expect(part)
        if not source.requires_grad:
            self.roots.append(get_gradient_edge(output))
        version = source._version
        self.held_bytes += source.nbytes + 2 * output.nbytes

        def arrive(gradient: Tensor) -> None:
            if source._version != version:
                raise InPlaceError(
                    f"layer '{layer}': its input is changed in place after the layer has read it; "
                    "write x = x + y instead of x += y, and inplace=False."
                )
            with torch.no_grad():
                for part, piece in zip(parts, pieces_of(gradient), strict=True):
                    if part is not None and piece is not None:
                        self._pieces.add(part, piece)

        output.register_hook(arrive)

    def expand(self, parameter: Parameter) -> Tensor:
        """Copy a parameter for each record, shape [batch, *parameter].

        If the copies replace the parameter and each record uses its own copy, the gradient of the copies is the
        per-record gradient of the parameter.
        """
        copies = parameter.detach().expand(self.records, *parameter.shape)
        part = self.part(parameter)
        if part is not None:
            copies.requires_grad_()
            self.roots.append(get_gradient_edge(copies))
            self._pieces.expect(part)
            copies.register_hook(lambda gradient: self._pieces.add(part, Written(gradient)))
        return copies

    def finish(self) -> list[Placed]:
        """Return every parameter's piece, once the backward pass is over."""
        return self._pieces.finish()
