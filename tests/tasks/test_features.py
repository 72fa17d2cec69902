"""Cells become inputs: numbers, dates and categories, on both sides of each edge, empty cells included."""

import math

import numpy as np
import pytest

import fedprivacy as fp
from fedprivacy.tasks.cells import Notation
from fedprivacy.tasks.splits import Splittable

NAN = [math.nan]


@pytest.mark.parametrize(
    ("reader", "cells"),
    [
        (fp.Number(60, 15, limit=2), {"60": [0.0], "90": [2.0], "91": [2.0], "30": [-2.0], "-999": [-2.0], "": NAN}),
        (fp.Number(60, 15), {"999": [62.6], "-840": [-60.0], "inf": NAN, "": NAN}),
        (fp.Number(60, 15, missing=75), {"": [1.0], "75": [1.0], "x": NAN}),
        (fp.Number(60, 15, indicate_missing=True), {"": [0.0, 1.0], "60": [0.0, 0.0], "x": [math.nan, 0.0]}),
        (fp.Number(60, 15, missing=75, indicate_missing=True), {"": [1.0, 1.0], "75": [1.0, 0.0]}),
        (fp.Date(since="2000-01-01"), {"2000-01-01": [0.0], "1999-12-31": [-1.0], "2000-01-02T23:59:59": [1.0]}),
        (fp.Date(1.0, 2.0, since="2000-01-01"), {"2000-01-08": [3.0], "": NAN, "2000-13-01": NAN}),
        (fp.Category(["f", "m"]), {"f": [1.0, 0.0], "m": [0.0, 1.0], "x": NAN * 2, "": NAN * 2}),
        (fp.Category(["f", "m"], missing="m"), {"": [0.0, 1.0], "x": NAN * 2}),
        (fp.Category(["f", "m"], other=True), {"x": [0.0, 0.0, 1.0], "f": [1.0, 0.0, 0.0], "": NAN * 3}),
        (fp.Category(["f", "m"], indicate_missing=True), {"": [0.0, 0.0, 1.0], "f": [1.0, 0.0, 0.0], "x": NAN * 3}),
        (fp.Category(["f", "m"], missing="m", indicate_missing=True), {"": [0.0, 1.0, 1.0], "m": [0.0, 1.0, 0.0]}),
        (fp.Category(["f"], other=True, indicate_missing=True), {"": [0.0, 0.0, 1.0], "x": [0.0, 1.0, 0.0]}),
        (
            fp.Category(["E10", "E11"], prefix=3),
            {"E11.9": [0.0, 1.0], "E10": [1.0, 0.0], "E1": NAN * 2, "E12": NAN * 2},
        ),
    ],
    ids=repr,
)
def test_a_cell_becomes_what_its_reader_says(reader, cells):
    for cell, inputs in cells.items():
        np.testing.assert_allclose(reader.inputs(cell), inputs, err_msg=repr(cell))


def test_a_code_s_beginning_is_compared_in_whatever_way_cells_are_written():
    codes, either = fp.Category(["E10", "E11"], prefix=3), Notation(".", True, ("NA",))
    assert codes.inputs("e11.9", either) == [0.0, 1.0] and codes.inputs("E10.1", either) == [1.0, 0.0]
    assert all(map(math.isnan, codes.inputs("e11.9")))


@pytest.mark.parametrize(("unit", "days"), [("days", 1.0), ("months", 146_097 / 4800), ("years", 146_097 / 400)])
def test_months_and_years_are_of_mean_length(unit, days):
    """Four hundred years have 146,097 days; a small share of that shows after a lifetime."""
    reader = fp.Date(since="1600-01-01", unit=unit)
    assert reader.inputs("2000-01-01") == [pytest.approx(146_097 / days, rel=1e-12)]
    assert reader.inputs("1600-01-31") == [pytest.approx(30 / days, rel=1e-12)]


def test_a_person_s_class_is_that_of_the_first_row():
    persons = np.repeat(np.arange(60), 3)
    targets = np.random.default_rng(0).integers(0, 2, 180)
    first = targets[::3].repeat(3)
    parts, expected = (fp.ByDirichlet(0.3).rows(Splittable({}, each, persons), 3) for each in (targets, first))
    assert [part.tolist() for part in parts] == [part.tolist() for part in expected]
    assert sorted(np.concatenate(parts)) == list(range(180))
