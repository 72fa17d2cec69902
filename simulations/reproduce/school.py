"""139 schools, each with a budget of its own: local training, FedAvg, and MR-MTL between the two (Liu et al. 2022).

The published code standardises features by each school's own, un-noised mean and deviation, and shuffles batches under
an account of Poisson samples. Here features are scaled by what is known of them without the records: percentages by
100, and the others are 0 or 1. Every step hears all records of a school, so that there is no sample to account for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import fedprivacy as fp
from simulations.reproduce.experiment import Measured, Row, Workplace

SCHOOLS, FEATURES = 139, 28
LARGEST_SCORE = 70.0
"""Largest score in the file: the paper's errors are of scores as shares of it. No source says what the exam allowed."""

PERCENTAGES = [3, 4]
HELD_OUT = 0.2
METRIC = "each_mse"

EPSILONS = (0.5, 1.0, 2.0, 6.0, 10.0)
GOALS = {"FedAvg": 0.0254, "local": 0.0260, "MR-MTL": 0.0237}
PUBLISHED = {"FedAvg": 0.02564, "local": 0.02628, "MR-MTL": 0.02394}
AT = 6.0
ALGORITHMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg"},
    "local": {"algorithm": "local"},
    "MR-MTL": {"algorithm": "mr-mtl", "pull": 1.0},
}

SETTINGS: dict[str, Any] = {
    "rounds": 200,  # the paper's, and so are the clipping norm and delta
    "clipping_norm": 1.0,
    "delta": 1e-3,
    "sampling_rate": 1.0,  # one step a round that hears all: less noise than several that hear a part
    "local_steps": 1,
    "learning_rate": 0.03,  # the best of .01, .03, .1, .2 for FedAvg, local training and MR-MTL on splits 100 and 101
}


@dataclass(frozen=True, eq=False)
class School(fp.Task):
    """Predicts a pupil's exam score, as a share of the largest, from 28 features.

    Attributes:
        file: `school.mat`.
        seed: of the split into pupils that are trained on and held out.
    """

    file: Path
    seed: int

    name = "school"
    dataset = "school"
    metric = METRIC

    def model(self) -> nn.Module:
        """A linear model, from zero."""
        model = nn.Linear(FEATURES, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error."""
        return (outputs[:, 0] - targets).square()

    def scores(self) -> Mapping[str, fp.Score]:
        """The same, by school."""
        return {"mse": fp.Score(self.loss, 0.0, 1.0)}

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        """A school's pupils that are trained on."""
        return self._pupils(source, held_out=False)

    def held_out(self, source: fp.ShardSource) -> fp.Shard:
        """Its other pupils."""
        return self._pupils(source, held_out=True)

    def partition(self, num_partitions: int) -> str:
        """Each school is a client."""
        return f"schools of split {self.seed}"

    def _pupils(self, source: fp.ShardSource, *, held_out: bool) -> fp.Shard:
        features, scores = self._schools[source.partition_id or 0]
        order = np.random.default_rng([self.seed, source.partition_id or 0]).permutation(len(scores))
        kept = len(order) - round(HELD_OUT * len(order))
        rows = order[kept:] if held_out else order[:kept]
        return fp.Shard(torch.from_numpy(features[rows]), torch.from_numpy(scores[rows]))

    @cached_property
    def _schools(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        from scipy.io import loadmat

        file = loadmat(self.file)
        return [
            (_scaled(features), (scores.ravel() / LARGEST_SCORE).astype(np.float32))
            for features, scores in zip(file["X"][0], file["Y"][0], strict=True)
        ]


def _scaled(features: NDArray[Any]) -> NDArray[np.float32]:
    scaled = features.astype(np.float32)
    scaled[:, PERCENTAGES] /= 100.0
    return scaled


class SchoolReproduction:
    """Liu et al.'s comparison, at the published budget and along a curve of budgets."""

    name = "school"
    title = "139 schools: local training, FedAvg and MR-MTL"
    source = "Liu, Hu, Wu, Smith 2022: On Privacy and Personalization in Cross-Silo Federated Learning"
    delta: float = SETTINGS["delta"]
    data: Mapping[str, str] = {
        "school.mat": "the School data of the paper, https://github.com/kenziyuliu/private-cross-silo-fl (data/school)"
    }
    settings: Mapping[str, object] = {**SETTINGS, "pull": 1.0, "held_out": HELD_OUT}
    seeds = 5

    @property
    def rows(self) -> tuple[Row, ...]:
        """The published three, and the curve."""
        error = "mean squared error over held-out pupils"
        first = [Row(n, f"{error}, epsilon {AT:g}", GOALS[n], PUBLISHED[n], False, n, AT, METRIC) for n in ALGORITHMS]
        curve = [
            Row(_along(n, epsilon), error, at_least=False, line=n, budget=epsilon, metric=METRIC)
            for epsilon in EPSILONS
            if epsilon != AT
            for n in ALGORITHMS
        ]
        return (*first, *curve)

    def measure(self, seed: int, place: Workplace) -> Iterator[tuple[str, Measured]]:
        """Every run trains 139 schools for 200 rounds."""
        task = School(place.data / "school.mat", seed)
        for name in ALGORITHMS:
            yield name, _run(task, name, place, AT)
        for epsilon in EPSILONS:
            for name in ALGORITHMS if epsilon != AT else ():
                yield _along(name, epsilon), _run(task, name, place, epsilon)


def _run(task: School, name: str, place: Workplace, epsilon: float) -> Measured:
    place.tell(f"{name}, epsilon {epsilon:g}")
    out = place.runs / f"{name}-{epsilon:g}"
    settings = {**SETTINGS, **ALGORITHMS[name], "epsilon": epsilon}
    run = fp.simulate(task, clients=SCHOOLS, seed=task.seed, out=out, progress=False, **settings)
    return Measured(run.metrics[METRIC], run.history.last.max_epsilon, run.metrics)


def _along(name: str, epsilon: float) -> str:
    return f"{name} at {epsilon:g}"


SCHOOL = SchoolReproduction()
