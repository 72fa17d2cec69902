"""Recurrent layers: the input projections of all steps at once, then one step after the other.

The gradient of a step's gates belongs to its input and to its state alike. It arrives for all steps together, so each
weight has one piece for the whole sequence, and no step computes the gradient of a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedprivacy.gradients import products
from fedprivacy.gradients.pieces import Outer, Piece, Written, over_positions
from fedprivacy.gradients.tape import NoRecordAxisError, Tape

State = tuple[Tensor, ...]
"""State handed from one step to the next: (hidden,), or (hidden, cell) of an LSTM; each [batch, size]."""

Step = Callable[[Tensor, State, Tensor], State]
"""(a step's input projection [batch, gates], state, transposed recurrent weight) -> the next state."""


def recurrent(
    tape: Tape, name: str, layer: nn.RNN | nn.LSTM | nn.GRU, inputs: Tensor, initial: Any = None
) -> tuple[Tensor, Any]:
    """`nn.RNN`, `nn.LSTM` or `nn.GRU` on inputs [batch, steps, d] or [steps, batch, d], as `batch_first` says.

    Raises:
        NotImplementedError: packed sequences, a record without a batch axis, or dropout between the layers.
        NoRecordAxisError: the axis that should count the records, by `batch_first`, does not.
    """
    if not isinstance(inputs, Tensor) or inputs.dim() != 3:
        raise NotImplementedError("packed sequences, or a record without a batch axis")
    if layer.dropout > 0 and layer.training:
        raise NotImplementedError("dropout between recurrent layers")
    sequence = inputs.transpose(0, 1) if layer.batch_first else inputs
    _check_records(tape, name, sequence.shape[1])
    initials = _initial_states(layer, sequence, initial)
    finals: list[State] = []
    for depth in range(layer.num_layers):
        outputs = []
        for reverse in (False, True)[: 1 + layer.bidirectional]:
            cell = _Cell.of(layer, layer.mode, f"_l{depth}{'_reverse' * reverse}")
            hidden, final = cell.run(tape, name, sequence.flip(0) if reverse else sequence, initials[len(finals)])
            outputs.append(hidden.flip(0) if reverse else hidden)
            finals.append(final)
        sequence = torch.cat(outputs, 2) if layer.bidirectional else outputs[0]
    stacked = tuple(torch.stack(column) for column in zip(*finals, strict=True))
    return sequence.transpose(0, 1) if layer.batch_first else sequence, _handed_out(stacked)


def recurrent_cell(
    tape: Tape, name: str, layer: nn.RNNCell | nn.LSTMCell | nn.GRUCell, inputs: Tensor, initial: Any = None
) -> Any:
    """`nn.RNNCell`, `nn.LSTMCell` or `nn.GRUCell` on inputs [batch, d].

    Raises:
        NotImplementedError: a record without a batch axis.
        NoRecordAxisError: the input's first axis does not count the records.
    """
    if inputs.dim() != 2:
        raise NotImplementedError("a record without a batch axis")
    _check_records(tape, name, len(inputs))
    mode = f"RNN_{layer.nonlinearity.upper()}" if isinstance(layer, nn.RNNCell) else type(layer).__name__[:-4]
    if initial is None:
        state = _zero_state(mode, inputs, layer.hidden_size, layer.hidden_size)
    else:
        state = initial if mode == "LSTM" else (initial,)
    return _handed_out(_Cell.of(layer, mode, "").run(tape, name, inputs.unsqueeze(0), state)[1])


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction of one layer: its mode, "RNN_TANH", "RNN_RELU", "LSTM" or "GRU", and its parameters."""

    mode: str
    weight_ih: Tensor  # [gates, d]
    weight_hh: Tensor  # [gates, hidden]
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    weight_hr: Tensor | None  # [hidden, cell]: shortens the hidden part of an LSTM's state

    @classmethod
    def of(cls, layer: nn.Module, mode: str, suffix: str) -> _Cell:
        """Collect the parameters of `layer` whose names end in `suffix`."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        weights: list[Any] = [getattr(layer, name + suffix, None) for name in names]
        return cls(mode, *weights)

    def run(self, tape: Tape, name: str, sequence: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the hidden states after each step of `sequence` [steps, batch, d], and the last state."""
        parts = [tape.part(p) for p in (self.weight_ih, self.bias_ih, self.weight_hh, self.bias_hh)]
        projected = self._project(sequence).to(self.weight_hh.dtype)
        if any(parts) and not projected.requires_grad:
            projected.requires_grad_()
        with torch.autocast(sequence.device.type, enabled=False):
            hidden, last = self._unroll(tape, name, projected, tuple(part.to(projected) for part in state))
        before = torch.cat((state[0].detach().unsqueeze(0), hidden.detach()[:-1]))

        def pieces_of(gradient: Tensor) -> Sequence[Piece | None]:
            by_input, by_state = self._gate_gradients(gradient)
            input_weight = None if parts[0] is None else _weight(tape, sequence.detach(), by_input)
            state_weight = None if parts[2] is None else _weight(tape, before, by_state)
            return input_weight, Written(by_input.sum(0)), state_weight, Written(by_state.sum(0))

        tape.watch(name, sequence, projected, parts, pieces_of)
        return hidden, last

    def _unroll(self, tape: Tape, name: str, projected: Tensor, state: State) -> tuple[Tensor, State]:
        if self.mode == "LSTM" and self.weight_hr is None:
            hidden, cell = _LstmSteps.apply(projected, self.weight_hh.detach(), *state)  # type: ignore[no-untyped-call]
            return hidden, (hidden[-1], cell)
        step, weight = _STEPS[self.mode], self.weight_hh.detach().t()
        states = [state]
        for projection in projected.unbind(0):
            states.append(self._shorten(tape, name, step(projection, states[-1], weight)))
        return torch.stack([after[0] for after in states[1:]]), states[-1]

    def _project(self, sequence: Tensor) -> Tensor:
        """Compute the gates' inputs from the sequence and the biases, shape [steps, batch, gates]; see `_apart` for a
        GRU.
        """
        projected = products.linear(sequence, self.weight_ih.detach())
        if self.mode == "GRU":
            projected = _apart(projected)
        if self.bias_ih is None or self.bias_hh is None:
            return projected
        by_input, by_state = self.bias_ih.detach(), self.bias_hh.detach()
        if self.mode == "GRU":
            by_input, by_state = _apart(by_input), functional.pad(by_state, (0, len(by_state) // 3))
        return projected.add_(by_input + by_state)

    def _gate_gradients(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Split gradients into those of the gates' share from the input and those of their share from the state."""
        if self.mode != "GRU":
            return gradient, gradient
        reset, update, by_state, by_input = gradient.chunk(4, 2)
        return torch.cat((reset, update, by_input), 2), torch.cat((reset, update, by_state), 2)

    def _shorten(self, tape: Tape, name: str, state: State) -> State:
        """Return the state, its hidden part shortened if the layer is an LSTM with `proj_size`."""
        if self.weight_hr is None:
            return state
        long = state[0]
        short = products.linear(long, self.weight_hr)
        tape.watch(name, long, short, (tape.part(self.weight_hr),), lambda gradient: (Outer(long.detach(), gradient),))
        return short, *state[1:]


def _apart(by_input: Tensor) -> Tensor:
    """Arrange the input's share of a GRU's gates [..., reset, update, new], with room for the state's share of `new`.

    The result is [..., reset, update, state's new, input's new]: the reset gate multiplies the state's share alone.
    """
    reset, update, new = by_input.chunk(3, -1)
    return torch.cat((reset, update, torch.zeros_like(new), new), -1)


def _plain_step(squash: Callable[[Tensor], Tensor]) -> Step:
    return lambda projection, state, weight: (squash(products.plus_product(projection, state[0], weight)),)


def _lstm_step(projection: Tensor, state: State, weight: Tensor) -> State:
    hidden, cell = state
    let_in, forget, new, let_out = products.plus_product(projection, hidden, weight).chunk(4, 1)
    cell = forget.sigmoid() * cell + let_in.sigmoid() * new.tanh()
    return let_out.sigmoid() * cell.tanh(), cell


def _gru_step(projection: Tensor, state: State, weight: Tensor) -> State:
    (hidden,) = state
    gates = weight.shape[1]
    reset, update, by_state = products.plus_product(projection[:, :gates], hidden, weight).chunk(3, 1)
    new = torch.addcmul(projection[:, gates:], reset.sigmoid(), by_state).tanh()
    return (torch.lerp(new, hidden, update.sigmoid()),)


_STEPS: dict[str, Step] = {
    "RNN_TANH": _plain_step(torch.tanh),
    "RNN_RELU": _plain_step(torch.relu),
    "LSTM": _lstm_step,
    "GRU": _gru_step,
}


class _LstmSteps(torch.autograd.Function):
    """All steps of an LSTM at once. Autograd would take twice as many operations, and each is on a small matrix."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states after each step [steps, batch, hidden], and the last cell."""
        steps, records, size = len(projected), *cell.shape
        gates, squashed, hiddens = torch.empty_like(projected), *projected.new_empty(2, steps, records, size)
        cells = torch.cat((cell.unsqueeze(0), squashed))
        views = (projected, gates, gates[..., : 2 * size], *gates.chunk(4, 2), cells[1:], squashed, hiddens)
        by_state = products.pad(weight).t()
        for projection, gate, both, let_in, forget, new, let_out, after, squash, out in zip(*views, strict=True):
            products.addmm(projection, products.pad(hidden), by_state, out=gate)
            both.sigmoid_()
            new.tanh_()
            let_out.sigmoid_()
            cell = torch.mul(forget, cell, out=after).addcmul_(let_in, new)
            hidden = torch.mul(let_out, torch.tanh(cell, out=squash), out=out)
        ctx.save_for_backward(gates, cells, squashed, weight)
        return hiddens, cell.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_hidden: Tensor, by_cell: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        """Compute gradients of the projections, of the initial hidden state and of the initial cell."""
        gates, cells, squashed, weight = ctx.saved_tensors
        let_in, forget, new, let_out = gates.chunk(4, 2)
        slopes = gates.new_empty(*gates.shape[:2], 4, cells.shape[2])
        torch.mul((1 - let_in).mul_(let_in), new, out=slopes[:, :, 0])
        torch.mul((1 - forget).mul_(forget), cells[:-1], out=slopes[:, :, 1])
        torch.mul(1 - new.square(), let_in, out=slopes[:, :, 2])
        torch.mul((1 - let_out).mul_(let_out), squashed, out=slopes[:, :, 3])
        through_cell = (1 - squashed.square()).mul_(let_out)
        gradients, by_state = slopes.flatten(2), torch.zeros_like(by_cell)
        views = (by_hidden, through_cell, slopes[:, :, :3], slopes[:, :, 3], forget, gradients)
        backwards = zip(*(view.unbind(0)[::-1] for view in views), strict=True)
        for by_output, through, by_cells, by_outputs, kept, gradient in backwards:
            by_state += by_output
            by_cell = torch.addcmul(by_cell, by_state, through)
            by_cells.mul_(by_cell.unsqueeze(1))
            by_outputs.mul_(by_state)
            by_cell.mul_(kept)
            by_state = products.times(gradient, weight)
        return gradients, None, by_state, by_cell


def _weight(tape: Tape, sources: Tensor, gradients: Tensor) -> Piece:
    """Return the piece of a weight, given its multiplicands and the product's gradient, both [steps, batch, ...]."""
    return over_positions(sources.transpose(0, 1), gradients.transpose(0, 1), tape.kept_bytes)


def _initial_states(layer: nn.RNN | nn.LSTM | nn.GRU, sequence: Tensor, initial: Any) -> Sequence[State]:
    """Return one initial state for each layer and direction."""
    if initial is None:
        zeros = _zero_state(layer.mode, sequence, layer.proj_size or layer.hidden_size, layer.hidden_size)
        return [zeros] * (layer.num_layers * (1 + layer.bidirectional))
    return list(zip(*(initial if layer.mode == "LSTM" else (initial,)), strict=True))


def _zero_state(mode: str, inputs: Tensor, hidden: int, cell: int) -> State:
    sizes = (hidden, cell) if mode == "LSTM" else (hidden,)
    return tuple(inputs.new_zeros(inputs.shape[-2], size) for size in sizes)


def _handed_out(state: State) -> Any:
    """Return a state as torch's layers do: a tensor, or an LSTM's pair."""
    return state if len(state) > 1 else state[0]


def _check_records(tape: Tape, name: str, found: int) -> None:
    if found != tape.records:
        raise NoRecordAxisError(
            f"layer '{name}': the batch axis of its input has {found} rows for {tape.records} records"
        )
