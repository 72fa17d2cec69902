"""Planted bugs that the gates `release`, `invariance` and `ledger` must catch; see `tests.privacy.planted`."""

import pytest

from tests.privacy.caught import SEEDS, caught_by, check_caught

OTHERS = [(gate, plant) for gate in ("release", "invariance", "ledger") for plant in caught_by(gate)]


@pytest.mark.parametrize(("gate", "plant"), OTHERS, ids=[plant.meaning for _, plant in OTHERS])
def test_is_caught(gate, plant):
    check_caught(plant, gate, SEEDS)
