"""250 random settings against dp_accounting 0.6.0, whose answers are stored: see `dp_accounting_table`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedprivacy.accounting import pld
from tests.accounting import dp_accounting_table as table

TABLE = table.stored()
SOME = [*TABLE[::12], *TABLE[table.MIXED_FROM :: 5]]


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
