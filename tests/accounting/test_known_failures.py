"""What other accountants are known to get wrong, and what is right.

The assertions are about ours alone, so that nothing here breaks on the day that a peer is repaired. A peer that is
installed (Opacus is not among the tests' requirements) is run beside ours where that takes a moment; its answer is kept
as a property of the test (`pytest --junit-xml`). Answers in the text are those of Opacus 1.6.0 and dp_accounting 0.6.0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

from fedprivacy.accounting import pld, rdp
from fedprivacy.accounting.histories import extended
from fedprivacy.values.events import Event, History, PoissonSampledGaussian
from tests.accounting.oracles import composed_delta, gaussian_epsilon, single_step_epsilon

Record = Callable[[str, object], None]


def history_of(q: float, s: float, n: int) -> dict[Event, int]:
    return {PoissonSampledGaussian(q, s): n}


def opacus_epsilon(accountant: str, q: float, s: float, n: int, delta: float) -> float | str:
    """What Opacus answers, or why it does not."""
    try:
        from opacus import accountants
    except ImportError:
        return "not installed"
    peer = getattr(accountants, accountant)()
    peer.history = [(s, q, n)]
    try:
        return float(peer.get_epsilon(delta))
    except (ValueError, RuntimeError) as error:
        return repr(error)


def dp_accounting_rdp(q: float, s: float, n: int, delta: float) -> float:
    peer = RdpAccountant()
    peer.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(s)), n)
    return float(peer.get_epsilon(delta))


def exact_share(history: History, epsilon: float, delta: float) -> float:
    """Exact delta at `epsilon` as a share of `delta`; removing a record dominates in all of these settings."""
    return composed_delta(history, epsilon, remove=True) / delta


# --- too small: a guarantee that does not hold ----------------------------------------------------------------------


def test_an_upper_bound_is_above_the_truth(record_property: Record) -> None:
    """Opacus' PRV answers 3.9131, below the true 3.9143."""
    setting = 0.01, 1.0, 1000, 1e-12
    ours = pld.epsilon(history_of(*setting[:3]), 1e-12)
    record_property("opacus PRV", opacus_epsilon("PRVAccountant", *setting))
    assert exact_share(history_of(*setting[:3]), 3.9142, 1e-12) > 1.0
    assert 0.99 <= exact_share(history_of(*setting[:3]), ours, 1e-12) <= 1.0


def test_few_steps_at_a_small_rate_are_no_gaussian(record_property: Record) -> None:
    """The central limit that Opacus' GDP accountant takes for the truth is 0.0218, 5.8 times too little."""
    setting = 0.001, 0.7, 10, 1e-5
    ours = pld.epsilon(history_of(*setting[:3]), 1e-5)
    record_property("opacus GDP", opacus_epsilon("GaussianAccountant", *setting))
    assert ours == pytest.approx(0.1269, abs=1e-4)
    assert 0.99 <= exact_share(history_of(*setting[:3]), ours, 1e-5) <= 1.0


def test_repetitions_count(record_property: Record) -> None:
    """dp_accounting's PLD charges 50 randomised responses for one: 1.10 where 50.5 is true."""
    peer = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    peer.compose(dp_accounting.RandomizedResponseDpEvent(0.5, 2), 50)
    record_property("dp_accounting PLD", peer.get_epsilon(1e-5))
    event = PoissonSampledGaussian(1.0, 10.0)
    one_by_one: dict[Event, int] = {}
    for _ in range(50):
        one_by_one = extended(one_by_one, event, 1)
    ours, exact = pld.epsilon({event: 50}, 1e-5), gaussian_epsilon(math.sqrt(50) / 10, 1e-5)
    assert exact <= ours <= 1.001 * exact
    assert pld.epsilon(one_by_one, 1e-5) == pld.epsilons(event, [50], 1e-5)[0] == ours
    assert pld.epsilons(event, [20], 1e-5, past={event: 30})[0] == ours


@pytest.mark.parametrize(
    ("q", "s", "n", "delta"), [(1e-3, 10.0, 1, 1e-3), (1e-3, 10.0, 10, 1e-2), (0.01, 1.0, 1000, 0.3)]
)
def test_no_epsilon_is_negative(q: float, s: float, n: int, delta: float, record_property: Record) -> None:
    """opacus#585: its RDP answers 0.029, -0.009 and -0.10, its PRV 0.009, -0.00004 and -0.28."""
    for accountant in ("RDPAccountant", "PRVAccountant"):
        record_property(f"opacus {accountant}", opacus_epsilon(accountant, q, s, n, delta))
    history = history_of(q, s, n)
    assert exact_share(history, 1e-9, delta) < 1.0
    assert pld.epsilon(history, delta) == rdp.epsilon(history, delta) == 0.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("q", "s", "n"), [(1e-8, 1.0, 10**6), (1e-8, 5.0, 10**6), (1e-9, 0.5, 10**8), (1e-9, 10.0, 10**6)]
)
def test_a_tiny_rate_costs_little_and_not_less_than_nothing(
    q: float, s: float, n: int, record_property: Record
) -> None:
    """A_a - 1 is below 1e-16 here: a moments accountant that computes A_a answers noise around 0, or 0."""
    record_property("dp_accounting RDP", dp_accounting_rdp(q, s, n, 1e-5))
    orders = np.array([2.0, 3.0])
    assert rdp.rdp(PoissonSampledGaussian(q, s), orders) == pytest.approx(
        [math.log1p(q**2 * math.expm1(s**-2)), 0.5 * math.log1p(3 * q**2 * math.expm1(s**-2))], rel=1e-6
    )
    assert 0.0 <= pld.epsilon(history_of(q, s, n), 1e-5) < 0.01


