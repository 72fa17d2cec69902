"""Survival with breast cancer in six regions: Fed-TCGA-BRCA of FLamby, without privacy and with it.

du Terrail et al. 2022, FLamby: Datasets and benchmarks for cross-silo federated learning in realistic healthcare
settings. 1,088 patients of The Cancer Genome Atlas, 39 covariates, six regions, FLamby's own split (866 to train, 222
to test). FLamby trains Cox's model; Cox's loss mixes records, so here it is a discrete-time hazard model, which has a
gradient for each record.

The figure is Harrell's concordance on the 222 test patients of all regions together ("Pooled Test" in FLamby's tables,
whose FedAvg, .735, is the mean of its five seeds; one of them failed at .423). Beside it stand the mean over the six
regions and the weakest region: those test sets have 11 to 63 patients and 1 to 14 deaths.

Nothing in the preprocessing is computed from records: covariates are 0 or 1, age is moved by public constants, the
intervals are years. The settings were chosen by five-fold cross-validation within the 866 training patients (seeds 100
to 103); the test patients were not looked at. That choice read the training records and is charged to nobody, as
is usual in reproductions.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import fedprivacy as fp
from simulations.reproduce.experiment import Measured, Row, Workplace
from simulations.reproduce.survival import concordance_index, expected_risk, hazard_model, survival_loss

REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
"""Names of the regions, in the order of FLamby's split."""

METRICS = ("c-index", "mean of regions", "weakest region")
"""Concordance of all test patients together, its mean over the regions, and the weakest region's."""

RECORDS, SPLIT = "tcga_brca/brca.csv", "tcga_brca/train_test_split.csv"
COVARIATES = 39

AGE, AGE_SCALE = 62.0, 15.0
"""Years. 62 is the median age at which breast cancer is found (SEER, Cancer Stat Facts); the scale is a round guess."""

DAYS = 365.25
YEARS = 10
"""An interval for each of the first ten years; what comes later is censored there."""

HAZARD = 0.03
"""Initial hazard of a patient in a year: about nine in ten live five years (SEER), and some die of something else."""

DELTA = 1e-3
"""The largest region has 248 patients: a quarter of one over their number, which everybody knows."""

SAMPLING_RATE = 0.5
OPEN_ROUNDS, OPEN_LEARNING_RATE = 100, 1.0
ROUNDS, CLIPPING_NORM = 40, 1.0
LEARNING_RATES = {1.0: 0.15, 3.0: 0.3, 8.0: 0.6}
"""Learning rates by epsilon: the more noise, the shorter the way."""


