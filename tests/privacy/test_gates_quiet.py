"""No gate fails on the code as it is, nor where a release is shrunk after the noise: post-processing is no bug."""

import pytest

from fedprivacy.training.dpsgd import NoisyMean
from tests.privacy.audited_tasks import GATES, SOUND, engines_believed, judged

STATISTICAL = ("noise", "sampling")
EXACT = tuple(gate for gate in GATES if gate not in STATISTICAL)
SETTINGS = list(SOUND)
IN_FULL = ("with a private size", "of a model that imputes, evaluated")
"""Settings that share the least with one another; the soak has all."""


def check_quiet(setting, gates, seed):
    task, settings = SOUND[setting]
    for found in judged(gates, seed, task.__name__, settings):
        assert found.passed, f"{found.name} fails: {found.reasons}"


@pytest.mark.parametrize(
    "seed",
    [
        *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2)),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12)),
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
    check_quiet(setting, EXACT, 5)


@pytest.mark.exhaustive
def test_gates_are_quiet_about_convolutions_and_a_rare_record():
    with engines_believed():
        check_quiet("of curves", ("release", "replay"), 5)


@pytest.mark.exhaustive
def test_gates_are_quiet_about_what_becomes_of_a_sum_that_has_its_noise(monkeypatch):
    release = NoisyMean._noisy_sum

    def shrunk(self, *step):
        released, following = release(self, *step)
        return released * min(1.0, 4.0 * self.mechanism.clipping_norm / max(float(released.norm()), 1e-30)), following

    monkeypatch.setattr(NoisyMean, "_noisy_sum", shrunk)
    with engines_believed():
        check_quiet("with a private size", ("release", "replay", *STATISTICAL), 5)


@pytest.mark.exhaustive
def test_a_model_that_mixes_large_records_is_noticed_or_computed_record_by_record():
    """Whatever the engine does with it, no record may count for more than the clipping norm."""
    assert all(found.passed for found in judged(("replay", "invariance"), 4, "Mixing"))
