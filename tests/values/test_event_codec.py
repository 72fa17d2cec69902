"""An event becomes data and comes back as it was; what is none is refused."""

import json

import pytest

from fedprivacy.values.events import (
    MECHANISMS,
    ROW,
    FixedSizeSampledGaussian,
    NeighbouringRelation,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    TruncatedPoissonSampledGaussian,
    as_fields,
    as_row,
    from_fields,
    from_row,
)

EVENTS = [
    PoissonSampledGaussian(0.1, 1.5, NeighbouringRelation.ZERO_OUT),
    PoissonSampledLaplace(0.1, 1.5),
    RandomizedResponse(3, 0.5),
    FixedSizeSampledGaussian(5, 100, 1.2),
    TruncatedPoissonSampledGaussian(0.1, 1.0, 100, 20),
]


WRITTEN = """[
    {"mechanism": "poisson-sampled-gaussian", "sampling_rate": 0.1, "noise_multiplier": 1.5, "relation": "zero-out"},
    {"mechanism": "poisson-sampled-laplace", "sampling_rate": 0.1, "noise_multiplier": 1.5,
     "relation": "add-or-remove-one"},
    {"mechanism": "randomized-response", "categories": 3, "uniform_probability": 0.5, "relation": "replace-one"},
    {"mechanism": "fixed-size-sampled-gaussian", "sample_size": 5, "records": 100, "noise_multiplier": 1.2,
     "relation": "replace-one"},
    {"mechanism": "truncated-poisson-sampled-gaussian", "sampling_rate": 0.1, "noise_multiplier": 1.0, "records": 100,
     "largest_sample": 20, "relation": "zero-out"}
]"""
"""As version 0.2.0 writes `EVENTS`. Lines may be added here; none may ever be changed."""


def through_json(value):
    return json.loads(json.dumps(value))


def test_what_an_earlier_version_wrote_is_read_for_ever():
    written = json.loads(WRITTEN)
    assert {type(event) for event in EVENTS} == set(MECHANISMS.values()), "no mechanism is left out"
    assert [from_fields(fields) for fields in written] == EVENTS
    assert [as_fields(event) for event in EVENTS] == written


def test_what_a_run_charges_comes_back_from_its_row_and_nothing_else_has_one():
    event = EVENTS[0]
    assert through_json(as_row(event)) == [0.1, 1.5, "zero-out"]
    assert from_row(through_json(as_row(event))) == event
    assert dict(zip(ROW, as_row(event), strict=True)) == {name: getattr(event, name) for name in ROW}
    with pytest.raises(TypeError, match="PoissonSampledLaplace has no row"):
        as_row(EVENTS[1])


@pytest.mark.parametrize(
    "row",
    [
        [0.1, 1.0],
        [True, 1.0, "zero-out"],
        ["0.1", 1.0, "zero-out"],
        [0.1, None, "zero-out"],
        [0.1, 10**400, "zero-out"],
        [0.1, float("nan"), "zero-out"],
        [1.5, 1.0, "zero-out"],
        [0.1, 1.0, 7],
    ],
)
def test_a_row_that_is_none_is_refused(row):
    with pytest.raises(ValueError):
        from_row(row)
