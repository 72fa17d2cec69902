"""How good recommended settings are: next to the best of a grid that was tried on the test set.

    python -m benchmarks.recommend [--json] [--data ../shared/data] [--tasks digits,cancer,...] [--seeds 5]

`fedprivacy recommend` sees no record. Its opponent may look: every setting of a grid around the recommended one (other
learning rates, clipping norms, numbers of rounds), and the task's own recipe, is trained with seeds 100 and 101, and
the best on the public test set is tuned. Both then train with seeds 0 to 4, which nobody has seen. Figures are in
points, a hundredth of accuracy, of C-index or of squared error of scores in [0, 1]; a positive gap is what tuning would
gain.

School: 139 schools, 15,362 pupils, a linear model of exam scores; a fifth of each school is public (Liu et al. 2022).
MNIST: ten clients with 6,000 digits each, a linear classifier of scattering features; it takes an hour.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import loadmat
from torch import Tensor, nn

import fedprivacy as fp
from simulations.reproduce.mnist import ScatteredMnist, features
from simulations.reproduce.tcga_brca import TcgaBrca

Settings = dict[str, Any]

TUNING_SEEDS = (100, 101)
PATHS = (0.25, 0.5, 1.0, 2.0, 4.0)
CLIPPING_NORMS = (0.1, 1.0)
ROUNDS = (30, 300)

PERCENTAGES, LARGEST_SCORE = [3, 4], 70.0
"""Columns of the schools' features that hold percentages; the others are 0 or 1."""


class School(fp.Task):
    """Exam scores of 139 schools' pupils, from 28 columns: indicators, and two percentages."""

    dataset = "school"
    metric = "squared error"
    recipe = fp.Recipe(
        clients=139, rounds=200, sampling_rate=0.5, clipping_norm=1.0, learning_rate=0.01, epsilon=6.0, delta=1e-3
    )

    def __init__(self, data: Path) -> None:
        self.file = data / "school.mat"

    @cached_property
    def schools(self) -> list[tuple[fp.Shard, fp.Shard]]:
        """Every school's pupils, a fifth of them public."""
        tables, random = loadmat(self.file), np.random.default_rng(0)
        schools = []
        for pupils, scores in zip(tables["X"][0], tables["Y"][0], strict=True):
            order = random.permutation(len(pupils))
            inputs = pupils[order].astype(np.float32)
            inputs[:, PERCENTAGES] /= 100.0
            shard = fp.Shard(torch.tensor(inputs), torch.tensor(scores[order, 0] / LARGEST_SCORE, dtype=torch.float32))
            held_out = round(len(order) / 5)
            schools.append((_rows(shard, slice(held_out, None)), _rows(shard, slice(held_out))))
        return schools

    def model(self) -> nn.Module:
        """Linear regression."""
        return nn.Linear(28, 1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Squared error."""
        return (outputs[:, 0] - targets).square()

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        """A school's other pupils."""
        return self.schools[source.partition_id or 0][0]

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """On the public pupils."""
        public = [public for _, public in self.schools]
        errors = [self.loss(model(shard.inputs), shard.targets) for shard in public]
        return {"squared error": torch.cat(errors).mean().item()}


def _rows(shard: fp.Shard, rows: slice) -> fp.Shard:
    return fp.Shard(shard.inputs[rows], shard.targets[rows])


@dataclass(frozen=True)
class Contest:
    """One task and one budget.

    Attributes:
        task: makes the task, from the folder of data.
        clients: how many.
        epsilon: the budget.
        sign: 1 where more of the metric is better, else -1.
    """

    task: Callable[[Path], fp.Task]
    clients: int
    epsilon: float
    sign: float = 1.0


CONTESTS = {
    "digits": Contest(lambda _: fp.tasks.Digits(), 10, 3.0),
    "cancer": Contest(lambda _: fp.tasks.Cancer(), 5, 2.0),
    "school": Contest(School, 139, 6.0, -1.0),
    "mnist": Contest(lambda data: ScatteredMnist(features(data)), 10, 3.0),
    "tcga-1": Contest(TcgaBrca, 6, 1.0),
    "tcga-3": Contest(TcgaBrca, 6, 3.0),
    "tcga-8": Contest(TcgaBrca, 6, 8.0),
}


def around(recommended: Settings, recipe: fp.Recipe) -> Iterator[tuple[str, Settings]]:
    """Every other setting that is tried, with what is different."""
    rate, rounds = recommended["learning_rate"], recommended["rounds"]
    for longer in PATHS:
        yield f"learning rate x {longer:g}", {**recommended, "learning_rate": rate * longer}
    for norm in CLIPPING_NORMS:
        for longer in PATHS[1:-1]:
            same_path = rate * recommended["clipping_norm"] / norm
            changed = {"clipping_norm": norm, "learning_rate": same_path * longer}
            yield f"clipping norm {norm:g}, learning rate x {longer:g}", recommended | changed
    for other in ROUNDS:
        yield f"{other} rounds", recommended | {"rounds": other, "learning_rate": rate * rounds / other}
    own = {name: getattr(recipe, name) for name in recommended if name not in ("clients", "epsilon", "delta")}
    yield "the recipe", recommended | own


def contest(chosen: Contest, data: Path, seeds: int, runs: Path) -> dict[str, Any]:
    """What both reach."""
    task, number = chosen.task(data), count()

    def trained(settings: Settings, seed: int) -> float:
        run = fp.simulate(task, **settings, seed=seed, out=runs / str(next(number)), progress=False)
        return float(run.metrics[task.metric])

    recommended = fp.recommend(task, clients=chosen.clients, epsilon=chosen.epsilon).settings
    tried = dict(around(recommended, task.recipe))
    scores = {words: statistics.fmean(trained(tried[words], seed) for seed in TUNING_SEEDS) for words in tried}
    best = max(tried, key=lambda words: chosen.sign * scores[words])
    ours = [trained(recommended, seed) for seed in range(seeds)]
    tuned = [trained(tried[best], seed) for seed in range(seeds)]
    gap = 100.0 * chosen.sign * (statistics.fmean(tuned) - statistics.fmean(ours))
    return {
        "metric": task.metric,
        "recommended": statistics.fmean(ours),
        "tuned": statistics.fmean(tuned),
        "gap_points": gap,
        "standard_error": 100.0 * statistics.stdev(t - o for t, o in zip(tuned, ours, strict=True)) / seeds**0.5,
        "best": best,
        "tried": scores,
        "settings": {name: value for name, value in recommended.items() if name != "optimizer"},
    }


def main() -> None:
    """Train, and print what was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tasks", default=",".join(CONTESTS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in options.tasks.split(","):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as runs:
            found[name] = contest(CONTESTS[name], options.data, options.seeds, Path(runs))
        seconds = time.monotonic() - began
        if not options.json:
            print(_line(name, found[name], seconds), flush=True)
    if options.json:
        print(json.dumps(found))


def _line(name: str, found: dict[str, Any], seconds: float) -> str:
    return (
        f"{name:8s} {found['metric']:13s} recommended {found['recommended']:.4f}, tuned {found['tuned']:.4f} "
        f"({found['best']}): gap {found['gap_points']:+.2f} +- {found['standard_error']:.2f} points, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
