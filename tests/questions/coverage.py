"""Coverage of stated 95 % intervals: the share that holds the exact answer, by kind of question and of data.

Exact answers are numpy's, from the records, clipped to the bounds. Noise is drawn by the release's own function;
figures are those that people read, of several clients together where a case has several.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

import fedprivacy as fp
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import add_lattice_noise
from fedprivacy.questions.answers import Told, figures_of
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import NoisyTotals, deviation

LOW, HIGH = 0.0, 120.0


def _heaped(random, count):
    return np.where(random.random(count) < 0.8, 65.0, random.uniform(LOW, HIGH, count))


SHAPES = {
    "smooth": lambda random: random.normal(60.0, 12.0, 2000),
    "whole numbers": lambda random: np.floor(random.normal(60.0, 12.0, 2000)),
    "days of stay": lambda random: np.floor(random.exponential(4.0, 1000)),
    "ties": lambda random: _heaped(random, 1000),
    "one value": lambda random: np.full(800, 37.3),
    "all at a bound": lambda random: np.full(800, LOW),
    "all beyond": lambda random: np.full(800, 1e300),
    "half at each bound": lambda random: np.repeat([-1e300, HIGH], 400),
    "two records": lambda random: np.array([20.0, 90.0]),
    "two at a bound": lambda random: np.array([120.0, 120.0]),
    "ten records": lambda random: np.floor(random.uniform(20.0, 90.0, 10)),
    "forty at a bound": lambda random: np.full(40, HIGH),
    "forty records": lambda random: np.floor(random.uniform(20.0, 90.0, 40)),
    "a million": lambda random: np.where(np.arange(10**6) % 3 > 0, 36.6, 71.3),
}
"""Numbers x of a case's records; y depends on x."""


def table(x, seed=0):
    """Records with two numbers and a category."""
    random = np.random.default_rng(seed)
    known = np.clip(x, LOW, HIGH)
    y = np.where(np.ptp(known) > 0.0, known, 50.0) * 0.5 + np.rint(random.normal(0.0, 8.0, len(x)))
    return {"x": x, "y": y, "s": np.where(np.arange(len(x)) % 4 < 3, "f", "m")}


def asked(**clauses):
    """Return a question of every kind that states numbers."""
    both = {"x": (LOW, HIGH), "y": (-50.0, 150.0)}
    return (
        Questions.count(**clauses),
        Questions.categories("s", ["f", "m", "x"], **clauses),
        Questions.heavy_hitters("s", ["f", "m", "x"], 2, **clauses),
        Questions.histogram("x", LOW, HIGH, 12, **clauses),
        Questions.sum("x", LOW, HIGH, **clauses),
        Questions.sum("y", -50.0, 150.0, **clauses),
        Questions.mean("x", LOW, HIGH, **clauses),
        Questions.mean_and_scale(both, **clauses),
        Questions.covariance(both, **clauses),
        Questions.quantiles("x", LOW, HIGH, (0.1, 0.5, 0.9), **clauses),
    )


KINDS = {
    "count": "counts", "rows": "counts", "categories": "levels", "heavy-hitters": "most frequent levels",
    "histogram": "histograms", "sum": "sums", "quantiles": "quantiles",
    "mean": "means", "standard": "standard deviations", "covariance": "covariances", "correlation": "correlations",
}  # fmt: skip


def kind_of(question, name):
    """Return the kind of a figure, for people."""
    first = name.split()[0]
    return KINDS[
        question.kind
        if question.kind in ("categories", "heavy-hitters", "histogram")
        else first
        if first in KINDS
        else "quantiles"
    ]


def exact(question, columns):
    """Return exact figures by name: numpy's, in no way the product's."""
    records = len(columns["x"])
    found = {"count": records}
    match question.kind:
        case "categories" | "heavy-hitters":
            found |= {level: np.count_nonzero(columns["s"] == level) for level in question.levels}
            found["other"] = records - sum(found[level] for level in question.levels)
        case "histogram":
            edges = np.linspace(question.low, question.high, question.intervals + 1)
            counts = np.histogram(np.clip(columns["x"], question.low, question.high), edges)[0]
            names = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)]
            found |= dict(zip(names, counts.tolist(), strict=True))
        case "quantiles":
            clipped = np.clip(columns["x"], question.low, question.high)
            for at in question.at:
                found[("median" if at == 0.5 else f"quantile {at:g}") + " of x"] = np.quantile(clipped, at)
        case "sum" | "mean" | "spread" | "covariance":
            clipped = {each.column: np.clip(columns[each.column], each.low, each.high) for each in question.of}
            found |= _moments(clipped) if records else {}
    return found


def _moments(columns):
    found, records, off = {}, len(columns["x"] if "x" in columns else columns["y"]), {}
    for name, values in columns.items():
        found[f"sum of {name}"] = math.fsum(values)
        found[f"mean of {name}"] = mean = math.fsum(values) / records
        off[name] = values - mean
        found[f"standard deviation of {name}"] = math.sqrt(math.fsum(off[name] ** 2) / records)
    for one, other in itertools.combinations_with_replacement(columns, 2):
        found[f"covariance of {one} and {other}"] = covariance = math.fsum(off[one] * off[other]) / records
        scale = math.prod(found[f"standard deviation of {name}"] for name in (one, other))
        found[f"correlation of {one} and {other}"] = np.clip(covariance / scale, -1, 1) if scale > 1e-9 else math.nan
    return found


