"""Conditions and groups: who meets them, and what is no level."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprivacy as fp
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.conditions import (
    LONGEST_LEVEL,
    MOST_LEVELS,
    OneOf,
    Within,
    as_levels,
    groups_of,
)
from fedprivacy.questions.constructors import Questions

TABLE = fp.Table({"age": [39.9, 40, 59.9, 60, None, "?", " 50 "], "sex": ["f", "m", "f", "m", "f", "f", "x"]})


def met(**where):
    (rows,) = groups_of(TABLE, Questions.count(where=where).where, None)
    return rows.rows.tolist()


def test_a_number_is_from_the_least_on_a_level_is_one_of_a_list_and_all_conditions_are_met_at_once():
    assert met(age=(40, 60)) == [1, 2, 6]
    assert met(sex="f") == [0, 2, 4, 5] and met(sex=["m", "x"]) == [1, 3, 6]
    assert met(sex="f", age=(40, 60)) == [2] and met(age=60.0) == [3]


def test_groups_hold_those_who_meet_the_conditions_in_the_order_of_the_levels():
    (within,) = Questions.count(where={"age": (40, 60)}).where
    groups = list(groups_of(TABLE, [within], OneOf("sex", ("x", "none", "m", "f"))))
    assert [rows.rows.tolist() for rows in groups] == [[6], [], [1], [2]]
    assert [len(rows) for rows in groups] == [1, 0, 1, 1]


def test_a_level_stays_a_text_or_a_number():
    given = ["f", " m ", 3, 4.0, -0.0, 0.5, 1e22, np.int64(7), np.float64(8), np.str_("n"), True, "08"]
    kept = as_levels("a", given[:-1])
    assert kept == ("f", "m", 3, 4, 0, 0.5, 1e22, 7, 8, "n", "True")
    assert [type(level) for level in kept[3:5]] == [int, int]
    with pytest.raises(QuestionError, match="levels 8 and '08' are the same; name each once"):
        as_levels("a", given)


def test_a_condition_and_a_group_compare_the_exact_text():
    table = fp.Table({"site": ["1", "01", "1_0", "1e2", "10", "100", 1, 1.0]})
    for levels, counts in ((("1", "01", "10", "1e2", "100"), [3, 1, 1, 1, 1]), ((1, 10, 100), [4, 1, 2])):
        assert [len(rows) for rows in groups_of(table, [], OneOf("site", levels))] == counts


CELLS = st.sampled_from([0, 1, 7, 0.5, -0.0, 1e22, 2**53 + 1, 2**60, "0", "7.0", "0.50", True, False, "True", None])
LEVELS = st.sampled_from([0, 1, 7, 0.5, -0.0, 1e22, 2.0**60, 2**53 + 1, 2**60 + 1, True, False]) | st.floats(
    allow_nan=False, allow_infinity=False
)


@given(st.lists(CELLS, max_size=5), LEVELS)
def test_the_kept_level_is_that_of_the_same_cells(cells, level):
    try:
        (kept,) = as_levels("a", [level])
    except QuestionError:
        assert len(repr(level)) > LONGEST_LEVEL
        return
    table = fp.Table({"a": cells})
    assert np.array_equal(table.codes("a", [level]), table.codes("a", [kept]))


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([], "has 0 levels; name 1 to"),
        (["a"] * (MOST_LEVELS + 1), f"has {MOST_LEVELS + 1} levels"),
        (["f", " f "], "two levels of a are the same"),
        (["01", 1], "two levels of a are the same"),
        ([0.0, -0.0], "two levels of a are the same"),
        (["  "], "stands for nothing"),
        (["-nan"], "stands for nothing"),
        (["\ud800"], "stands for nothing"),
        ([math.inf], "give a text"),
        ([10**5000], "give a text"),
        (["x" * (LONGEST_LEVEL + 1)], "characters"),
        ([["f"]], "is a list"),
        ("fm", "levels of a is a str; give a list"),
    ],
)
def test_what_is_no_level_is_refused(levels, words):
    with pytest.raises(QuestionError, match=words):
        OneOf("a", levels)


@pytest.mark.parametrize(("least", "below"), [(1, 1), (2, 1), (math.nan, 1), (0, math.inf), ("0", 1), (True, 2)])
def test_a_condition_lies_between_two_numbers(least, below):
    with pytest.raises(QuestionError):
        Within("a", least, below)


def test_a_condition_is_told_with_every_digit_of_its_numbers():
    for least, below, words in [(40, 60, "from 40 to below 60"), (0.1, 1234567.25, "from 0.1 to below 1234567.25")]:
        assert words in Questions.count(where={"x": (least, below)}).sentence


def test_a_condition_that_is_named_twice_is_one():
    """Else the same question would be paid for again."""
    one = Questions.count(where={"ward": ["a", "b"]})
    assert dataclasses.replace(one, where=(*one.where, *Questions.count(where={"ward": ["b", "a"]}).where)) == one
