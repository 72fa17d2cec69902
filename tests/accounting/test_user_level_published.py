"""User-level epsilons of settings that papers, tutorials and benchmarks have published, against dp_accounting's PLD."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from fedprivacy.accounting.views import UserLevelAccount
from fedprivacy.values.budget import PrivacyBudget


class Published(NamedTuple):
    """A setting: q, z, rounds, delta; and the epsilon that was published for it, an upper bound, if one is known."""

    rate: float
    noise_multiplier: float
    rounds: int
    delta: float
    epsilon: float | None


SETTINGS = {
    # McMahan, Ramage, Talwar, Zhang 2018 (arXiv 1710.06963), introduction: 763,430 users, 5,000 expected in a round.
    "McMahan et al., Reddit": Published(5_000 / 763_430, 1.0, 5_000, 1e-9, 4.634),
    # The same, table 1: delta = K^-1.1. Its moments accountant converts as of 2017.
    "McMahan et al., K = 1e5": Published(1e2 / 1e5, 1.0, 10_000, 1e5**-1.1, None),
    "McMahan et al., K = 1e6": Published(1e4 / 1e6, 1.0, 1_000, 1e6**-1.1, None),
    "McMahan et al., K = 1e6, z = 3": Published(1e3 / 1e6, 3.0, 100_000, 1e6**-1.1, None),
    # tensorflow_federated's tutorial "Differential Privacy in TFF": EMNIST's 3,383 writers of digits, 120 in a round,
    # adaptive clipping by Andrew et al. 2021.
    "TFF's tutorial": Published(120 / 3_383, 1.2, 100, 1e-5, 2.0),
}


def of_dp_accounting(rate, noise, rounds, interval=1e-4):
    """Its accountant after so many rounds."""
    import dp_accounting
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=interval)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return accountant.compose(event, rounds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_published_setting_costs_what_dp_accounting_says(setting: Published) -> None:
    account = UserLevelAccount()
    account.record(setting.rate, setting.noise_multiplier, setting.rounds)
    ours = account.epsilon(setting.delta).value
    interval = 1e-4 if setting.rounds <= 5_000 else 1e-5
    oracle = of_dp_accounting(setting.rate, setting.noise_multiplier, setting.rounds, interval)
    assert ours == pytest.approx(oracle.get_epsilon(setting.delta), rel=5e-3)
    if setting.epsilon is not None:
        assert ours <= setting.epsilon


def test_the_noise_of_pfl_research_s_benchmark_meets_its_epsilon() -> None:
    """apple/pfl-research, its CIFAR-10 benchmark: epsilon 2 at 1e-6, 1,500 rounds, 1,000 of a million.

    Its noise is solved for by dp_accounting's PLD; ours is held against the same.
    """
    rate, rounds, budget = 1_000 / 1e6, 1_500, PrivacyBudget(2.0, 1e-6)
    ours = UserLevelAccount().noise_multiplier(budget, rate, rounds)
    oracle = of_dp_accounting(rate, ours, rounds)
    assert 0.995 * budget.epsilon <= oracle.get_epsilon(budget.delta) <= 1.002 * budget.epsilon