# --- too large: noise and steps wasted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "s", "n", "delta"), [(0.05, 0.8, 50_000, 1e-6), (0.5, 1.0, 1000, 1e-5), (0.2, 0.5, 1000, 1e-5)]
)
def test_fractional_orders_do_not_add_absolute_values(
    q: float, s: float, n: int, delta: float, record_property: Record
) -> None:
    """dp_accounting's RDP answers 384, 346 and 665; the truth is 291, 219 and 282."""
    record_property("dp_accounting RDP", dp_accounting_rdp(q, s, n, delta))
    history = history_of(q, s, n)
    ours = pld.epsilon(history, delta)
    assert 0.97 <= exact_share(history, ours, delta) <= 1.0
    assert ours <= rdp.epsilon(history, delta) <= 1.06 * ours


# --- no answer, or not in time --------------------------------------------------------------------------------------


def test_a_fragmented_history_is_the_merged_one() -> None:
    """Two rates that alternate a thousand times take Opacus' RDP 34 s; a history of ours has no order to recompute."""
    events = PoissonSampledGaussian(0.01, 1.0), PoissonSampledGaussian(0.0101, 1.0)
    history: dict[Event, int] = {}
    start = time.process_time()
    for step in range(1000):
        history = extended(history, events[step % 2], 1)
    ours = pld.epsilon(history, 1e-5)
    assert time.process_time() - start < 3.0  # 0.03 s here; the margin is for busy machines
    assert history == dict.fromkeys(events, 500)
    assert ours == pld.epsilon(dict.fromkeys(reversed(events), 500), 1e-5)
    assert 0.99 <= exact_share(history, ours, 1e-5) <= 1.0


@pytest.mark.parametrize(("q", "s", "n"), [(0.01, 1.0, 1000), (0.1, 2.0, 300), (0.05, 2.0, 1000)])
@pytest.mark.parametrize("delta", [1e-14, 1e-20])
def test_a_tiny_delta_is_no_infinite_epsilon(q: float, s: float, n: int, delta: float, record_property: Record) -> None:
    """prv_accountant#17: there, rounding errors of 1e-16 are all that is left of delta."""
    record_property("opacus PRV", opacus_epsilon("PRVAccountant", q, s, n, delta))
    assert 0.98 <= exact_share(history_of(q, s, n), pld.epsilon(history_of(q, s, n), delta), delta) <= 1.0


@pytest.mark.parametrize(("q", "s"), [(0.001, 0.7), (0.01, 1.0), (0.2, 0.5), (1.0, 2.0)])
@pytest.mark.parametrize("delta", [1e-12, 1e-14, 1e-20, 1e-30])
def test_a_tiny_delta_of_one_step_to_60_digits(q: float, s: float, delta: float) -> None:
    def exact(epsilon: float) -> mpmath.mpf:
        with mpmath.workdps(60):
            rate, noise, bound = mpmath.mpf(q), mpmath.mpf(s), mpmath.exp(mpmath.mpf(epsilon))
            x = noise**2 * mpmath.log1p((bound - 1) / rate) + mpmath.mpf(1) / 2  # the loss exceeds epsilon beyond x
            rest = mpmath.ncdf(-x / noise)
            return (1 - rate) * rest + rate * mpmath.ncdf((1 - x) / noise) - bound * rest

    ours = pld.epsilon(history_of(q, s, 1), delta)
    assert exact(ours) <= delta <= exact(0.99 * ours)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("q", "s", "n"), [(0.5, 0.5, 1000), (0.5, 0.3, 1000), (0.5, 0.3, 20_000), (0.1, 0.3, 20_000), (0.01, 0.3, 100_000)]
)
def test_epsilons_above_500_are_numbers(q: float, s: float, n: int) -> None:
    """Opacus' PRV answers infinity to (0.5, 0.3, 1000), and dp_accounting's RDP 5502, where 2695.4 is true."""
    ours = pld.epsilon(history_of(q, s, n), 1e-5)
    assert 500.0 < ours < math.inf
    assert 0.97 <= exact_share(history_of(q, s, n), ours, 1e-5) <= 1.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("s", "n"), [(0.3, 1), (0.3, 20_000), (0.05, 100), (0.02, 20), (0.01, 1_000_000)])
def test_large_epsilons_without_sampling_have_a_closed_form(s: float, n: int) -> None:
    exact = gaussian_epsilon(math.sqrt(n) / s, 1e-5)
    assert exact <= pld.epsilon(history_of(1.0, s, n), 1e-5) <= 1.002 * exact


# --- one step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_one_step_counts_every_frequency_once(seed: int) -> None:
    """A prototype of ours counted the highest frequency twice: 0.89 of the truth at one step, and only there."""
    rng = np.random.default_rng(seed)
    event = PoissonSampledGaussian(float(10 ** rng.uniform(-3, 0)), float(10 ** rng.uniform(-0.5, 1.0)))
    delta = float(10 ** rng.uniform(-10, -2))
    exact = single_step_epsilon(event, delta)
    assert exact * (1 - 1e-9) <= pld.epsilon({event: 1}, delta) <= exact * 1.01 + 1e-9
