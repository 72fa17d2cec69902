"""The name of a run's way of learning, for people."""

import pytest

from fedprivacy.values.series import RunFacts


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"strategy": "fedavg"}, "fedavg"),  # of an earlier version
        ({"strategy": "fedavg", "algorithm": "fedavg"}, "fedavg"),
        ({"strategy": "fedadam", "algorithm": "fedavg"}, "fedadam"),
        ({"strategy": "fedavg", "algorithm": "mr-mtl"}, "mr-mtl"),
        ({"strategy": "averaging.py:median", "algorithm": "scaffold"}, "scaffold, median"),
    ],
)
def test_how_it_learns_is_its_algorithm_and_its_strategy_where_they_are_not_the_usual(settings, told):
    facts = object.__new__(RunFacts)
    object.__setattr__(facts, "settings", settings)
    assert facts.strategy == told
