"""The records of an audited app: a torch `Dataset` that notes which of them are fetched, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from fedprivacy.tasks import Shard

Rows = NDArray[np.int64]


class Records(Dataset[tuple[Tensor, Tensor]]):
    """A client's records, which are fetched one by one, in batches, or as a `DataLoader` does.

    `records[7]` is one record: its input and its target. `records[rows]`, with a slice, a list, a tensor or an array of
    indices or of truth values, is a batch of them: two tensors. A `DataLoader` takes a batch at once.
    """

    def __init__(self, shard: Shard, note: Callable[[Rows, bool], None]) -> None:
        """The records of a shard.

        Args:
            shard: the records.
            note: is told which rows were fetched, in their order, and whether as a batch.
        """
        self._shard = shard
        self._note = note
        self._rows = np.arange(len(shard))

    def __len__(self) -> int:
        return len(self._shard)

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        rows = self._rows[_index(index)]
        self._note(np.atleast_1d(rows), np.ndim(rows) == 1)
        found = torch.from_numpy(rows) if np.ndim(rows) == 1 else int(rows)
        return self._shard.inputs[found], self._shard.targets[found]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """A batch, as a list of records: what torch's `DataLoader` asks for."""
        self._note(self._rows[np.asarray(rows, dtype=np.int64)], True)
        return [(self._shard.inputs[row], self._shard.targets[row]) for row in rows]


def _index(index: Any) -> Any:
    """An index as numpy takes it; an empty list is one of rows."""
    if isinstance(index, Tensor):
        return index.detach().cpu().numpy()
    if isinstance(index, list | tuple):
        return np.asarray(index, dtype=np.int64 if not index else None)
    return index
