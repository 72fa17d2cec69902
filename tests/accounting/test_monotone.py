"""Properties that hold of every epsilon, whatever the input: `pld.epsilon` on settings that hypothesis looks for.

Our epsilons are upper bounds on grids that depend on the history, and the grid step is a power of two: where it
doubles, a bound may jump. Monotonicity therefore holds up to a tolerance, and only where bounds are tight: q from 1e-4
and delta from 1e-12 on (docs/explanation/accounting.md, "Known limits").
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.accounting import pld, rdp
from fedprivacy.values.events import Event, PoissonSampledGaussian

pytestmark = pytest.mark.exhaustive
JUMP = 1.1e-3
LEAST_RATE, LEAST_DELTA = 1e-3, 1e-10
"""Below both, a smaller delta may show a smaller epsilon, as "Known limits" says."""


def powers_of_ten(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most).map(lambda exponent: min(10.0**exponent, 10.0**most))


FACTORS = st.one_of(st.floats(1.0, 1.02), st.floats(1.0, 3.0))
DELTAS = st.one_of(powers_of_ten(-12, -1), st.floats(0.1, 0.9))

ANY_DELTAS = st.one_of(powers_of_ten(-30, -1), st.floats(0.1, 0.9))
ANY_EVENTS = st.builds(PoissonSampledGaussian, st.one_of(st.just(1.0), powers_of_ten(-9, 0)), powers_of_ten(-3, 4))
ANY_STEPS = st.one_of(st.integers(0, 100), st.floats(0, 8).map(lambda exponent: round(10.0**exponent)))


def at_most(smaller: float, larger: float) -> bool:
    return smaller <= larger * (1.0 + JUMP) + 1e-12


@given(q=powers_of_ten(-4, 0), s=powers_of_ten(-1, 2), n=st.integers(1, 1_000_000), delta=DELTAS, factor=FACTORS)
def test_more_steps_more_sampling_less_noise_less_delta_never_cost_less(
    q: float, s: float, n: int, delta: float, factor: float
) -> None:
    def epsilon(q: float, s: float, n: int, delta: float) -> float:
        return pld.epsilon({PoissonSampledGaussian(q, s): n}, delta)

    base = epsilon(q, s, n, delta)
    assert at_most(base, epsilon(q, s, math.ceil(n * factor), delta))
    assert at_most(base, epsilon(min(q * factor, 1.0), s, n, delta))
    assert at_most(base, epsilon(q, s / factor, n, delta))
    if q >= LEAST_RATE or delta / factor >= LEAST_DELTA:
        assert at_most(base, epsilon(q, s, n, delta / factor))


@pytest.mark.filterwarnings("error")
@given(history=st.dictionaries(ANY_EVENTS, ANY_STEPS, max_size=5), delta=ANY_DELTAS)
def test_every_history_has_an_answer(history: dict[Event, int], delta: float) -> None:
    value = pld.epsilon(history, delta)
    assert 0.0 <= value < math.inf
    assert value <= rdp.epsilon(history, delta)
