"""What share of a simulation's time the server spends on accounting.

    python -m benchmarks.accounting_share [--json] [--clients 10000] [--rounds 5] [--batch-size 10]

Clients hold from 20 to 400 records each, made up, of a logistic regression; all are asked in every round. With a batch
size, each samples at its own rate; with 0, all sample at 0.1. Accounting is everything in `CentralAccountant`: the
ledger's transactions, quotas, and every client's epsilon after every round.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.flower import private_client
from fedprivacy.flower.simulated import engine
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.server.app import server_app
from fedprivacy.tasks import Recipe, ShardSource
from fedprivacy.tasks.task import Shard

FEATURES = 20


class Synthetic:
    """Two classes in 20 dimensions; client i holds 20 + 7 i mod 381 records."""

    name = dataset = "synthetic"
    metric = "accuracy"
    shard_sizes_public = True
    nominal_shard_size: int | None = None
    recipe = Recipe(rounds=5, local_steps=4, sampling_rate=0.1, clipping_norm=1.0, learning_rate=0.5, delta=1e-3)

    def model(self) -> nn.Module:
        """Logistic regression."""
        return nn.Linear(FEATURES, 2)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each record."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def shard(self, source: ShardSource) -> Shard:
        """Made-up records."""
        number = source.partition_id or 0
        return _records(20 + 7 * number % 381, seed=number)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Accuracy on records of nobody."""
        test = _records(500, seed=10**6)
        return {"accuracy": (model(test.inputs).argmax(1) == test.targets).float().mean().item()}

    def partition(self, num_partitions: int) -> str:
        """The split's name."""
        return f"{num_partitions} made-up shards"


def _records(count: int, seed: int) -> Shard:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(2, (count,), generator=generator)
    return Shard(torch.randn(count, FEATURES, generator=generator) + targets[:, None], targets)


class Watch:
    """Seconds spent in some methods, none of which calls another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def over(self, kind: type, *names: str) -> None:
        """Watch methods of a class."""
        for name in names:
            setattr(kind, name, self._timed(name, getattr(kind, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

        return timed


def main() -> None:
    """Run, and print shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=float, default=10.0)
    options = parser.parse_args()
    watch = Watch()
    watch.over(CentralAccountant, "enrol", "grant", "commit", "void", "spent")
    with tempfile.TemporaryDirectory() as out:
        task = f"{Path(__file__)}:Synthetic"
        given = {"task": task, "clients": options.clients, "rounds": options.rounds, "out": out, "seed": 0}
        if options.batch_size:
            given |= {"batch-size": options.batch_size, "noise-multiplier": 2.0}
        config = resolve(given)
        start = time.perf_counter()
        engine.drive(server_app(config=config), private_client(config=config), config)
        total = time.perf_counter() - start
    found = {"total_s": total, "accounting_share": sum(watch.seconds.values()) / total} | {
        f"{name}_s": seconds for name, seconds in watch.seconds.items()
    }
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:20s} {value:10.4g}")


if __name__ == "__main__":
    main()
