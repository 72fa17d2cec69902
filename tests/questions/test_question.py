"""A record moves the totals by its own vector, whoever else is there, and by no more than is charged for."""

import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprivacy as fp
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.conditions import as_levels, groups_of
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.questionnaire import KINDS
from fedprivacy.tasks.cells import TableError
from tests.questions.kinds import CORNERS, NULL, every_question, of_every_kind, squared, table_of

EVERY = every_question()


def totals_of(question, records):
    """Totals where numpy and warnings are told to raise: whatever a record holds does not."""
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        return question.totals(table_of(records))


@cache
def vectors_of(place):
    """The vector of each corner when it is alone, for the question in this place."""
    return [totals_of(EVERY[place], [record]) for record in CORNERS]


def named(question):
    return f"{question.kind}{' where' * bool(question.where)}{' by' * bool(question.by)}"


def test_no_kind_is_left_out():
    assert of_every_kind().keys() == KINDS.keys()
    assert all(question.kind == kind for kind, questions in of_every_kind().items() for question in questions)


@pytest.mark.parametrize(("place", "question"), list(enumerate(EVERY)), ids=map(named, EVERY))
def test_one_record_moves_the_totals_by_no_more_than_the_sensitivity_and_some_record_by_all_of_it(place, question):
    shape = (len(question.groups), question.width)
    assert all(vector.shape == shape and vector.dtype == np.int64 for vector in vectors_of(place))
    assert max(map(squared, vectors_of(place))) == question.squared_sensitivity


def test_a_null_record_says_nothing_but_in_a_count_of_all_records():
    """So what its place in a table costs is what its absence does."""
    for question in EVERY:
        counted = question.kind in ("count", "rows") and not question.where and not question.by
        assert squared(question.totals(table_of([NULL]))) == (question.squared_sensitivity if counted else 0)


@given(st.permutations(range(len(CORNERS))), st.integers(0, 6))
def test_totals_are_the_sum_of_each_record_s_own_vector(order, few):
    """So a record changes no other one's vector, not its group, not a shape, and not whether there is an answer.

    Hence tables that differ by a record differ by its vector, and those of two clients add up exactly.
    """
    for place, question in list(enumerate(EVERY))[few::7]:
        for corners in (order, order[:few], []):
            own = sum((vectors_of(place)[corner] for corner in corners), start=np.zeros_like(vectors_of(place)[0]))
            assert np.array_equal(totals_of(question, [CORNERS[corner] for corner in corners]), own)


def test_a_column_that_is_not_there_is_named():
    for question, column in ((asked, column) for asked in EVERY for column in asked.columns):
        others = {name: [1] for name in ("x", "y", "s", "ward", "other") if name != column}
        with pytest.raises(TableError, match=f"no column '{column}'"):
            question.totals(fp.Table(others))


# --- conditions and levels ---


def test_a_number_is_from_the_least_on_a_level_is_one_of_a_list_and_all_conditions_are_met_at_once():
    table = fp.Table({"age": [39.9, 40, 59.9, 60, None, "?", " 50 "], "sex": ["f", "m", "f", "m", "f", "f", "x"]})

    def met(**where):
        (rows,) = groups_of(table, Questions.count(where=where).where, None)
        return rows.rows.tolist()

    assert met(age=(40, 60)) == [1, 2, 6]
    assert met(sex="f") == [0, 2, 4, 5] and met(sex=["m", "x"]) == [1, 3, 6]
    assert met(sex="f", age=(40, 60)) == [2] and met(age=60.0) == [3]


def test_a_level_stays_a_text_or_a_number():
    given = ["f", " m ", 3, 4.0, -0.0, 0.5, 1e22, np.int64(7), np.float64(8), np.str_("n"), True, "08"]
    kept = as_levels("a", given[:-1])
    assert kept == ("f", "m", 3, 4, 0, 0.5, 1e22, 7, 8, "n", "True")
    assert [type(level) for level in kept[3:5]] == [int, int]
    with pytest.raises(QuestionError, match="levels 8 and '08' are the same; name each once"):
        as_levels("a", given)


def test_a_condition_is_told_with_every_digit_of_its_numbers():
    for least, below, words in [(40, 60, "from 40 to below 60"), (0.1, 1234567.25, "from 0.1 to below 1234567.25")]:
        assert words in Questions.count(where={"x": (least, below)}).sentence
