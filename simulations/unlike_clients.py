"""What clients do who differ: alone, together, or in between, at three budgets, and how it is for the worst off.

Twenty hospitals predict a length of stay from ten features. What a feature means is partly the same everywhere, and
partly each hospital's own. Alone a hospital learns its own ways, with all of its noise; together they average the noise
away, and their differences with it; MR-MTL (Liu et al. 2022) pulls each one's model to the mean of all. Which is best
turns with the budget. Each hospital holds out records that it declares public: a mean over hospitals would hide the one
that is failed.

    python simulations/unlike_clients.py      # half a minute
"""

import torch
from torch import Tensor, nn

import fedprivacy as fp

HOSPITALS, RECORDS, PUBLIC, FEATURES = 20, 120, 100, 10
OWN_WAYS = 0.2  # standard deviation of a hospital's own part of each weight, where the common part has 1
ALGORITHMS = {
    "together (fedavg)": {"algorithm": "fedavg"},
    "alone (local)": {"algorithm": "local"},
    "in between (mr-mtl)": {"algorithm": "mr-mtl", "pull": 0.5},
}
BUDGETS = (0.25, 1.0, 4.0)


class Stays(fp.Task):
    """Linear regression; every hospital has weights of its own around those that all share."""

    metric = "each_error"
    recipe = fp.Recipe(
        clients=HOSPITALS, rounds=40, sampling_rate=1.0, clipping_norm=1.0, learning_rate=0.5, delta=1e-3
    )

    def model(self) -> nn.Module:
        """A weight for each feature, from zero."""
        model = nn.Linear(FEATURES, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error."""
        return (outputs[:, 0] - targets).square()

    def scores(self) -> dict[str, fp.Score]:
        """The same, by hospital."""
        return {"error": fp.Score(self.loss, 0.0, 25.0)}

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        """The patients that a hospital trains on."""
        inputs, targets = self._patients(source)
        return fp.Shard(inputs[PUBLIC:], targets[PUBLIC:])

    def held_out(self, source: fp.ShardSource) -> fp.Shard:
        """Those that it declares public."""
        inputs, targets = self._patients(source)
        return fp.Shard(inputs[:PUBLIC], targets[:PUBLIC])

    def partition(self, num_partitions: int) -> str:
        """Each hospital is a client."""
        return f"{num_partitions} made-up hospitals"

    def _patients(self, source: fp.ShardSource) -> tuple[Tensor, Tensor]:
        shared = torch.randn(FEATURES, generator=torch.Generator().manual_seed(0))
        own = torch.Generator().manual_seed(1 + (source.partition_id or 0))
        weights = shared + OWN_WAYS * torch.randn(FEATURES, generator=own)
        inputs = torch.randn(PUBLIC + RECORDS, FEATURES, generator=own)
        return inputs, inputs @ weights + 0.3 * torch.randn(len(inputs), generator=own)


if __name__ == "__main__":
    task = Stays()
    for epsilon in BUDGETS:
        print(f"epsilon {epsilon:g}")
        for name, settings in ALGORITHMS.items():
            run = fp.simulate(task, epsilon=epsilon, seed=0, progress=False, **settings)
            spent = max(client["epsilon"] for client in run.clients)
            mean, worst = run.metrics["each_error"], max(row["error"] for row in run.held_out)
            print(f"    {name:20} error {mean:6.3f}, worst hospital {worst:6.3f}, spent {spent:.2f}")
