import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.accounting import contour, pld
from fedprivacy.values.events import History, PoissonSampledGaussian
from tests.accounting import oracles
from tests.accounting.marked import exhaustive, soak

MIXED: History = {
    PoissonSampledGaussian(0.01, 1.0): 300,
    PoissonSampledGaussian(0.05, 2.0): 40,
    PoissonSampledGaussian(1.0, 20.0): 5,
}


def single_delta(event: PoissonSampledGaussian, epsilon: float) -> float:
    return max(oracles.single_step_delta(event, epsilon, remove) for remove in (True, False))


@pytest.mark.parametrize("delta", [0.5, 1e-3, 1e-9, 1e-30])
@pytest.mark.parametrize(("noise", "steps"), [(0.02, 1), (1.0, 1), (5.0, 100), (300.0, 5000)])
def test_without_sampling_it_is_the_gaussian_closed_form(noise: float, steps: int, delta: float) -> None:
    ours = float(contour.epsilons(1.0, noise, steps, delta)[0])
    exact = oracles.gaussian_epsilon(math.sqrt(steps) / noise, delta)
    assert exact <= ours <= exact * (1 + 1e-6)


@pytest.mark.parametrize(
    ("q", "s", "delta"),
    [
        *((0.5, 2.0, 1e-3), (0.01, 1.0, 1e-5)),
        *exhaustive((0.9, 0.3, 1e-10), (0.2, 5.0, 1e-6), (0.05, 0.7, 1e-8)),
    ],
)
def test_one_step_matches_the_closed_form(q: float, s: float, delta: float) -> None:
    event = PoissonSampledGaussian(q, s)
    ours = contour.epsilon({event: 1}, delta)
    assert 0.999 * delta <= single_delta(event, ours) <= delta * (1 + 1e-9)


@pytest.mark.exhaustive
def test_too_few_frequencies_for_one_step_still_yield_a_bound() -> None:
    """The transform of a loss that is nearly constant hardly falls."""
    event = PoissonSampledGaussian(1.5e-4, 0.415)
    ours = contour.epsilon({event: 1}, 1e-8)
    assert 1e-12 < single_delta(event, ours) < 1e-8


@pytest.mark.parametrize(
    ("q", "s", "n", "delta"),
    [
        (0.01, 1.0, 1000, 1e-5),
        (0.9, 3.0, 3, 1e-3),
        *exhaustive(
            (0.01, 1.0, 1000, 1e-20),
            (0.002, 0.6, 300, 1e-5),
            (0.05, 1.2, 5000, 1e-30),
            (0.3, 1.5, 20, 0.2),
        ),
        *soak((0.01, 4.0, 10_000, 1e-5), (0.1, 0.7, 100, 1e-6), (0.001, 10.0, 100, 1e-6)),
    ],
)
def test_exact_delta_at_our_epsilon_is_the_delta_asked_for(q: float, s: float, n: int, delta: float) -> None:
    history = {PoissonSampledGaussian(q, s): n}
    assert 0.999 <= oracles.exact_share(history, contour.epsilon(history, delta), delta) <= 1.0


@pytest.mark.parametrize("delta", [1e-6, *exhaustive(1e-20)])
def test_so_it_is_for_histories_of_several_events(delta: float) -> None:
    assert 0.999 <= oracles.exact_share(MIXED, contour.epsilon(MIXED, delta), delta) <= 1.0


@pytest.mark.exhaustive
def test_it_agrees_with_the_pld() -> None:
    """Neither shares code with the other; the PLD's grid costs it up to 0.1 %."""
    rng = np.random.default_rng(1)
    for _ in range(30):
        delta = float(10.0 ** rng.uniform(-10, -3))
        events = [
            PoissonSampledGaussian(float(10.0 ** rng.uniform(-2.5, 0)), float(rng.uniform(0.6, 8)))
            for _ in range(rng.integers(1, 5))
        ]
        history = {event: int(10.0 ** rng.uniform(1, 3.5)) for event in events}
        ours, theirs = contour.epsilon(history, delta), pld.epsilon(history, delta)
        assert ours <= theirs * (1 + 1e-9), history
        assert theirs <= ours * 1.002, history


