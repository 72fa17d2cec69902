"""Linear maps: every layer that multiplies a weight with vectors at one or more positions of a record.

Multi-head attention is four of them, and between them a computation without parameters (Vaswani et al. 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients import products
from fedprivacy.gradients.pieces import Outer, Part, Piece, TableRows, Written, over_positions
from fedprivacy.gradients.tape import NoRecordAxisError, Tape


def linear(tape: Tape, name: str, layer: nn.Linear, inputs: Tensor) -> Tensor:
    """`nn.Linear` on inputs [batch, ..., d] or [positions, batch, ..., d]."""
    output = products.linear(inputs, layer.weight, layer.bias)
    watch_linear(tape, name, inputs, output, (tape.part(layer.weight), tape.part(layer.bias)))
    return output


def watch_linear(tape: Tape, name: str, inputs: Tensor, output: Tensor, parts: tuple[Part | None, Part | None]) -> None:
    """Record output = inputs weight^T + bias, where weight and bias are parts of trained parameters or frozen."""
    weight, bias = parts
    if weight is None and bias is None:
        return
    axis = tape.record_axis(name, inputs)

    def pieces_of(gradient: Tensor) -> Sequence[Piece | None]:
        rows, gradients = (t.movedim(axis, 0) if axis else t for t in (inputs.detach(), gradient))
        written = None if weight is None else linear_weight(rows, gradients, tape.kept_bytes)
        return written, linear_bias(gradients)

    tape.watch(name, inputs, output, (weight, bias), pieces_of)


def linear_weight(inputs: Tensor, gradient: Tensor, kept_bytes: int) -> Piece:
    """Return the piece of a weight, given inputs [batch, ..., d] and the output's gradient [batch, ..., p]."""
    if gradient.dim() == 2:
        return Outer(inputs, gradient)
    return over_positions(inputs.flatten(1, -2), gradient.flatten(1, -2), kept_bytes)


def linear_bias(gradient: Tensor) -> Piece:
    """Return the piece of a bias, given the gradient [batch, ..., p] of the layer's output."""
    return Written(gradient if gradient.dim() == 2 else gradient.flatten(1, -2).sum(1))


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of `nn.MultiheadAttention.forward`."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Tensor | None = None
    need_weights: bool = True
    attn_mask: Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False


_Rows = tuple[Tensor | None, int, int | None]
"""A parameter, the first of some of its rows, and the row after the last; None: all rows."""


