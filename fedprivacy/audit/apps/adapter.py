"""An app: somebody's training code behind a few lines that say how it is called, what leaves it, and what it claims."""

from __future__ import annotations

import copy
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedprivacy._support import sources
from fedprivacy._support.sources import SourceError
from fedprivacy.tasks import Shard
from fedprivacy.values.events import NeighbouringRelation

Rows = NDArray[np.int64]


class AppError(SourceError):
    """An app that cannot be found or audited, with the remedy."""


class Seen(enum.StrEnum):
    """Place where the audit sees the noisy sum of a step."""

    AT_OPTIMIZER = "at-optimizer"
    """The gradients that a torch optimiser is about to take a step with: the sum over `App.divisor`."""
    IN_WHAT_LEFT = "in-what-left"
    """The arrays that left: they have moved by the learning rate times the sum over `App.divisor`, as by SGD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one client's round. An app states those that it claims; the audit also asks it to train with others.

    Attributes:
        sampling_rate: q, with which a record joins a step, as it is accounted.
        noise_multiplier: sigma, standard deviation of the noise on a sum, in clipping norms.
        clipping_norm: C, the most that one record may change a sum by.
        steps: in a round.
        learning_rate: of the local optimiser.
        expected_batch_size: set by the audit: the sampling rate times the number of records that `App.records` has,
            whatever the shard at hand has. A private training divides by it and not by the true number.
        round: which it is, from 1.
        seed: for whatever draws neither from torch's, nor numpy's, nor Python's global generator, which the audit
            seeds; new for each training, 62 bits.
    """

    sampling_rate: float
    noise_multiplier: float
    clipping_norm: float
    steps: int
    learning_rate: float
    expected_batch_size: float = 0.0
    round: int = 1
    seed: int = 0


class App(ABC):
    """Somebody's training code, and what is claimed of it. Subclass it in a file of your own; see docs/how-to/audit.md.

    Attributes:
        settings: of a round, as they are claimed.
        rounds: that the audit rehearses before it asks what epsilon is shown; a few are enough.
        delta: of that epsilon.
        relation: the neighbouring shards that the guarantee is for.
        seen: where the noisy sums are.
        noised: names of fields, beside arrays, that carry noise and that the epsilon counts. The audit believes it.
        only_numbers: whether the data owner makes sure that no record holds NaN or infinity.
    """

    settings: Settings
    rounds: int = 3
    delta: float = 1e-5
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE
    seen: Seen = Seen.AT_OPTIMIZER
    noised: Collection[str] = ()
    only_numbers: bool = False

    @abstractmethod
    def records(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one client: some dozens of real records or of their kind, which stay here."""

    @abstractmethod
    def model(self) -> nn.Module:
        """The model that the server sends in the first round."""

    @abstractmethod
    def train(self, model: nn.Module, records: Records, asked: Settings) -> Mapping[str, Any]:
        """Train as in a round, and return all that leaves the client.

        Args:
            model: that the server sent; may be changed.
            records: of the client, a torch `Dataset`. Take each batch from it: it notes who joined.
            asked: what to do: sampling rate, noise, clipping norm, steps, learning rate.

        Returns:
            By name whatever leaves: arrays, numbers, texts, and lists and mappings of them.
        """

    @abstractmethod
    def epsilon(self, rounds: int) -> float:
        """The epsilon at `delta` that the app shows after so many rounds; asked right after so many calls of `train`.

        Args:
            rounds: in which the client took part, at least 1.
        """

    def divisor(self, asked: Settings) -> float:
        """Return the divisor of a sum, applied before the optimiser takes a step with it."""
        return asked.expected_batch_size


Maker = Callable[[], App]
"""Makes the app, with nothing left in it of an earlier training."""


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


def load_app(name: str) -> Maker:
    """Return the maker of the app that `path/to/file.py:name` or `package.module:name` names.

    The name is that of a class, a function or an object.

    Raises:
        AppError: there is none of that name, or it is no app.
    """
    if not sources.is_source(name):
        raise AppError(f"app is '{name}'; write path/to/file.py:name.")
    try:
        found = sources.load("app", name)
    except sources.SourceError as error:
        raise AppError(str(error)) from error
    if isinstance(found, App):
        return lambda: copy.deepcopy(found)
    try:
        made = found()
    except Exception as error:
        raise AppError(f"app is '{name}', which cannot be made: {sources.describe_error(error)}.") from error
    if not isinstance(made, App):
        raise AppError(f"app is '{name}', a {type(made).__name__}; make it a subclass of fedprivacy.audit.apps.App.")
    if not hasattr(made, "settings"):
        raise AppError(f"app is '{name}', which lacks settings; see fedprivacy.audit.apps.Settings.")
    return found  # type: ignore[no-any-return]  # a call of it was an app
