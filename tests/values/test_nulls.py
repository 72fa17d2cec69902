"""A value is written by its names, and comes back as it was, whatever was not finite."""

import json
import math
from dataclasses import fields

import pytest

from fedprivacy.values.numbers import plain, read_measured, read_unbounded
from fedprivacy.values.runs import AuditResult
from tests.runs.store.made_up import spent


@pytest.mark.parametrize(
    "value",
    [
        spent("a", 0.5),
        spent("a", math.inf, budget=math.inf),
        AuditResult(1.0, "canaries", "", 0.8, 0.95, math.inf, 1e-5, "PLD", "server"),
    ],
)
def test_a_value_is_written_by_its_names_and_read_back(value):
    written = plain(value)
    assert list(written) == [field.name for field in fields(value)]
    assert type(value)(**read_unbounded(json.loads(json.dumps(written, allow_nan=False)))) == value


def test_a_measurement_that_was_none_comes_back_as_no_number():
    back = read_measured({"loss": None, "accuracy": 0.5})
    assert math.isnan(back["loss"]) and back["accuracy"] == 0.5
