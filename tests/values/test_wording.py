"""Numbers are written as people write them, and never say more than they know."""

import math
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.values.wording import delta_text, epsilon_text, metric_text, proved_text


@given(st.floats(1e-6, 1e4))
def test_an_epsilon_is_never_rounded_down_nor_far_up(epsilon):
    excess = Decimal(epsilon_text(epsilon)) - Decimal(repr(epsilon))
    assert 0 <= excess < Decimal("0.01")
    assert excess <= Decimal(repr(epsilon)) / 10


@given(st.floats(0, 1e4))
def test_an_epsilon_that_was_proved_is_never_rounded_up_nor_far_down(epsilon):
    missing = Decimal(repr(epsilon)) - Decimal(proved_text(epsilon))
    assert 0 <= missing < Decimal("0.01")
    assert missing <= Decimal(repr(epsilon)) / 10


@given(st.floats(0.01, 100), st.floats(0, 1))
def test_an_epsilon_within_its_budget_is_never_shown_above_it(budget, share):
    epsilon = budget * share
    assert epsilon <= float(epsilon_text(epsilon, budget)) <= max(budget, epsilon) * (1 + 1e-11)


def test_numbers_are_written_as_people_write_them():
    assert [epsilon_text(e) for e in (0.0, 2.9912, 3.0, 0.00123, math.inf)] == ["0.00", "3.00", "3.00", "0.0013", "∞"]
    assert epsilon_text(2.9949, budget=2.9949) == "2.9949"
    assert [delta_text(d) for d in (1e-4, 1e-5, 2.5e-7)] == ["1e-4", "1e-5", "2.5e-7"]
    assert metric_text("accuracy", 0.9123) == "91.2\N{NO-BREAK SPACE}%"
    assert [metric_text("mse", v) for v in (0.0294831, math.nan, None)] == ["0.02948", "not a number", "not measured"]
