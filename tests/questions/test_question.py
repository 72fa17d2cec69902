"""A record moves the totals by its own vector, whoever else is there, and by no more than is charged for."""

import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprivacy as fp
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.conditions import Within
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.counts import Count
from fedprivacy.questions.moments import Bounded, Mean
from fedprivacy.questions.questionnaire import KINDS
from fedprivacy.tasks.cells import TableError
from tests.questions.kinds import CORNERS, GROUPS, NULL, Odd, every_question, of_every_kind, squared, table_of

EVERY = every_question()


@cache
def vectors_of(place):
    """The vector of each corner when it is alone, for the question in this place."""
    return [EVERY[place].totals(table_of([record])) for record in CORNERS]


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
            assert np.array_equal(question.totals(table_of([CORNERS[corner] for corner in corners])), own)


def test_nothing_is_raised_or_warned_of_whatever_a_record_holds_and_numpy_is_told():
    tiny, wide = (0.0, 2e-100), (-1e100, 1e100)
    extremes = [
        Questions.histogram("x", *tiny, 3),
        Questions.median("x", *tiny, 16),
        Questions.mean("x", *tiny),
        Questions.covariance({"x": wide, "y": tiny}),
        Questions.sum("x", *wide),
    ]
    records = [*CORNERS, (1.7e308, 1e-300, Odd(), Odd())]
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for question in [*EVERY, *extremes]:
            question.totals(table_of(records))


def test_a_whole_number_beyond_float_s_is_exact():
    """A float's sum would lose the last steps; these are whole numbers from record to total."""
    table = fp.Table({"x": np.full(100_001, 1e-7)})
    (totals,) = Questions.mean("x", -1, 1).totals(table)
    one = Questions.mean("x", -1, 1).totals(fp.Table({"x": [1e-7]}))[0]
    assert totals.tolist() == [100_001 * entry for entry in one.tolist()]


def test_a_record_is_in_one_group_at_most_and_groups_are_answered_for_themselves():
    table = fp.Table({"x": [1, 2, 3, 4], "ward": ["a", "b", "a", "z"]})
    question = Questions.histogram("x", 0, 5, 5, by=GROUPS)
    alone = [Questions.histogram("x", 0, 5, 5, where={"ward": ward}).totals(table)[0] for ward in ("a", "b")]
    assert np.array_equal(question.totals(table), alone) and question.groups == ["a", "b"]


def test_a_column_that_is_not_there_is_named():
    for question, column in ((asked, column) for asked in EVERY for column in asked.columns):
        others = {name: [1] for name in ("x", "y", "s", "ward", "other") if name != column}
        with pytest.raises(TableError, match=f"no column '{column}'"):
            question.totals(fp.Table(others))


def test_what_is_no_condition_no_group_and_no_column_with_bounds_is_refused():
    of = Bounded("a", 0, 1), Bounded("a", 0, 2)
    for kind, fields in (
        (Count, {"where": ({"column": "sex"},)}),
        (Count, {"where": tuple(Within("x", n, n + 1) for n in range(65))}),
        (Count, {"by": Within("x", 0, 1)}),
        (Mean, {"of": of}),
        (Mean, {"of": ()}),
        (Mean, {"of": (("a", 0, 1),)}),
        (Questions.count, {"where": {"sex": {"f"}}}),
    ):
        with pytest.raises(QuestionError):
            kind(**fields)