def test_a_batch_answers_as_its_clients_alone_do() -> None:
    rng = np.random.default_rng(2)
    q, s = 10.0 ** rng.uniform(-2.5, 0, 20), rng.uniform(0.5, 8, 20)
    n, delta = np.floor(10.0 ** rng.uniform(1, 3.5, 20)), 10.0 ** rng.uniform(-9, -3, 20)
    together = contour.epsilons(q, s, n, delta)
    alone = [float(contour.epsilons(*client)[0]) for client in zip(q, s, n, delta, strict=True)]
    assert together == pytest.approx(np.array(alone), rel=1e-5)
    history = {PoissonSampledGaussian(float(q[0]), float(s[0])): int(n[0])}
    assert contour.epsilon(history, float(delta[0])) == pytest.approx(together[0], rel=1e-6)


def test_both_directions_are_computed() -> None:
    """Removing dominates in every history known, so the other direction is called by itself."""
    batch = contour._Batch.of(*(np.array([[x]]) for x in (0.2, 1.0, 20.0)), np.array([1e-5]))
    history = {PoissonSampledGaussian(0.2, 1.0): 20}
    for remove in (True, False):
        epsilon = float(contour._directed_bounds(batch.directed(remove), remove)[0])
        assert 0.999e-5 <= oracles.composed_delta(history, epsilon, remove) <= 1e-5


@pytest.mark.parametrize(
    ("q", "s", "lam", "remove"), [(0.01, 1.0, 6.0, True), (0.2, 0.5, 2.0, True), (0.1, 2.0, 9.0, False)]
)
def test_transforms_and_their_bounds_against_30_digits(q: float, s: float, lam: float, remove: bool) -> None:
    """At every frequency: the error is within what is charged, and |M(lambda + i w)| is below the tail's bound."""
    batch = contour._Batch.of(*(np.array([[x]]) for x in (q, s, 1.0)), np.array([1e-5])).directed(remove)
    tilts = np.array([lam])
    quadrature = contour._Quadrature.of(batch, tilts, remove)
    spacing, count = min(0.8 / float(quadrature.deviations()[0, 0]), 8.0), 6
    plan = contour._Plan(tilts, np.array([spacing]), np.array([count]), np.zeros(1), np.zeros(1))
    transforms, doubts = contour._transforms(batch, plan, quadrature)
    power = 1 + lam if remove else -lam
    with mpmath.workdps(30):
        nodes = mpmath.arange(-13, 13 + max(power, 0) / s, min(s, 1.0) / 20)
        ratios = [mpmath.log1p(q * mpmath.expm1(t / s - 1 / (2 * mpmath.mpf(s) ** 2))) for t in nodes]

        def moment(w: float) -> mpmath.mpc:
            """The trapezoid rule is exact to e^-200 at these frequencies."""
            exponent = mpmath.mpc(power, w)
            return mpmath.fsum(mpmath.exp(exponent * x - t * t / 2) for x, t in zip(ratios, nodes, strict=True))

        scale = moment(0.0)
        for k in range(count + 1):
            exact = complex(moment(k * spacing) / scale)
            assert abs(exact - transforms[0, 0, k]) <= doubts[0, 0, k] + 1e-15
            for share in (0.2, 1.0):
                log_tail = quadrature.log_tail(
                    batch, tilts, np.array([max(k, 0.1) * spacing]), share * quadrature.widest
                )
                kernel = math.atan2(lam, max(k, 0.1) * spacing) / lam / math.pi
                assert abs(exact) <= math.exp(log_tail[0]) / kernel * (1 + 1e-9) or k == 0
    assert doubts.max() < 1e-12


