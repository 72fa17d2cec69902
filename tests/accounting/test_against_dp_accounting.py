"""Answers of others: dp_accounting 0.6.0 of 250 random settings (`dp_accounting_table`), and what papers published."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedprivacy.accounting import pld, rdp
from fedprivacy.values.events import PoissonSampledGaussian
from tests.accounting import dp_accounting_table as table

TABLE = table.stored()
SOME = [*TABLE[::12], *TABLE[table.MIXED_FROM :: 5]]
PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "published_epsilons.csv"


@pytest.mark.parametrize(
    "rows", [pytest.param(SOME, id="some"), pytest.param(TABLE, id="all", marks=pytest.mark.exhaustive)]
)
def test_never_below_the_optimistic_epsilon_and_at_most_a_percent_above_the_pessimistic(
    rows: Sequence[table.Row],
) -> None:
    found = [(row, pld.epsilon(row.events, row.delta)) for row in rows]
    assert [each for each in found if each[1] < each[0].optimistic * (1.0 - 1e-9)] == []
    assert [each for each in found if each[1] > each[0].pessimistic * 1.01] == []


@pytest.mark.soak
@pytest.mark.parametrize("index", [0, 120, table.ROWS - 1])
def test_the_table_is_what_dp_accounting_says_today(index: int) -> None:
    row = TABLE[index]
    # Where its grid is coarse, the last bit of a processor's exponential moves a figure by 1e-4 of itself.
    assert table.epsilon(row, pessimistic=True) == pytest.approx(row.pessimistic, rel=1e-3)
    assert table.epsilon(row, pessimistic=False) == pytest.approx(row.optimistic, rel=1e-3)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the table of published epsilons is not beside the repository")
def test_ours_is_what_was_published_where_that_was_exact_and_below_it_elsewhere() -> None:
    with PUBLISHED.open(newline="") as handle:
        for row in csv.DictReader(handle):
            history = {PoissonSampledGaussian(float(row["q"]), float(row["sigma"])): int(row["steps"])}
            by_pld, by_rdp = (accountant.epsilon(history, float(row["delta"])) for accountant in (pld, rdp))
            published = float(row["published_eps"])
            assert by_pld == pytest.approx(float(row["dp_accounting_pld"]), rel=5e-4)
            match row["use"], row["accountant"].split()[0]:
                case "upper-bound-only", _:
                    assert by_pld <= by_rdp <= published
                case "exact-match", "pld":
                    assert by_pld == pytest.approx(published, rel=5e-4)
                case "exact-match", "rdp":
                    assert by_rdp == pytest.approx(published, rel=5e-4)
                case "exact-match", "opacus":  # its PRV publishes an upper bound
                    assert by_pld == pytest.approx(float(row["exact_pld"]), rel=5e-4)
                    assert by_pld <= published
                case use:
                    pytest.fail(f"{use} is checked by nothing")
