"""A shard of persons: each person's first rows side by side, whoever else is there and in whatever order."""

import numpy as np
import pytest
import torch

import fedprivacy as fp
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


@pytest.mark.parametrize("persons", [torch.tensor([5, 2, 5, 9, 5, 2, 5]), [7, "b", "7", None, 7, "b", np.int64(7)]])
def test_persons_are_told_apart_by_any_names(persons):
    assert torch.equal(made(persons=persons).targets, made().targets)


def test_a_person_s_part_depends_on_that_person_s_rows_alone():
    without_bob = [row for row, name in enumerate(PERSONS) if name != "bob"]
    shard = fp.Shard(
        INPUTS[without_bob], TARGETS[without_bob], persons=["ann", "ann", "eve", "ann", "ann"], most_rows=3
    )
    assert torch.equal(shard.inputs, made().inputs[[0, 2]])
    assert torch.equal(shard.targets, made().targets[[0, 2]])


def test_rows_that_cannot_be_read_are_left_out_and_a_person_without_another_is_null():
    inputs = INPUTS.clone()
    inputs[2, 1] = inputs[3, 0] = torch.nan
    shard = fp.Shard(inputs, TARGETS, persons=PERSONS, most_rows=3)
    assert shard.null.tolist() == [False, False, True]
    assert shard.targets[0].tolist() == [0, 4, 6], "another row of ann takes the place"
    present = shard.present()
    assert (len(shard), len(present.inputs)) == (3, 2)
    assert not present.inputs.isnan().any()


def test_targets_that_are_numbers_are_missing_as_nan():
    shard = fp.Shard(INPUTS, TARGETS.double(), persons=PERSONS, most_rows=2)
    assert shard.targets[2].isnan().tolist() == [False, True]


def test_nobody_is_a_shard_too():
    shard = fp.Shard(INPUTS[:0], TARGETS[:0], persons=[], most_rows=3)
    assert (len(shard), shard.inputs.shape) == (0, (0, 3, 2))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"most_rows": None}, "persons and most_rows belong together"),
        ({"most_rows": 0}, "most_rows is 0; give a whole number from 1 to 1024"),
        ({"most_rows": 10**6}, "most_rows is 1000000"),
        ({"persons": PERSONS[:6]}, "7 rows, and persons are 6; give one for each row"),
    ],
)
def test_what_is_no_statement_about_persons_is_refused(how, words):
    with pytest.raises(ValueError, match=words):
        made(**how)


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


@pytest.mark.parametrize("unit", [fp.Unit(), fp.Unit("patient", 8), fp.Unit("eye"), fp.Unit("bed-day", 1024)], ids=str)
def test_a_unit_is_read_as_it_was_written(unit):
    assert fp.Unit.of(str(unit)) == unit


@pytest.mark.parametrize("text", ["", "patient (at most 08 rows)"])
def test_another_text_is_no_unit(text):
    with pytest.raises(ValueError, match="unit"):
        fp.Unit.of(text)
