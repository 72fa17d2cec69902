"""Planted bugs that the gate `noise` must catch; see `tests.privacy.planted`."""

import pytest

from tests.privacy.caught import SEEDS, caught_by, check_caught


@pytest.mark.parametrize("plant", caught_by("noise"), ids=lambda plant: plant.meaning)
def test_is_caught(plant):
    check_caught(plant, "noise", SEEDS)