def test_dropping_frequencies_costs_tightness_and_never_soundness() -> None:
    batch = contour._Batch.of(*(np.array([[x]]) for x in (0.05, 1.0, 20.0)), np.array([1e-5])).directed(True)
    profile = contour._Profile.of(batch, remove=True)
    exact = contour.epsilon({PoissonSampledGaussian(0.05, 1.0): 20}, 1e-5)
    plan = contour._Plan.of(batch, profile, np.array([exact]), remove=True, largest=False)
    found = []
    for count in (int(plan.frequencies[0]) // 8, int(plan.frequencies[0]) // 3):
        last = np.array([count * plan.spacings[0]])
        quadrature = contour._Quadrature.of(batch, plan.tilts, remove=True)
        tails = [quadrature.log_tail(batch, plan.tilts, last, y * quadrature.widest) for y in (0.1, 0.3, 1.0)]
        part = contour._Plan(plan.tilts, plan.spacings, np.array([count]), np.min(tails, axis=0), plan.guesses)
        found.append(float(contour._solved(batch, part, remove=True)[0][0]))
    assert found[0] > found[1] > exact * (1 - 1e-6)
    assert found[0] > exact * 1.001


@pytest.mark.parametrize(("tilt", "shortening"), [(3.0, 1.0), (7.0, 2.0), (12.0, 4.0)])
def test_aliases_only_raise_epsilon(tilt: float, shortening: float) -> None:
    batch = contour._Batch.of(*(np.array([[x]]) for x in (0.05, 1.0, 200.0)), np.array([1e-5])).directed(True)
    plan = contour._Plan(np.array([tilt]), np.array([shortening]), np.array([200]), np.array([-80.0]), np.array([2.0]))
    exact = contour.epsilon({PoissonSampledGaussian(0.05, 1.0): 200}, 1e-5)
    assert float(contour._solved(batch, plan, remove=True)[0][0]) >= exact * (1 - 1e-6)


@given(
    log_q=st.floats(-2.5, 0),
    s=st.floats(0.5, 10),
    log_n=st.floats(1, 3.5),
    log_delta=st.floats(-10, -2),
)
def test_epsilon_is_monotone(log_q: float, s: float, log_n: float, log_delta: float) -> None:
    q, n, delta = 10.0**log_q, math.floor(10.0**log_n), 10.0**log_delta
    base, steps, rate, noise, smaller = contour.epsilons(
        [q, q, min(1.02 * q, 1.0), q, q],
        [s, s, s, 0.98 * s, s],
        [n, n + n // 8 + 1, n, n, n],
        [*[delta] * 4, delta / 2],
    )
    assert base >= 0.0
    for other in (steps, rate, noise, smaller):
        assert other >= base * (1 - 1e-5)


@pytest.mark.soak
@pytest.mark.filterwarnings("error")
def test_extremes_yield_a_finite_number() -> None:
    corners = itertools.product([1e-12, 0.03, 1.0], [0.2, 1.0, 1e4], [1, 10**9], [1e-300, 0.97])
    epsilons = contour.epsilons(*np.array(list(corners)).T)
    assert (epsilons >= 0.0).all() and np.isfinite(epsilons).all()


def test_zero_where_delta_alone_suffices() -> None:
    assert contour.epsilons([0.01, 0.5, 0.3], [1.0, 3.0, 2.0], [1, 1, 0], [0.01, 0.07, 1e-9]).tolist() == [0.0] * 3
    assert contour.epsilon({PoissonSampledGaussian(0.5, 3.0): 1}, 0.065) > 0.0
    assert contour.epsilon({}, 1e-5) == 0.0
    assert contour.epsilon({PoissonSampledGaussian(0.5, 3.0): 0}, 1e-5) == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5, 1.0, 1, 1e-5), r"sampling_rate is 1\.5"),
        ((0.0, 1.0, 1, 1e-5), r"sampling_rate is 0\.0"),
        ((0.5, [1.0, -2.0], 1, 1e-5), r"noise_multiplier is -2\.0"),
        ((0.5, 1.0, 2.5, 1e-5), r"steps is 2\.5"),
        ((0.5, 1.0, 1, 1.0), r"delta is 1\.0"),
        ((0.5, math.nan, 1, 0.1), r"noise_multiplier is nan"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        contour.epsilons(*arguments)
