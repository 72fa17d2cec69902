"""A table of patients in six wards, for tests of questions and training on one account."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

import fedprivacy as fp

CLIENTS, RECORDS = 6, 300
BOUNDS = {"age": (0.0, 120.0), "pressure": (50.0, 250.0)}


def patients(part: int, records: int = RECORDS) -> dict[str, np.ndarray]:
    """The records of one ward by column; whoever is older, at a higher pressure, comes back."""
    random = np.random.default_rng([part, 3])
    age, pressure = random.normal(60, 12, records), random.normal(130, 20, records)
    returned = (age - 60) / 12 + (pressure - 130) / 20 + random.normal(0, 0.5, records) > 0
    return {"age": age, "pressure": pressure, "sex": random.choice(["f", "m"], records), "returned": 1 * returned}


class Wards(fp.Task):
    """Who comes back, from two numbers that are standardised by a private answer."""

    name = dataset = "wards"
    standardise = fp.ask.mean_and_scale(BOUNDS)
    recipe = fp.Recipe(
        clients=CLIENTS, rounds=6, local_steps=2, sampling_rate=0.5, learning_rate=1.0, epsilon=3.0, delta=1e-4
    )

    def model(self) -> nn.Module:
        model = nn.Linear(2, 2)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    def _part(self, source: fp.ShardSource) -> int:
        return int(str(source.folder)[-1]) if source.folder else source.partition_id or 0

    def table(self, source: fp.ShardSource) -> fp.Table:
        return fp.Table(patients(self._part(source)))

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        return self.examples(patients(self._part(source)))

    def examples(self, columns: Mapping[str, np.ndarray]) -> fp.Shard:
        inputs = np.stack([columns[name] for name in BOUNDS], axis=1)
        return fp.Shard(torch.tensor(inputs, dtype=torch.float32), torch.tensor(columns["returned"]))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        test = self.examples(patients(99, 2000))
        return {"accuracy": (model(test.inputs).argmax(1) == test.targets).double().mean().item()}

    def partition(self, num_partitions: int) -> str:
        return f"{num_partitions} wards"


class AsTheyAre(Wards):
    """The same without any scale."""

    standardise = None


class ByConstants(AsTheyAre):
    """The same at public constants, which happen to be right."""

    def examples(self, columns: Mapping[str, np.ndarray]) -> fp.Shard:
        scaled = {"age": (columns["age"] - 60) / 12, "pressure": (columns["pressure"] - 130) / 20}
        return super().examples({**columns, **scaled})
