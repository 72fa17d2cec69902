"""No statistical gate fails on the code as it is, nor where a release is shrunk after the noise."""

import pytest

from tests.privacy.caught import STATISTICAL, check_quiet
from tests.privacy.planted import CORRECT


@pytest.mark.parametrize("seed", range(20))
def test_they_are_quiet(seed):
    """With a false-alarm rate of 1e-6 each; the settings take turns."""
    check_quiet(CORRECT[seed % len(CORRECT)], STATISTICAL, [seed])
