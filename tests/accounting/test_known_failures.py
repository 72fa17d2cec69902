"""Settings that other accountants are known to get wrong, and what is right.

Nothing here asks a peer, so that nothing breaks on the day that it is repaired. Answers in the text are those of Opacus
1.6.0 and dp_accounting 0.6.0.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from fedprivacy.accounting import pld, rdp
from fedprivacy.values.events import Event, PoissonSampledGaussian
from tests.accounting.marked import exhaustive, soak
from tests.accounting.oracles import exact_share


def history_of(q: float, s: float, n: int) -> dict[Event, int]:
    return {PoissonSampledGaussian(q, s): n}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("q", "s", "n", "delta"),
    [
        # Too small, below the truth of 3.9143: the "upper bound" of Opacus' PRV is 3.9131.
        (0.01, 1.0, 1000, 1e-12),
        # 5.8 times too small: the central limit that Opacus' GDP accountant takes for the truth.
        *soak((0.001, 0.7, 10, 1e-5)),
        # Infinite in prv_accountant#17: rounding errors of 1e-16 are all that is left of delta.
        (0.1, 2.0, 300, 1e-14),
        *exhaustive((0.05, 2.0, 1000, 1e-14), (0.1, 2.0, 300, 1e-20), (0.05, 2.0, 1000, 1e-20)),
        # Too large: dp_accounting's RDP answers 384, 346 and 665 where 291, 219 and 282 are true.
        (0.05, 0.8, 50_000, 1e-6),
        *exhaustive((0.5, 1.0, 1000, 1e-5), (0.2, 0.5, 1000, 1e-5)),
        *exhaustive((0.1, 1.0, 100, 1e-30), (0.01, 1.0, 100_000, 1e-12), (0.001, 1.0, 30_000, 1e-7)),
        # Above 500: Opacus' PRV answers infinity to the first, and dp_accounting's RDP 5502, where 2695.4 is true.
        *exhaustive((0.5, 0.3, 1000, 1e-5), (0.01, 0.3, 100_000, 1e-5)),
        *soak((0.5, 0.3, 20_000, 1e-5), (0.1, 0.3, 20_000, 1e-5)),
    ],
)
def test_the_exact_delta_at_our_epsilon_is_the_delta_asked_for(q: float, s: float, n: int, delta: float) -> None:
    history = history_of(q, s, n)
    assert 0.97 <= exact_share(history, pld.epsilon(history, delta), delta) <= 1.0


@pytest.mark.parametrize(
    ("q", "s", "n", "delta"),
    [
        (1e-3, 10.0, 1, 1e-3),
        (1e-3, 10.0, 10, 1e-2),
        (0.01, 1.0, 1000, 0.3),
        (1e-4, 0.5, 1, 1e-3),
        (1e-6, 1.0, 50, 1e-3),
    ],
)
def test_no_epsilon_is_negative(q: float, s: float, n: int, delta: float) -> None:
    """opacus#585: its RDP answers 0.029, -0.009 and -0.10 to the first three, its PRV 0.009, -0.00004 and -0.28.

    A record that is sampled less often than delta costs nothing; Chernoff bounds alone report up to 3 for the others.
    """
    history = history_of(q, s, n)
    assert n * q <= delta or exact_share(history, 1e-9, delta) < 1.0
    assert pld.epsilon(history, delta) == 0.0 <= rdp.epsilon(history, delta)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("q", "s", "n"),
    [(1e-8, 1.0, 10**6), (1e-8, 5.0, 10**6), (1e-9, 0.5, 10**8), (1e-9, 10.0, 10**6), (1e-7, 100.0, 10)],
)
def test_a_tiny_rate_costs_little_and_not_less_than_nothing(q: float, s: float, n: int) -> None:
    """A_a - 1 is below 1e-16 here: a moments accountant that computes A_a answers noise around 0, or 0."""
    assert rdp.rdp(PoissonSampledGaussian(q, s), [1.5, 2.0, 3.0]) == pytest.approx(
        np.array([0.75, 1.0, 1.5]) * q**2 * math.expm1(s**-2), rel=1e-4
    )
    assert 0.0 <= pld.epsilon(history_of(q, s, n), 1e-5) < 0.01


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
