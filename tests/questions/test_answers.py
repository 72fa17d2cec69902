"""Answers for people: of each client, of the federation, and what was not told."""

import math

import numpy as np
import pytest

from fedprivacy.questions.answers import NOT_TOLD, Answers, Told
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.lattice import STEPS
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import NoisyTotals

COUNT = Questions.count(by={"ward": ["a", "b", "c"]})
MEAN = Questions.mean("age", 0, 100)


def told(sigma, rows, groups=None):
    totals = np.array(rows) * STEPS
    return Told(sigma, NoisyTotals(totals, np.array(groups or [True] * len(rows))))


ANSWERS = Answers(
    Questionnaire((COUNT, MEAN)),
    {
        "south": [told(4.0, [[20], [0], [0]], [True, False, False]), told(1.0, [[100, 50]])],
        "north": [told(3.0, [[30], [7], [0]], [True, True, False]), told(1.0, [[300, -50]])],
    },
)


def test_the_federation_s_figures_are_of_all_clients_records_together():
    a, b, c, *mean = ANSWERS.federation
    assert (a["question"], a["group"], a["figure"]) == ("number of records", "a", "count")
    assert a["value"] == 50.0 and a["error"] == pytest.approx(5.0)
    assert a["low"] == pytest.approx(50 - 1.96 * 5, abs=0.01) and a["high"] == pytest.approx(50 + 1.96 * 5, abs=0.01)
    assert (b["group"], b["value"], b["error"]) == ("b", 7.0, pytest.approx(3.0))
    assert (c["group"], c["figure"], c["value"], c["error"]) == ("c", NOT_TOLD, None, None)
    assert [row["figure"] for row in mean] == ["count", "mean of age"] and all(row["group"] == "" for row in mean)
    assert mean[0]["value"] == 400.0 and mean[0]["error"] == pytest.approx(math.sqrt(2) * math.sqrt(2))
    assert mean[1]["value"] == pytest.approx(50.0)


def test_one_estimate_is_found_by_its_name():
    assert ANSWERS.value("count", "a") == 50.0
    assert ANSWERS.value("mean of age", number=1) == pytest.approx(50.0)
    for name, group in (("count", "c"), ("count", ""), ("median of age", "a"), (NOT_TOLD, "c")):
        with pytest.raises(KeyError, match=name):
            ANSWERS.value(name, group)
    with pytest.raises(KeyError):
        ANSWERS.figures(0, "west")


def test_the_records_of_an_answer_are_those_of_every_group_that_is_told():
    assert ANSWERS.records(0, "north") == 37.0 and ANSWERS.records(0, "south") == 20.0
    assert ANSWERS.records(1, "north") == 300.0


def test_who_does_not_tell_of_a_group_is_named():
    assert ANSWERS.silent() == {"b": ["south"], "c": ["north", "south"]}
    assert ANSWERS.silent(1) == {}