@dataclass(frozen=True)
class Case:
    """Records of clients, and the noise multiplier of a question to each of them.

    Attributes:
        name: name for people.
        tables: records of each client.
        columns: numbers and categories of each record, or person, of all clients together.
        sigmas: noise multiplier for each client.
        clauses: conditions and groups of the questions.
    """

    name: str
    tables: list
    columns: dict
    sigmas: list
    clauses: dict = field(default_factory=dict)

    def chosen(self, level):
        """Return the columns of the records that a question is about."""
        least, below = self.clauses.get("where", {"x": (-math.inf, math.inf)})["x"]
        kept = (self.columns["x"] >= least) & (self.columns["x"] < below)
        return {
            name: each[kept & (self.columns["s"] == level if level else True)] for name, each in self.columns.items()
        }


def one_client(shape, sigma):
    """Make a case of one client with records of some shape."""
    columns = table(SHAPES[shape](np.random.default_rng(1)))
    return Case(f"{shape}, sigma {sigma:g}", [fp.Table(columns)], columns, [sigma])


def three_clients():
    """Make a case of clients that differ in their records and in their noise."""
    random = np.random.default_rng(2)
    parts = [table(SHAPES["days of stay"](random)), table(SHAPES["one value"](random)), table(np.array([3.0]))]
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Case("three clients", [fp.Table(part) for part in parts], together, [1.0, 4.0, 0.5])


def with_others():
    """Make a case of a question that is asked together with three others, at the least share."""
    shared = Questionnaire(asked()[:4], (1, 2, 3, 4)).noise_multipliers(2.0)
    return replace(one_client("days of stay", shared[0]), name="asked with three others")


def grouped():
    """Make a case of questions by category about records that meet a condition."""
    clauses = {"by": {"s": ["f", "m"]}, "where": {"x": (2.0, 9.0)}}
    return replace(one_client("days of stay", 2.0), name="groups, with a condition", clauses=clauses)


def persons():
    """Make a case of persons with one to four rows: the means of their numbers and the first categories count."""
    ends = np.cumsum(np.random.default_rng(4).integers(1, 5, 600))
    columns = table(SHAPES["whole numbers"](np.random.default_rng(5)))
    rows = {name: each[: ends[-1]] for name, each in columns.items()}
    each = {name: np.split(values, ends[:-1]) for name, values in rows.items()}
    own = {name: np.array([values.mean() for values in each[name]]) for name in ("x", "y")}
    own["s"] = np.array([values[0] for values in each["s"]])
    names = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)).tolist()
    return Case("persons with several rows", [fp.Table(rows, persons=names, most_rows=4)], own, [3.0])


CASES = {
    f"{shape}, sigma {sigma:g}": partial(one_client, shape, sigma) for shape in SHAPES for sigma in (0.05, 1.0, 10.0)
} | {"three clients": three_clients, "with others": with_others, "grouped": grouped, "persons": persons}
"""Functions that make each case."""


@dataclass(frozen=True)
class Measured:
    """One figure in many releases.

    Attributes:
        kind: kind of the figure.
        told: number of releases that state it.
        held: number of those whose interval holds the exact value.
        off: root mean square of the difference from the exact value, over that of the stated errors.
    """

    kind: str
    told: int
    held: int
    off: float


def measured(question, case, seeds):
    """Measure each figure of a question, by its name and group; those without an exact value are left out."""
    noisy = []
    for client, (own, sigma) in enumerate(zip(case.tables, case.sigmas, strict=True)):
        totals = question.totals(own).astype(np.float64)
        copies = torch.from_numpy(np.tile(totals.ravel(), (seeds, 1)))
        named = f"{case.name}, {question.sentence}, client-{client}"  # no two draw the same noise
        read = Keystream.from_seed(1, named).reader(Purpose.ANSWERS, Position(1, 1))
        drawn = add_lattice_noise(copies, deviation(question, sigma), 1.0, read).numpy().astype(np.int64)
        noisy.append((sigma, drawn.reshape(seeds, *totals.shape)))
    truths = {level: exact(question, case.chosen(level)) for level in question.groups}
    everything = np.ones(len(question.groups), dtype=bool)
    seen = defaultdict(list)
    for seed in range(seeds):
        told = [Told(sigma, NoisyTotals(rows[seed], everything)) for sigma, rows in noisy]
        for figure in figures_of(question, told):
            if figure.value is not None and not math.isnan(right := truths[figure.group][figure.name]):
                assert figure.low <= figure.value <= figure.high
                held = figure.low <= right <= figure.high
                seen[figure.name, figure.group].append((held, figure.value - right, figure.error))
    found = {}
    for (name, group), rows in seen.items():
        held, off, errors = np.array(rows).T
        found[name, group] = Measured(
            kind_of(question, name), len(rows), int(held.sum()), np.linalg.norm(off) / np.linalg.norm(errors)
        )
    return found
