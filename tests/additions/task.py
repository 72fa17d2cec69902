"""A built-in task: wines, of which scikit-learn brings the records."""

from tests.additions.addition import Addition, after

WINE = '''"""The grower of a wine, of three, from thirteen measurements (Aeberhard, Forina 1991)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedprivacy.tasks.bundled import BundledClassification, DirichletSplit, Records
from fedprivacy.tasks.task import Recipe


class Wine(BundledClassification):
    """178 wines."""

    name = "wine"
    dataset = "wine"
    split = DirichletSplit(alpha=10.0, smallest_shard=10, seed=7)
    recipe = Recipe(rounds=2, local_steps=2, sampling_rate=0.5, learning_rate=0.5, delta=1e-3)

    def load_records(self) -> Records:
        """Measurements of shape [records, 13], and the grower."""
        from sklearn.datasets import load_wine

        measurements, grower = load_wine(return_X_y=True)
        return measurements, grower

    def scale(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logarithms: no constant of the records is needed."""
        return np.log1p(features)

    def model(self) -> nn.Module:
        """Logistic regression."""
        return nn.Linear(13, 3)
'''

TASK = Addition(
    edits={
        "fedprivacy/tasks/identity.py": [
            after('    "cancer": "fedprivacy.tasks.cancer:Cancer",\n', '    "wine": "fedprivacy.tasks.wine:Wine",\n')
        ],
    },
    files={("fedprivacy/tasks", "wine.py"): WINE},
)

PROGRAM = """
from pathlib import Path

import numpy as np
import torch

from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.tasks import ShardSource, load_task
from fedprivacy.single.loop import train

assert resolve({"task": "wine"}).local_steps == 2
task, sources = load_task("wine"), [ShardSource(partition_id=part, num_partitions=3) for part in range(3)]
shards = [task.shard(source) for source in sources]
records = np.concatenate([shard.inputs for shard in shards])
print(len(records), len(np.unique(records, axis=0)))
Path("hospital").mkdir()
task.write_folder(sources[1], Path("hospital"))
assert torch.equal(task.shard(ShardSource(folder=Path("hospital"))).inputs, shards[1].inputs)

torch.manual_seed(0)
model, records = task.model(), (shards[0].inputs, shards[0].targets)
trained = train(model, task.loss, records, epsilon=9, delta=1e-3, steps=40, sampling_rate=0.5, size_public=True, seed=1)
print(task.evaluate(model)["loss"], task.evaluate(trained.model)["loss"])
"""