class TcgaBrca(fp.Task):
    """Six regions, whose numbers of patients FLamby tells everybody.

    Args:
        folder: which holds FLamby's `tcga_brca/brca.csv` and `tcga_brca/train_test_split.csv`.
    """

    name = "tcga-brca"
    dataset = "tcga-brca"
    metric = "c-index"
    recipe = fp.Recipe(
        clients=len(REGIONS),
        rounds=ROUNDS,
        sampling_rate=SAMPLING_RATE,
        clipping_norm=CLIPPING_NORM,
        learning_rate=LEARNING_RATES[3.0],
        epsilon=3.0,
        delta=DELTA,
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends = torch.arange(1, YEARS + 1) * DAYS

    def model(self) -> nn.Module:
        """A linear score and ten intercepts."""
        return hazard_model(COVARIATES, YEARS, HAZARD)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of the discrete-time hazard model."""
        return survival_loss(outputs, targets, self.ends.to(outputs.device))

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        """A region's training patients."""
        if source.num_partitions != len(REGIONS):
            raise ValueError(f"clients is {source.num_partitions}; there are {len(REGIONS)} regions.")
        return patients(self.folder)[f"train_{source.partition_id}"]

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """`METRICS` on the test patients, whom FLamby's split makes public here."""
        tests = [patients(self.folder)[f"test_{region}"] for region in range(len(REGIONS))]
        risks = [expected_risk(model(test.inputs)) for test in tests]
        each = [concordance_index(risk, test.targets) for risk, test in zip(risks, tests, strict=True)]
        together = concordance_index(torch.cat(risks), torch.cat([test.targets for test in tests]))
        return dict(zip(METRICS, (together, sum(each) / len(each), min(each)), strict=True))

    def partition(self, num_partitions: int) -> str:
        """Each client is a region."""
        return f"{num_partitions} regions of FLamby's split"


@cache
def patients(folder: Path) -> dict[str, fp.Shard]:
    """The patients of each part of FLamby's split, "train_0" to "test_5"; those in none of them are left out."""
    with (folder / SPLIT).open(newline="") as lines:
        part_of = {row["pid"]: row["fold2"] for row in csv.DictReader(lines)}
    parts: dict[str, list[list[float]]] = {part: [] for part in sorted(set(part_of.values()))}
    with (folder / RECORDS).open(newline="") as lines:
        for pid, age, *rest in list(csv.reader(lines))[1:]:
            if pid in part_of:
                parts[part_of[pid]].append([(float(age) - AGE) / AGE_SCALE, *map(float, rest)])
    tables = {part: torch.tensor(rows) for part, rows in parts.items()}
    return {part: fp.Shard(table[:, :COVARIATES], table[:, COVARIATES:]) for part, table in tables.items()}


@dataclass(frozen=True)
class _TcgaBrca:
    name: str = "tcga-brca"
    title: str = "Survival with breast cancer in six regions"
    source: str = (
        "du Terrail et al. 2022, FLamby: Datasets and benchmarks for cross-silo federated learning in realistic "
        "healthcare settings"
    )
    delta: float = DELTA
    seeds: int = 5

    @property
    def data(self) -> Mapping[str, str]:
        """FLamby keeps both in its repository."""
        where = "https://github.com/owkin/FLamby, flamby/datasets/fed_tcga_brca"
        return {RECORDS: f"{where}/brca.csv", SPLIT: f"{where}/dataset_creation_scripts/train_test_split.csv"}

    @property
    def settings(self) -> Mapping[str, object]:
        return {
            "clients": len(REGIONS),
            "intervals": f"{YEARS} years",
            "age": [AGE, AGE_SCALE],
            "hazard": HAZARD,
            "sampling_rate": SAMPLING_RATE,
            "rounds": ROUNDS,
            "clipping_norm": CLIPPING_NORM,
            "learning_rate": {f"{epsilon:g}": rate for epsilon, rate in LEARNING_RATES.items()},
            "without privacy": {"rounds": OPEN_ROUNDS, "learning_rate": OPEN_LEARNING_RATE},
        }

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for run in ("no privacy", *_BUDGETS) for row in _rows(run))

    def measure(self, seed: int, place: Workplace) -> Iterator[tuple[str, Measured]]:
        task = TcgaBrca(place.data)
        place.tell("without privacy")
        run = fp.simulate(
            task,
            privacy=False,
            rounds=OPEN_ROUNDS,
            learning_rate=OPEN_LEARNING_RATE,
            seed=seed,
            out=place.runs / "no-privacy",
            progress=False,
        )
        yield from _measured("no privacy", run)
        for name, epsilon in _BUDGETS.items():
            place.tell(name)
            run = fp.simulate(
                task,
                epsilon=epsilon,
                learning_rate=LEARNING_RATES[epsilon],
                seed=seed,
                out=place.runs / name.replace(" ", "-"),
                progress=False,
            )
            yield from _measured(name, run)


TCGA_BRCA = _TcgaBrca()

_BUDGETS = {f"epsilon {epsilon:g}": epsilon for epsilon in LEARNING_RATES}


def _rows(run: str) -> Iterator[Row]:
    """FLamby's figures are its FedAvg's: of its five seeds' tables, the pooled test and the mean over the regions."""
    budget = _BUDGETS.get(run)
    goal, published, regions = (0.735, 0.7353, 0.7319) if budget is None else (None, None, None)
    together, each, least = METRICS
    yield Row(run, "C-index, 222 patients", goal, published, line="all patients", budget=budget, metric=together)
    yield Row(
        f"{run}, regions", "C-index, mean of the six regions", None, regions, line="regions", budget=budget, metric=each
    )
    yield Row(f"{run}, weakest", "C-index, weakest region", line="weakest region", budget=budget, metric=least)


def _measured(name: str, run: fp.Run) -> Iterator[tuple[str, Measured]]:
    epsilon = max(client["epsilon"] for client in run.clients) if run.settings["privacy"] else None
    for row in _rows(name):
        yield row.name, Measured(run.metrics[row.metric], epsilon, run.metrics)
