"""dp_accounting's epsilons for 250 random settings, by `python -m tests.accounting.dp_accounting_table`.

A row of `dp_accounting_table.json` is `[history, delta, optimistic, pessimistic]`. A history is a list of `[sampling
rate, noise multiplier, steps]`; the last two are the epsilons of its privacy loss distribution, rounded down and up, at
dp_accounting's own grid step of 1e-4. Row i is drawn from the seed `[SEED, i]` and from nothing else.

A setting is drawn again where epsilon is above `LARGEST_EPSILON`: about one setting in 26.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from fedprivacy.values.events import PoissonSampledGaussian

FILE = Path(__file__).with_suffix(".json")
ROWS, MIXED_FROM = 250, 225  # from this row on, a history holds two to four mechanisms
SEED = 20_261_121
LARGEST_EPSILON = 500.0
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One setting, and what dp_accounting says of it."""

    history: tuple[tuple[float, float, int], ...]
    delta: float
    optimistic: float = 0.0
    pessimistic: float = math.inf

    @property
    def events(self) -> dict[PoissonSampledGaussian, int]:
        return {PoissonSampledGaussian(q, noise): steps for q, noise, steps in self.history}


def stored() -> list[Row]:
    """The table as it was last written."""
    rows = json.loads(FILE.read_text())
    return [Row(tuple((q, noise, steps) for q, noise, steps in history), *rest) for history, *rest in rows]


def epsilon(row: Row, pessimistic: bool) -> float:
    """dp_accounting's upper or lower bound."""
    from dp_accounting.pld import privacy_loss_distribution

    losses = [
        privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=q, pessimistic_estimate=pessimistic, use_connect_dots=pessimistic
        ).self_compose(steps)
        for q, noise, steps in row.history
    ]
    return float(reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(row.delta))


def mean_loss(row: Row) -> float:
    """Mean of the privacy loss, in nats: below epsilon at any small delta."""
    z, total = np.linspace(-9.0, 9.0, 2001), 0.0
    weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    for q, noise, steps in row.history:
        for share, x in ((1.0 - q, z * noise), (q, z * noise + 1.0)):
            total += steps * share * float(weights @ np.log1p(q * np.expm1((2.0 * x - 1.0) / (2.0 * noise**2))))
    return total


def settings(index: int) -> Iterator[Row]:
    """Settings for row `index`, without end; the first that can be answered is taken."""
    rng = np.random.default_rng([SEED, index])

    def drawn(low: float, high: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.5g}")

    def mechanism() -> tuple[float, float, int]:
        q = 1.0 if rng.random() < 0.02 else drawn(1e-4, 1.0)
        return q, drawn(0.3, 20.0), round(drawn(1.0, 20_000.0))

    for _ in itertools.count():
        size = 1 if index < MIXED_FROM else int(rng.integers(2, 5))
        yield Row(tuple(mechanism() for _ in range(size)), drawn(1e-10, 1e-3))


def answered(index: int) -> Row:
    """Row `index`: the first of its settings whose epsilon is not too large."""
    for row in settings(index):
        if mean_loss(row) <= LARGEST_EPSILON and (upper := epsilon(row, pessimistic=True)) <= LARGEST_EPSILON:
            return replace(row, optimistic=epsilon(row, pessimistic=False), pessimistic=upper)
    raise AssertionError("settings end")


def main() -> None:
    """Write the table, in about five minutes of processor time."""
    with multiprocessing.Pool(WORKERS) as pool:
        rows = pool.imap(answered, range(ROWS))
        lines = [json.dumps([row.history, row.delta, row.optimistic, row.pessimistic]) for row in rows]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
