"""Texts by how they begin: a record is counted in its place, once at most."""

import math

import numpy as np
import pytest

import fedprivacy as fp
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.lattice import STEPS
from fedprivacy.questions.prefixes import MOST_PREFIXES
from tests.questions.kinds import Odd

# fmt: off
CELLS = ["A", "A0", "A01", " A01 ", "A0\n", "B", "b", "BÄ", "BA\u0308", "C", "", "  ", None, math.nan, "nan", 10, 1.5,
         True, Odd(), 10**5000, "A" * 10_000, "A\ud800", "\ud800", "😀", "😀!", "X y", "Xy", np.float32("nan"), b"A"]
QUESTIONS = [
    Questions.prefixes("icd", ["A0", "B"], ["A0"]),
    Questions.prefixes("icd", ["A", "BÄ", "BA", "1", "n", "N", "T", "X "], ["A01", "nan", "B", "1.5"]),
    Questions.prefixes("icd", [], ["A", "B"]),
    Questions.prefixes("icd", ["😀", "A" * 256]),
    Questions.prefixes("icd", ["A"], ["B"], where={"ward": "a"}),
    Questions.prefixes("icd", ["A"], ["B"], by={"ward": ["a", "b"]}),
]
# fmt: on


def table_of(cells, wards=None):
    return fp.Table({"icd": list(cells), "ward": wards or ["a"] * len(cells)})


def counted(question, cells):
    """Counts by bin, those that are not zero."""
    counts = (question.totals(table_of(cells))[0] / STEPS).tolist()
    return {name: count for name, count in zip(question.bins, counts, strict=True) if count}


def test_a_text_is_counted_where_it_is_whole_else_where_it_begins_else_with_the_others():
    question = Questions.prefixes("icd", ["A0", "B"], ["A0"])
    assert counted(question, ["A0", " A0 ", "A01", "A099", "B", "C", "A", "", None]) == {
        "A0...": 2,
        "B...": 1,
        "A0": 2,
        "other": 2,
    }


def test_an_empty_cell_is_nowhere_and_what_has_no_text_is_empty():
    question = Questions.prefixes("icd", ["n", "N"])
    assert counted(question, [None, "", " ", math.nan, Odd(), 10**5000]) == {}
    assert counted(question, ["nan", "None"]) == {"n...": 1, "N...": 1}
    assert counted(question, np.array([1.0, math.nan])) == {"other": 1}


def test_characters_count_as_they_are_written():
    question = Questions.prefixes("icd", ["Ä", "😀"], ["x y"])
    assert counted(question, ["Äb", "A\u0308b", "äb", "😀!", "x y", "x  y"]) == {
        "Ä...": 1,
        "😀...": 1,
        "x y": 1,
        "other": 3,
    }


def test_numbers_are_texts_whole_ones_without_decimals():
    question = Questions.prefixes("icd", ["1"], ["2", "True"])
    assert counted(question, np.array([10, 1, 2])) == {"1...": 2, "2": 1}
    assert counted(question, np.array([10.5, 2.0])) == {"1...": 1, "2": 1}
    assert counted(Questions.prefixes("icd", ["1"], ["2.0"]), np.array([10, 2])) == {"1...": 1, "2.0": 1}
    assert counted(question, np.array([True, False])) == {"True": 1, "other": 1}


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_record_moves_one_count_by_one_whatever_it_holds(question):
    vectors = [question.totals(table_of([cell])) for cell in CELLS]
    assert all(vector.dtype == np.int64 and vector.min() >= 0 for vector in vectors)
    assert {int(vector.sum()) for vector in vectors} <= {0, STEPS}
    assert max(int((vector.astype(object) ** 2).sum()) for vector in vectors) == question.squared_sensitivity
    assert not question.totals(table_of([])).any()


def test_the_same_column_is_read_by_several_questions():
    table = table_of(["A0", "B", "A1", None])
    for prefix, count in (("A", 2), ("B", 1), ("A", 2), ("A1", 1)):
        assert Questions.prefixes("icd", [prefix]).totals(table)[0, 0] == count * STEPS


@pytest.mark.parametrize(
    ("prefixes", "whole", "why"),
    [
        ([], [], "0 prefixes"),
        (["A", "B", "A"], [], "'A' begins with 'A'"),
        (["AB", "B", "A"], [], "'AB' begins with 'A'"),
        ([], ["A", "A"], "same"),
        ([""], [], "''"),
        ([" A"], [], "blanks"),
        ([], ["A "], "blanks"),
        ([1], [], "1"),
        (["A" * 257], [], "256"),
        (["\ud800"], [], "written"),
        ("AB", [], "list"),
        ([f"{n:05}" for n in range(MOST_PREFIXES)], ["A"], "32769"),
    ],
)
def test_what_is_no_beginning_is_refused(prefixes, whole, why):
    with pytest.raises(QuestionError, match=why):
        Questions.prefixes("icd", prefixes, whole)


def test_a_beginning_may_end_with_a_blank_and_be_a_whole_text_too():
    assert counted(Questions.prefixes("icd", ["x "], ["x"]), ["x", "x y", "xy"]) == {"x ...": 1, "x": 1, "other": 1}
