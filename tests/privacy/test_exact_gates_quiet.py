"""No exact gate fails on the code as it is, nor where a release is shrunk after the noise."""

import pytest

from tests.privacy.caught import EXACT, check_quiet
from tests.privacy.planted import CORRECT


@pytest.mark.parametrize("setting", CORRECT, ids=lambda setting: setting.meaning)
def test_they_are_quiet(setting):
    check_quiet(setting, EXACT, [5])
