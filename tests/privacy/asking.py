"""Asks the real ClientApp as a server would, about records whose releases can be read.

The gradient of a record is the record itself, whatever the parameters are: a release is then the sum of the records
that joined, plus noise. Records that point in directions of their own show who joined; records of zeros show noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.flower.client.local import IN_PROCESS
from fedprivacy.flower.wire.messages import GRANT, RECEIPT, Receipt
from fedprivacy.tasks import Shard, ShardSource
from fedprivacy.values.events import NeighbouringRelation
from tests.flower.blobs import A_GRANT, PrivateSizes, plan_of

SILENT = 1e-3
"""A noise multiplier that leaves a release readable."""

FALSE_ALARM = 1e-7
"""Probability that a check fails although nothing is wrong: secret randomness differs whenever the suite runs."""

USUAL = replace(
    A_GRANT,
    round=1,
    steps=1,
    sampling_rate=1.0,
    noise_multiplier=1.0,
    relation=NeighbouringRelation.ADD_OR_REMOVE_ONE,
    clipping_norm=1.0,
    expected_batch_size=1.0,
    learning_rate=1.0,
)
"""A grant after which the parameters have moved by the sums that were released, and by nothing else."""


class Canaries(PrivateSizes):
    """A task whose every client holds the same given records, and whose gradients are the records.

    Args:
        records: shape [records, dimension].
    """

    def __init__(self, records: Tensor) -> None:
        self.records = records

    def model(self) -> nn.Module:
        model = nn.Linear(self.records.shape[1], 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0]

    def shard(self, source: ShardSource) -> Shard:
        return Shard(self.records, torch.zeros(len(self.records)))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {}


class Client:
    """One simulated client, which is asked with real messages.

    Args:
        task: its records.
        seed: of its randomness; None: secret.
    """

    def __init__(self, task: Canaries, seed: int | None = None) -> None:
        self.task = task
        self.app = private_client(task, plan_of(task, clients=1, seed=seed).config)
        InProcessGrid(self.app, 1, {})  # sets the identity of the process, which Flower's messages read
        node = {"partition-id": 0, "num-partitions": 1, IN_PROCESS: True}
        self.context = Context(run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config={})

    def send(self, message_type: str, content: RecordDict) -> Message:
        """The client's reply."""
        return self.app(Message(content, 7, message_type), self.context)

    def train(self, **changed) -> tuple[NDArray[np.float64], Receipt]:
        """Send a grant like `USUAL` with `changed` fields; return the released sum over its steps, and the receipt."""
        grant = replace(USUAL, **changed)
        reply = self.send(MessageType.TRAIN, RecordDict({GRANT: grant.to_record(), "arrays": arrays_of(self.task)}))
        assert RECEIPT in reply.content, reply
        moved = np.concatenate([array.numpy().ravel() for array in reply.content["arrays"].values()])
        return -moved.astype(np.float64), Receipt.from_record(reply.content[RECEIPT])


def arrays_of(task: Canaries) -> ArrayRecord:
    """The task's new model, as a server sends it."""
    return ArrayRecord({n: Array(p.detach().numpy()) for n, p in task.model().named_parameters()})


def binomial_range(trials: int, chance: float, alarm: float = FALSE_ALARM) -> tuple[int, int]:
    """Bounds of a binomial count, but for a probability of `alarm`."""
    return tuple(int(end) for end in stats.binom.ppf([alarm / 2, 1 - alarm / 2], trials, chance))


def deviation_range(draws: int, deviation: float, alarm: float = FALSE_ALARM) -> tuple[float, float]:
    """Bounds of the root mean square of Gaussian draws, but for a probability of `alarm`."""
    low, high = stats.chi2.ppf([alarm / 2, 1 - alarm / 2], draws) / draws
    return deviation * math.sqrt(low), deviation * math.sqrt(high)


def root_mean_square(values: NDArray[np.float64]) -> float:
    """The deviation of draws whose mean is known to be zero."""
    return float(np.sqrt(np.mean(np.square(values))))
