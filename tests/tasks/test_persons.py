"""A shard of persons: each person's first rows side by side, whoever else is there and in whatever order."""

import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

import fedprivacy as fp
from fedprivacy.tasks.cells import TableError
from fedprivacy.values.unit import missing

INPUTS = torch.arange(14.0).view(7, 2)
TARGETS = torch.arange(7)
PERSONS = ["ann", "bob", "ann", "eve", "ann", "bob", "ann"]


def made(**how):
    return fp.Shard(INPUTS, TARGETS, **{"persons": PERSONS, "most_rows": 3} | how)


def test_each_person_is_a_record_with_its_first_rows_in_the_order_given():
    shard = made()
    assert (len(shard), shard.rows) == (3, 3)
    assert torch.equal(shard.inputs[0], INPUTS[[0, 2, 4]]), "ann's fourth row does not count"
    assert shard.targets[0].tolist() == [0, 2, 4]
    assert torch.equal(shard.inputs[1, :2], INPUTS[[1, 5]])
    assert missing(shard.targets).tolist() == [[False] * 3, [False, False, True], [False, True, True]]
    assert shard.by_row().targets.tolist() == [0, 2, 4, 1, 5, 3]


# --- rows without an identifier ---

NOTHING = [None, math.nan, np.nan, float("nan"), np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), "", " ", b""]
WRITTEN = ["nan", "NaN", "NaT", "None", "<NA>", "NA", "NULL", "a\N{REPLACEMENT CHARACTER}"]  # by astype(str), R, SQL
WRITTEN += ["#NULL!", "#VALUE!", "n/a", "(null)"]  # by SPSS and spreadsheets


def people(persons, **how):
    """The number of persons by Shard, and by Table, whose questions see them."""
    rows = len(persons)
    shard = fp.Shard(torch.rand(rows, 2), torch.arange(rows), persons=persons, most_rows=2)
    table = fp.Table({"a": [1] * rows}, persons=persons, most_rows=2, **how)
    assert int(fp.ask.count().totals(table)[0, 0]) >> 20 == int(table.person_of.max(initial=-1)) + 1
    return len(shard), int(table.person_of.max(initial=-1)) + 1


@pytest.mark.parametrize("nothing", [*NOTHING, *WRITTEN], ids=repr)
def test_a_row_without_an_identifier_is_a_person_by_itself_whatever_it_is(nothing):
    """Also where it is one object in all rows, as np.nan is."""
    for others in ([1, 2], ["ann", "X2"], [np.int64(1), 2]):
        assert people([others[0], nothing, others[1], nothing, others[0], nothing]) == (5, 5)
    assert people([("site", nothing), ("site", nothing), ("site", 1)]) == (3, 3)


def test_a_person_has_one_identifier_in_every_type():
    """Pandas reads a long file in parts: a column of numbers with one text becomes partly numbers, partly texts."""
    for persons in ([1, "1"], [1, np.int64(1)], ["1", np.int32(1)], [1, Decimal("1.0")], [b"a", "a "], ["7.0", 7]):
        assert people(persons) == (1, 1)
    for persons in ([1, "01"], [True, 1], ["3.1", "3.10"], ["1e5", 100_000], [2**53, 2**53 + 1], [(1, 2), (2, 1)]):
        assert people(persons) == (2, 2)


FLOATS = [
    [1.0, 2.0, math.nan],
    [1, 2, np.float32(3)],
    ["ann", 2.5, None],
    np.array([1.0, 2.0, 3.0]),
    np.array([math.nan] * 3),
    pd.Series([1, 2, None]),
    torch.tensor([16777216, 16777217, 16777218], dtype=torch.float32),
    [("site", 1.0), ("site", 2), None],
]


@pytest.mark.parametrize("persons", FLOATS, ids=lambda persons: f"{type(persons).__name__} {list(persons)[:2]}")
def test_floating_point_identifiers_are_refused_with_the_remedy(persons):
    with pytest.raises(ValueError, match=r"persons are floating-point numbers.*astype\('Int64'\)"):
        fp.Shard(torch.rand(3, 2), torch.arange(3), persons=persons, most_rows=2)
    with pytest.raises(TableError, match="persons are floating-point numbers"):
        fp.Table({"a": [1, 2, 3]}, persons=persons, most_rows=2)


def test_what_can_be_no_identifier_is_refused_and_an_empty_array_of_floats_is_not():
    with pytest.raises(ValueError, match="persons hold a list; give a text or a whole number for each row"):
        fp.Shard(torch.rand(1, 2), torch.arange(1), persons=[[1]], most_rows=2)
    for nobody in ([], np.array([]), torch.tensor([])):
        assert people(nobody) == (0, 0)


# --- what a person's rows become ---


def test_rows_that_cannot_be_read_are_left_out_and_a_person_without_another_is_null():
    inputs = INPUTS.clone()
    inputs[2, 1] = inputs[3, 0] = torch.nan
    shard = fp.Shard(inputs, TARGETS, persons=PERSONS, most_rows=3)
    assert shard.null.tolist() == [False, False, True]
    assert shard.targets[0].tolist() == [0, 4, 6], "another row of ann takes the place"
    present = shard.present()
    assert (len(shard), len(present.inputs)) == (3, 2)
    assert not present.inputs.isnan().any()


def test_targets_without_a_value_for_missing_ones_are_refused():
    with pytest.raises(ValueError, match=r"targets are torch\.bool; give persons' targets as whole numbers or floats"):
        fp.Shard(INPUTS, TARGETS > 3, persons=PERSONS, most_rows=2)


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("", 1, "a unit's name is ''"),
        ("patient", 0, "a unit's rows are 0"),
        ("patient", 2.5, r"a unit's rows are 2\.5"),
        ("p" * 41, 1, "at most 40 letters"),
    ],
)
def test_what_is_no_unit_is_refused(name, rows, words):
    with pytest.raises(ValueError, match=words):
        fp.Unit(name, rows)


@pytest.mark.parametrize("text", ["", "patient (at most 08 rows)"])
def test_another_text_is_no_unit(text):
    with pytest.raises(ValueError, match="unit"):
        fp.Unit.of(text)