def attention(
    tape: Tape, name: str, layer: nn.MultiheadAttention, *arguments: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention`: self-attention, or queries to other keys and values; any masks, with or without weights.

    Raises:
        NotImplementedError: the layer drops out, adds keys of its own, or is given a record without a batch axis.
        NoRecordAxisError: the axis that should count the records, by `batch_first`, does not.
    """
    call = _Call(*arguments, **options)
    if layer.dropout > 0 and layer.training:
        raise NotImplementedError("attention with dropout")
    if layer.bias_k is not None or layer.add_zero_attn:
        raise NotImplementedError("attention with keys of its own")
    if call.query.dim() != 3:
        raise NotImplementedError("attention without a batch axis")
    projected = _in_projections(tape, name, layer, call)
    if any(len(t) != tape.records for t in projected):
        raise NoRecordAxisError(
            f"layer '{name}': axis {1 - layer.batch_first} of its inputs does not count the records"
        )
    query, key, value = (t.view(*t.shape[:2], layer.num_heads, -1).transpose(1, 2) for t in projected)
    heads, weights = _attend(layer, call, query, key, value)
    joined, out = heads.transpose(1, 2).flatten(2), layer.out_proj
    output = _project(tape, f"{name}.out_proj", joined, (out.weight, 0, None), (out.bias, 0, None))
    return output if layer.batch_first else output.transpose(0, 1), weights


def _in_projections(tape: Tape, name: str, layer: nn.MultiheadAttention, call: _Call) -> tuple[Tensor, ...]:
    """Project to query, key and value, each [batch, positions, embed_dim]: by one product if they share a source."""
    sources = [t if layer.batch_first else t.transpose(0, 1) for t in (call.query, call.key, call.value)]
    joint, bias, width = layer.in_proj_weight, layer.in_proj_bias, layer.embed_dim
    if call.query is call.key and call.key is call.value and joint is not None:
        return _project(tape, name, sources[0], (joint, 0, None), (bias, 0, None)).chunk(3, 2)
    ranges = [(start, start + width) for start in (0, width, 2 * width)]
    if joint is not None:
        weights: list[_Rows] = [(joint, *rows) for rows in ranges]
    else:
        weights = [(weight, 0, None) for weight in (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)]
    return tuple(
        _project(tape, name, source, weight, (bias, *rows))
        for source, weight, rows in zip(sources, weights, ranges, strict=True)
    )


def _project(tape: Tape, name: str, source: Tensor, weight: _Rows, bias: _Rows) -> Tensor:
    chosen: list[Any] = [None if whole is None else whole[start:stop] for whole, start, stop in (weight, bias)]
    output = products.linear(source, *chosen)
    watch_linear(tape, name, source, output, (tape.part(*weight), tape.part(*bias)))
    return output


def _attend(
    layer: nn.MultiheadAttention, call: _Call, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Compute the heads' outputs [batch, heads, positions, size] and, if requested, the weights."""
    causal = not call.need_weights and call.is_causal and call.key_padding_mask is None
    mask = None if causal else _mask(layer, call)
    if not call.need_weights:
        return functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal), None
    scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
    weights = (scores if mask is None else scores + mask).softmax(3)
    return weights @ value, weights.mean(1) if call.average_attn_weights else weights


def _mask(layer: nn.MultiheadAttention, call: _Call) -> Tensor | None:
    """Return the addend of the scores [batch, heads, queries, keys]: minus infinity where a key must not be used."""
    mask, padding, dtype = call.attn_mask, call.key_padding_mask, call.query.dtype
    if mask is not None:
        by_head = mask.view(-1, layer.num_heads, *mask.shape[1:]) if mask.dim() == 3 else mask
        mask = _as_addend(by_head, dtype)
    if padding is None:
        return mask
    padding = _as_addend(padding[:, None, None], dtype)
    return padding if mask is None else mask + padding


def _as_addend(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -torch.inf)


def embedding(tape: Tape, name: str, layer: nn.Embedding, ids: Tensor) -> Tensor:
    """`nn.Embedding` on ids [batch, ...] or [positions, batch, ...].

    Ids without a record axis, such as the positions [T] or [1, T], are looked up once for each record, so that the
    result has a record axis where the caller would have broadcast it.
    """
    shared = tape.shared(name, ids)
    if shared:
        ids = ids.expand(tape.records, -1)
    given = ids
    if products.on_gpu(ids):  # an index that is not there would end the process: here it has a row of NaN
        ids = ids.clamp(0, len(layer.weight) - 1)
    with products.in_range():
        output = functional.embedding(ids, layer.weight, layer.padding_idx)
    if given is not ids:
        output = output.masked_fill((given != ids).unsqueeze(-1), torch.nan)
    part = tape.part(layer.weight)
    if part is None:
        return output
    axis = 0 if shared else tape.record_axis(name, ids)

    def pieces_of(gradient: Tensor) -> Sequence[Piece]:
        rows = ids.movedim(axis, 0).reshape(tape.records, -1)
        gradients = gradient.movedim(axis, 0).reshape(*rows.shape, -1)
        if layer.padding_idx is not None:
            gradients = torch.where((rows == layer.padding_idx).unsqueeze(2), 0.0, gradients)
        return (TableRows(rows, gradients, layer.weight.shape),)

    tape.watch(name, ids, output, (part,), pieces_of)
    return output
