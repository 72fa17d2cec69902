"""Budgets and their terms at the edges of what they may be."""

import datetime
import math
from datetime import UTC, timedelta

import pytest

from fedprivacy.values.budget import Allowance, PrivacyBudget

SMALLEST, BELOW_ONE = math.ulp(0.0), math.nextafter(1.0, 0.0)


@pytest.mark.parametrize(("epsilon", "delta"), [(SMALLEST, SMALLEST), (1e300, BELOW_ONE), (math.inf, 0.5)])
def test_any_positive_epsilon_and_any_probability_but_0_and_1_make_a_budget(epsilon, delta):
    assert PrivacyBudget(epsilon, delta).enforced == (epsilon < math.inf)


@pytest.mark.parametrize(
    ("epsilon", "delta", "named"),
    [
        *((epsilon, 0.5, "epsilon") for epsilon in (0.0, -SMALLEST, -math.inf, math.nan)),
        *((1.0, delta, "delta") for delta in (0.0, -SMALLEST, 1.0, 2.0, math.inf, math.nan)),
    ],
)
def test_what_promises_nothing_or_cannot_be_is_no_budget(epsilon, delta, named):
    with pytest.raises(ValueError, match=f"^{named} is "):
        PrivacyBudget(epsilon, delta)


@pytest.mark.parametrize("zone", [UTC, datetime.timezone(timedelta(hours=5, minutes=45))])
@pytest.mark.parametrize(("in_minutes", "expired"), [(-1e6, True), (-1, True), (0, True), (1, False), (1e6, False)])
def test_a_budget_expires_at_its_moment_in_whatever_zone_that_is_written(in_minutes, expired, zone):
    moment = (datetime.datetime.now(UTC) + timedelta(minutes=in_minutes)).astimezone(zone)
    assert Allowance(PrivacyBudget(1.0, 1e-5), "adaptive", moment).expired == expired
    assert not Allowance(PrivacyBudget(1.0, 1e-5), "adaptive").expired
