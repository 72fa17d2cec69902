"""Values at their edges: budgets, schedules, spreads over clients, and what a file and a notebook hold of them."""

import datetime
import json
import math
from dataclasses import fields
from datetime import UTC, timedelta

import numpy as np
import pytest

import fedprivacy as fp
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.metrics import HeldOut, metrics_of_each, spread_of
from fedprivacy.values.numbers import plain, read_measured, read_unbounded
from fedprivacy.values.runs import AuditResult, Rows
from fedprivacy.values.series import Schedule
from tests.notebook import shown
from tests.runs.store.made_up import spent

SMALLEST, BELOW_ONE = math.ulp(0.0), math.nextafter(1.0, 0.0)


def test_any_positive_epsilon_and_any_probability_but_0_and_1_make_a_budget():
    for epsilon, delta in ((SMALLEST, SMALLEST), (1e300, BELOW_ONE), (math.inf, 0.5)):
        assert PrivacyBudget(epsilon, delta).enforced == (epsilon < math.inf)
    for epsilon in (0.0, -SMALLEST, -math.inf, math.nan):
        with pytest.raises(ValueError, match=r"^epsilon is "):
            PrivacyBudget(epsilon, 0.5)
    for delta in (0.0, -SMALLEST, 1.0, 2.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"^delta is "):
            PrivacyBudget(1.0, delta)


@pytest.mark.parametrize("zone", [UTC, datetime.timezone(timedelta(hours=5, minutes=45))])
@pytest.mark.parametrize(("in_minutes", "expired"), [(-1, True), (0, True), (1, False)])
def test_a_budget_expires_at_its_moment_in_whatever_zone_that_is_written(in_minutes, expired, zone):
    moment = (datetime.datetime.now(UTC) + timedelta(minutes=in_minutes)).astimezone(zone)
    assert Allowance(PrivacyBudget(1.0, 1e-5), "adaptive", moment).expired == expired
    assert not Allowance(PrivacyBudget(1.0, 1e-5), "adaptive").expired


@pytest.mark.parametrize(("local_steps", "every"), [(1, 1), (2, 0), (2, 3), (7, 3), (7, 100)])
def test_the_steps_of_a_run_are_summed_over_its_rounds_whichever_way_they_are_asked_for(local_steps, every):
    schedule = Schedule(local_steps, every)
    summed = np.cumsum([schedule.steps_in(number) for number in range(1, 61)])
    assert schedule.steps_until(np.arange(1, 61)).tolist() == summed.tolist()
    for steps in range(int(summed[-1])):
        assert schedule.rounds_within(steps) == int((summed <= steps).sum())


def test_the_mean_is_of_records_and_the_quartiles_are_of_clients():
    each = {
        "a": HeldOut(90, {"loss": 1.0}),
        "b": HeldOut(10, {"loss": 2.0}),
        "c": HeldOut(100, {"loss": 5.0}),
        "without records": HeldOut(0, {}),
    }
    assert spread_of(each) == {"loss": (pytest.approx(3.05), 1.0, 1.5, 2.0, 3.5, 5.0)}
    assert metrics_of_each(each) == {"each_loss": pytest.approx(3.05), "each_loss_least": 1.0, "each_loss_most": 5.0}
    assert spread_of({"a": HeldOut(3, {"loss": 2.0})}) == {"loss": (2.0,) * 6}
    two = spread_of({"a": HeldOut(1, {"loss": 2.0}), "b": HeldOut(1, {"loss": 4.0})})
    assert two == {"loss": (3.0, 2.0, 2.5, 3.0, 3.5, 4.0)}
    assert spread_of({}) == spread_of({"a": HeldOut(0, {})}) == metrics_of_each({}) == {}


@pytest.mark.parametrize(
    "value",
    [
        spent("a", math.inf, budget=math.inf),
        AuditResult(1.0, "canaries", "", 0.8, 0.95, math.inf, 1e-5, "PLD", "server"),
    ],
)
def test_a_value_is_written_by_its_names_and_read_back_whatever_was_not_finite(value):
    written = plain(value)
    assert list(written) == [field.name for field in fields(value)]
    assert type(value)(**read_unbounded(json.loads(json.dumps(written, allow_nan=False)))) == value
    back = read_measured({"loss": None, "accuracy": 0.5})
    assert math.isnan(back["loss"]) and back["accuracy"] == 0.5


def test_rows_are_a_table_whose_cells_are_escaped_and_which_is_not_too_long():
    rows = Rows({"client_id": f"<b>{number}", "epsilon": 1 / 3, "budget": None} for number in range(60))
    page = shown(rows)
    assert page.startswith("<table><tr><th>client_id</th><th>epsilon</th><th>budget</th></tr>")
    assert "<tr><td>&lt;b&gt;7</td><td>0.333333</td><td>None</td></tr>" in page
    assert page.count("<tr>") == 51 and page.endswith("<p>and 10 more</p>")
    assert shown(Rows([])) == "<table><tr></tr></table>"


def test_answers_are_the_table_of_their_figures(tmp_path):
    asked = fp.ask("cancer", fp.ask.count(), clients=2, spend=1.0, ledger=str(tmp_path / "asked.db"))
    assert repr(asked) == "<Answers of 2 clients to 1 question>"
    assert shown(asked) == shown(asked.federation) and "<td>count</td>" in shown(asked)
