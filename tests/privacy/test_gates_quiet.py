"""No gate fails on the code as it is, nor where a release is shrunk after the noise: post-processing is no bug."""

import pytest

from fedprivacy.training.noisy_mean import NoisyMean
from tests.privacy.audited_tasks import GATES, SOUND, engines_believed, judged
from tests.privacy.selftests import SELF_TESTS

STATISTICAL = ("noise", "sampling")
EXACT = tuple(gate for gate in GATES if gate not in STATISTICAL)
SETTINGS = list(SOUND)
IN_FULL = (
    "with a private size",
    "of sequences that are compared",
    "of a model that imputes",
    "with adaptive clipping",
    "by layer, with Adam",
)
"""Settings that share the least with one another; the soak has all."""

TRAINED_OTHERWISE = ("of sequences that are compared", "of sequences that are read one by one")
TRAINED_OTHERWISE += ("by layer, with Adam", "automatic, with momentum")
BEYOND_TRAINING = ("evaluation", "ledger", *SELF_TESTS)
"""Gates that look past training; the settings that change training alone do without them."""


def check_quiet(setting, gates, seed):
    task, settings = SOUND[setting]
    for found in judged(gates, seed, task.__name__, settings):
        assert found.passed, f"{found.name} fails: {found.reasons}"


@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2)),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 12)),
    ],
)
def test_statistical_gates_are_quiet(seed):
    """With a false-alarm rate of 1e-6 each; the settings take turns."""
    with engines_believed():
        check_quiet(SETTINGS[seed % len(SETTINGS)], STATISTICAL, seed)


@pytest.mark.parametrize(
    "setting",
    [pytest.param(name, marks=pytest.mark.exhaustive if name in IN_FULL else pytest.mark.soak) for name in SETTINGS],
)
def test_exact_gates_are_quiet(setting):
    left_out = BEYOND_TRAINING if setting in TRAINED_OTHERWISE else ()
    check_quiet(setting, [gate for gate in EXACT if gate not in left_out], 5)


@pytest.mark.exhaustive
def test_gates_are_quiet_about_what_becomes_of_a_sum_that_has_its_noise(monkeypatch):
    release = NoisyMean._noisy_sum

    def shrunk(self, *step):
        released, following = release(self, *step)
        return released * min(1.0, 4.0 * self.mechanism.clipping_norm / max(float(released.norm()), 1e-30)), following

    monkeypatch.setattr(NoisyMean, "_noisy_sum", shrunk)
    with engines_believed():
        check_quiet("with a private size", ("release", "replay", *STATISTICAL), 5)
