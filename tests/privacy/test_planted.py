"""Every planted bug is caught by the gate that is for it; with twenty seeds: `python -m benchmarks.audit_power`."""

import pytest

from tests.privacy.caught import found
from tests.privacy.planted import PLANTS

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.meaning)
def test_is_caught(plant):
    gate = plant.gates[0]
    (judged,) = found(plant, [gate], seed=0)
    assert not judged.passed, f"{gate} does not notice: {plant.meaning}"
    assert all(reason.endswith(".") for reason in judged.reasons)
