"""Planted bugs that the gate `replay` must catch; see `tests.privacy.planted`."""

import pytest

from tests.privacy.caught import SEEDS, caught_by, check_caught


@pytest.mark.parametrize("plant", caught_by("replay"), ids=lambda plant: plant.meaning)
def test_is_caught(plant):
    check_caught(plant, "replay", SEEDS)
