"""All planted bugs with twenty seeds each, and the correct code with as many, in every setting."""

import pytest

from tests.privacy.caught import GATES, check_caught, check_quiet
from tests.privacy.planted import CORRECT, PLANTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.meaning)
def test_is_caught_whatever_the_seed(plant):
    check_caught(plant, plant.gates[0], range(3, 20))


@pytest.mark.parametrize("setting", CORRECT, ids=lambda setting: setting.meaning)
def test_nothing_is_found_where_nothing_is_wrong(setting):
    check_quiet(setting, list(GATES), range(10, 30))
