"""Numbers are written as people write them, and never say more than they know."""

import json
import math
from decimal import Decimal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.values.wording import (
    OUT_OF_SCOPE,
    TAMPERED_CODE,
    TRUSTED,
    budget_text,
    delta_text,
    epsilon_text,
    metric_text,
    proved_text,
    question_text,
)


@given(st.floats(1e-6, 1e308))
def test_an_epsilon_is_never_rounded_down_nor_far_up(epsilon):
    excess = Decimal(epsilon_text(epsilon)) - Decimal(repr(epsilon))
    assert 0 <= excess <= Decimal(repr(epsilon)) / 10
    assert excess < Decimal("0.01") or epsilon >= 1e6


@given(st.floats(0, 1e308))
def test_an_epsilon_that_was_proved_is_never_rounded_up_nor_far_down(epsilon):
    missing = Decimal(repr(epsilon)) - Decimal(proved_text(epsilon))
    assert 0 <= missing <= Decimal(repr(epsilon)) / 10
    assert missing < Decimal("0.01") or epsilon >= 1e6


@given(st.floats(0.01, 100), st.floats(0, 1))
def test_an_epsilon_within_its_budget_is_never_shown_above_it(budget, share):
    epsilon = budget * share
    assert epsilon <= float(epsilon_text(epsilon, budget)) <= max(budget, epsilon) * (1 + 1e-11)


def test_numbers_are_written_as_people_write_them():
    assert [epsilon_text(e) for e in (0.0, 2.9912, 3.0, 0.00123, math.inf)] == ["0.00", "3.00", "3.00", "0.0013", "∞"]
    assert epsilon_text(2.9949, budget=2.9949) == "2.9949"
    assert [epsilon_text(e) for e in (999_999.0, 999_999.999, 1e6, 6.4e175)] == ["999999.00", "1e6", "1e6", "6.4e175"]
    assert [budget_text(b) for b in (3.0, 250_000.0, 1e6, 1.5e30)] == ["3", "250000", "1e6", "1.5e30"]
    assert [delta_text(d) for d in (1e-4, 1e-5, 2.5e-7)] == ["1e-4", "1e-5", "2.5e-7"]
    assert metric_text("accuracy", 0.9123) == "91.2\N{NO-BREAK SPACE}%"
    assert [metric_text("mse", v) for v in (0.0294831, math.nan, None)] == ["0.02948", "not a number", "not measured"]


def test_a_question_is_said_in_words_whatever_its_kind():
    said = {
        '{"kind":"count"}': "count",
        '{"column":"sex","kind":"categorical_histogram"}': "categorical histogram of sex",
        '{"columns":["age","bmi","bp"],"kind":"covariance"}': "covariance of age, bmi and bp",
        '{"by":"sex","column":"age","high":120.5,"kind":"mean","low":-1}': "mean of age, from -1 to 120.5, by sex",
        '{"column":"age","edges":[0,50,100],"kind":"histogram","where":null}': "histogram of age, edges 0 50 100",
        "no JSON": "no JSON",
        "[1,2]": "[1,2]",
    }
    assert {question: question_text(question) for question in said} == said


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans() | st.none()
json_values = st.recursive(numbers | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=5)
names = st.sampled_from(["kind", "column", "columns", "low", "high", "edges"]) | st.text()


@given(st.dictionaries(names, json_values) | json_values)
def test_any_question_is_said_and_none_fills_a_page(question):
    assert len(question_text(json.dumps(question))) <= 120


def test_the_threat_model_states_the_limits_of_every_guarantee_as_reports_do():
    """A report that promised more than the threat model would be believed."""
    text = " ".join((Path(__file__).parents[2] / "docs" / "explanation" / "threat-model.md").read_text().split())
    assert TRUSTED in text and TAMPERED_CODE in text
    listed = text[text.index("## Out of scope") :].lower()
    for limit in OUT_OF_SCOPE.removeprefix("Out of scope: ").removesuffix(".").lower().split(", "):
        assert limit.removeprefix("and ") in listed
