"""No gate fails on the code as it is, nor where a release is shrunk after the noise."""

import pytest

from tests.privacy.caught import GATES, check_quiet
from tests.privacy.planted import CORRECT

STATISTICAL = ["noise", "sampling"]
EXACT = [gate for gate in GATES if gate not in STATISTICAL]


@pytest.mark.parametrize("seed", range(20))
def test_statistical_gates_are_quiet(seed):
    """With a false-alarm rate of 1e-6 each; the settings take turns."""
    check_quiet(CORRECT[seed % len(CORRECT)], STATISTICAL, [seed])


@pytest.mark.parametrize("setting", CORRECT, ids=lambda setting: setting.meaning)
def test_exact_gates_are_quiet(setting):
    check_quiet(setting, EXACT, [5])
