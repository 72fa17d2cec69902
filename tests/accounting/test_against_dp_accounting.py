"""A thousand random settings against dp_accounting 0.6.0, whose answers are stored: see `dp_accounting_table`."""

from __future__ import annotations

import functools

import pytest

from fedprivacy.accounting import pld
from tests.accounting import dp_accounting_table as table

TABLE = table.stored()
LIVE = [*range(0, table.ROWS, 100), table.ROWS - 50, table.ROWS - 1]


@functools.cache
def ours(index: int) -> float:
    return pld.epsilon(TABLE[index].events, TABLE[index].delta)


def test_the_table_covers_what_it_says() -> None:
    assert len(TABLE) == table.ROWS == 1000
    assert [len(row.history) > 1 for row in TABLE] == [index >= table.MIXED_FROM for index in range(table.ROWS)]
    assert all(0.0 <= row.optimistic <= row.pessimistic <= table.LARGEST_EPSILON for row in TABLE)
    deltas = [row.delta for row in TABLE]
    rates, noise, steps = zip(*(mechanism for row in TABLE for mechanism in row.history), strict=True)
    assert rates.count(1.0) >= 10
    assert min(rates) < 1.1e-4
    assert min(noise) < 0.31
    assert max(noise) > 19.0
    assert min(steps) == 1
    assert max(steps) > 19_000
    assert min(deltas) < 1.1e-10
    assert max(deltas) > 9e-4


def test_never_below_the_optimistic_epsilon() -> None:
    below = [(row, ours(i)) for i, row in enumerate(TABLE) if ours(i) < row.optimistic * (1.0 - 1e-9)]
    assert below == []


def test_at_most_a_percent_above_the_pessimistic_epsilon() -> None:
    above = [(row, ours(i)) for i, row in enumerate(TABLE) if ours(i) > row.pessimistic * 1.01]
    assert above == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("index", LIVE)
def test_the_table_is_what_dp_accounting_says_today(index: int) -> None:
    row = TABLE[index]
    # Where its grid is coarse, the last bit of a processor's exponential moves a figure by 1e-4 of itself.
    assert table.epsilon(row, pessimistic=True) == pytest.approx(row.pessimistic, rel=1e-3)
    assert table.epsilon(row, pessimistic=False) == pytest.approx(row.optimistic, rel=1e-3)


@pytest.mark.parametrize("index", LIVE)
def test_a_row_is_drawn_from_its_seed(index: int) -> None:
    drawn = table.settings(index)
    assert any(
        (row.history, row.delta) == (TABLE[index].history, TABLE[index].delta)
        for row, _ in zip(drawn, range(50), strict=False)
    )
