"""Embeddings: tables of which a record touches few rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients.pieces import Piece, TableRows
from fedprivacy.gradients.tape import Tape


def embedding(tape: Tape, name: str, layer: nn.Embedding, ids: Tensor) -> Tensor:
    """`nn.Embedding` on ids [batch, ...] or [positions, batch, ...].

    Ids without a record axis, such as the positions [T] or [1, T], are looked up once for each record, so that the
    result has a record axis where the caller would have broadcast it.
    """
    shared = tape.shared(name, ids)
    if shared:
        ids = ids.expand(tape.records, -1)
    output = functional.embedding(ids, layer.weight, layer.padding_idx)
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
