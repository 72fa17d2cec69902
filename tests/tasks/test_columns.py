"""A client's records by column: what is read of a record depends on its own cell, and no cell makes reading fail."""

import datetime
import math
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import fedprivacy as fp
from fedprivacy.tasks.cells import TableError
from tests.questions.kinds import Odd


class Worded(str):
    """A text that is equal to every other one, and says something else."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("f")

    def strip(self, *_):
        raise RuntimeError("no")


class Speaker:
    """It has a text, of a type of its own."""

    def __str__(self):
        return Worded(" f ")


# fmt: off
HUGE = 10**5000  # too large for a float, and for the digits that Python prints
WORDS = ["f", " f", "m", "70", " 70 ", "7e1", "-0.0", "1e999", "nan", "inf", "-Infinity", "0x10", "1_0", "٣", "", "  ",
         "True", "1", "1.0", "f" * 10_000]
PLAIN = [None, True, False, 0, 1, 0.0, -0.0, 1.0, math.nan, math.inf, HUGE, 2**1024, -(2**1024), 2**53 + 1]
ODD = [Odd(), Worded("m"), Speaker(), b"70", b"\xff", bytearray(b"1"), [70], [[1], [2]], {}, (), {"a": 1}, {1},
       object(), 1j, Decimal("sNaN"), Decimal("70"), Fraction(1, 2), Fraction(HUGE), datetime.date(2020, 1, 1),
       np.float32(0.1), np.datetime64("NaT"), np.array([70.0]), np.array(70.0), np.ma.masked, float]
NESTED = st.recursive(st.none() | st.integers(), st.lists, max_leaves=3)
CELLS = st.one_of(
    st.sampled_from([*WORDS, *PLAIN, *ODD]), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=3),
    NESTED,
)
def not_refused(levels):
    """The levels without those that are refused beside the ones before them."""
    kept = []
    for level in levels:
        try:
            fp.Table({"a": []}).codes("a", [*kept, level])
        except TableError:
            continue
        kept.append(level)
    return kept


LEVELS = st.lists(
    st.sampled_from(["f", " m ", "1", "1.0", "-0.0", "70.0", "True", "nan", "inf", "", 0, 1, 1.0, -0.0, True, False,
                     None, math.nan, math.inf, np.float32(0.1), np.int64(7), HUGE, 2**53, 2**53 + 1, b"70"])
    | st.floats() | st.integers(),
    max_size=6,
).map(not_refused)
DTYPES = ["f8", ">f8", "f4", "f2", "g", "i8", "u8", "i1", "u2", "?", "U3", "S2", "M8[D]", "M8[ns]", "m8[s]", "c16"]
EXTREMES = {"f": [0.1, -0.0, np.nan, np.inf, -np.inf], "i": [0, 1, -1], "u": [0, 1]}
# fmt: on


def columns_of(dtype):
    extremes, usual = EXTREMES.get(np.dtype(dtype).kind), arrays.from_dtype(np.dtype(dtype))
    elements = st.sampled_from(extremes) | usual if extremes else usual
    return arrays.arrays(dtype, st.integers(0, 5), elements=elements)


ARRAYS = st.one_of(map(columns_of, DTYPES))


def readings(column, levels=()):
    """All that is read of each record, comparable: bits of numbers, codes, texts."""
    table = fp.Table({"other": [None] * len(column), "it": column})
    bits, empty = table.numbers("it").view(np.int64), table.empty("it")
    return list(zip(bits.tolist(), table.codes("it", levels).tolist(), table.texts("it"), empty.tolist(), strict=True))


# --- what a cell says ---


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        (["f", " f "], "levels 'f' and ' f ' are the same; name each once"),
        ([1, "01"], "levels 1 and '01' are the same"),
        (["1.0", 1], "levels 1 and '1.0' are the same"),
        (["7", "7.0"], "levels '7' and '7.0' are the same"),
        ([1, 1.0], "levels 1 and 1.0 are the same"),
        (["f", ""], "level '' stands for nothing, or is missing; give another, or none"),
        ([None], "level None stands for nothing"),
        ([math.nan], "level nan stands for nothing"),
        ([HUGE], "level of type int stands for nothing"),
    ],
)
def test_levels_of_which_a_cell_could_be_two_or_can_be_none_are_refused(levels, words):
    for column in (["1", "2"], [1, 2], np.array([1, 2]), np.array([1.0, 2.0]), np.array(["1", "2"])):
        with pytest.raises(TableError, match=words):
            fp.Table({"a": column}).codes("a", levels)


# --- one record at a time ---


@given(st.lists(CELLS, max_size=6) | ARRAYS, LEVELS)
def test_what_is_read_of_a_column_is_what_is_read_of_each_cell_alone(column, levels):
    """And nothing is raised where numpy and warnings are told to raise."""
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert readings(column, levels) == [readings(column[n : n + 1], levels)[0] for n in range(len(column))]


def test_equal_cells_of_different_types_are_each_read_as_what_they_are():
    for cells in ([1, True, 1.0], [True, 1.0, 1], [1.0, 1, True]):
        codes = dict(zip(map(type, cells), fp.Table({"a": cells}).codes("a", ["True", "1"]).tolist(), strict=True))
        assert codes == {bool: 0, int: 1, float: 1}
    assert fp.Table({"a": [Worded("m"), "f", Worded("m")]}).codes("a", ["f", "m"]).tolist() == [1, 0, 1]


def test_of_masked_cells_nothing_is_read():
    column = np.ma.array([70.0, 1e9, 60.0], mask=[False, True, False])
    table = fp.Table({"a": column})
    assert np.array_equal(table.numbers("a"), [70, np.nan, 60], equal_nan=True)
    assert table.codes("a", [1e9, 60]).tolist() == [-1, -1, 1] and table.texts("a") == ["70", "", "60"]


def test_an_array_of_texts_that_holds_none_at_a_place_is_read_at_the_others():
    column = np.array([102, 0x110000, 109], np.uint32).view("U1")
    assert fp.Table({"a": column}).codes("a", ["f", "m"]).tolist() == [0, -1, 1]


# --- shapes, types, and what a table is ---


def test_a_column_that_is_not_there_is_named_with_those_that_are_and_no_cell():
    table = fp.Table({"age": ["secret"], "sex": ["hidden"]})
    for read in (table.numbers, table.texts, lambda column: table.codes(column, [1])):
        with pytest.raises(TableError, match=r"^the table has no column 'weight'; it has age, sex\.$"):
            read("weight")
    assert repr(table) == "Table(age, sex)"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "no column; give one at least"),
        ({"a": [1], "b": [1, 2]}, "differ in length"),
        ({"a": [1], 7: [1]}, "name is a int; give a text"),
        ({"a": "text"}, "column 'a' is a str; give a list or an array"),
        ({"a": (n for n in range(3))}, "column 'a' is a generator"),
        ({"a": np.zeros((2, 2))}, "column 'a' has 2 dimensions"),
        ({"a": np.zeros(())}, "column 'a' has 0 dimensions"),
    ],
)
def test_what_is_no_table_is_refused_with_the_remedy(columns, words):
    with pytest.raises(TableError, match=words):
        fp.Table(columns)


def test_what_is_read_again_is_the_same_whatever_was_read_between():
    """A table keeps some of what it has read; levels that are equal in Python are kept apart."""
    table = fp.Table({"a": ["x", "y", 1, True, "1.0"], "b": ["y", "y", "x", "", None]})
    levels = [["x"], ["y", "x"], ["1"], [1], [True], [1.0], *([str(n)] for n in range(2, 100))]
    first = [(table.codes(name, each).tolist(), table.empty(name).tolist()) for each in levels for name in "ab"]
    assert first == [(table.codes(name, each).tolist(), table.empty(name).tolist()) for each in levels for name in "ab"]
    alone = [fp.Table({name: table.columns[name]}).codes(name, each).tolist() for each in levels for name in "ab"]
    assert [codes for codes, _ in first] == alone
    with pytest.raises(ValueError, match="read-only"):
        table.codes("a", ["x"])[0] = 5
