"""Every event: closed forms and brute force against the accountants.

The privacy profile delta(eps) of one execution has a closed form for each of them, at negative epsilons too. Composed
with another mechanism it is E[delta(eps - L)] over the other's loss L: exact compositions that share no code with ours.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedprivacy.accounting import pld, rdp, step_quota
from fedprivacy.accounting.histories import truncation, untruncated
from fedprivacy.accounting.pairs import pair
from fedprivacy.accounting.privacy_loss import Direction, deviation, discretise
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import (
    Event,
    FixedSizeSampledGaussian,
    NeighbouringRelation,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    TruncatedPoissonSampledGaussian,
)
from tests.accounting.marked import exhaustive
from tests.accounting.oracles import discrete_delta, gaussian_profile

Array = NDArray[np.float64]
Profile = Callable[[Array], Array]
REPLACE, ZERO_OUT = NeighbouringRelation.REPLACE_ONE, NeighbouringRelation.ZERO_OUT


# --- exact profiles of one execution, in the direction that removes a record -----------------------------------------


def gaussian(mu: float) -> Profile:
    return partial(gaussian_profile, mu)


def laplace(largest: float) -> Profile:
    def profile(eps: Array) -> Array:
        inner = -np.expm1((np.clip(eps, -largest, largest) - largest) / 2)
        return np.where(eps <= -largest, -np.expm1(eps), inner)

    return profile


def answers(event: RandomizedResponse) -> Profile:
    p, t, losses = answer_atoms(event)

    def profile(eps: Array) -> Array:
        masses = np.array([t, (event.categories - 2) * t, p])
        return np.maximum(-np.expm1(np.subtract.outer(eps, losses)), 0.0) @ masses

    return profile


def answer_atoms(event: RandomizedResponse) -> tuple[float, float, Array]:
    f, k = event.uniform_probability, event.categories
    p, t = 1 - f + f / k, f / k
    return p, t, math.log(p / t) * np.array([-1.0, 0.0, 1.0])


def sampled(q: float, profile: Profile) -> Profile:
    def amplified(eps: Array) -> Array:
        ratio = 1 + np.expm1(eps) / q
        inside = q * profile(np.log(np.maximum(ratio, 1e-300)))
        return np.where(ratio > 0, inside, -np.expm1(eps))

    return amplified


def mirrored(profile: Profile) -> Profile:
    return lambda eps: -np.expm1(eps) + np.exp(eps) * profile(-eps)


def fixed_size(event: FixedSizeSampledGaussian) -> Profile:
    above = sampled(event.sample_size / event.records, gaussian(2 / event.noise_multiplier))
    return lambda eps: np.where(eps >= 0, above(eps), mirrored(above)(eps))


def exact(event: Event) -> Profile:
    match event:
        case PoissonSampledGaussian():
            return sampled(event.sampling_rate, gaussian(event.sensitivity / event.noise_multiplier))
        case PoissonSampledLaplace():
            return sampled(event.sampling_rate, laplace(event.sensitivity / event.noise_multiplier))
        case RandomizedResponse():
            return answers(event)
        case FixedSizeSampledGaussian():
            return fixed_size(event)
    raise AssertionError(event)


def gaussian_losses(q: float, s: float) -> tuple[Array, Array]:
    """Losses and their P-weights on the nodes of a trapezoid rule."""
    x = np.linspace(-14 * s, 1 + 14 * s, 40_001)
    ratio = (2 * x - 1) / (2 * s**2)
    losses = np.logaddexp(np.log1p(-q), np.log(q) + ratio) if q < 1 else ratio
    densities = [np.exp(-((x - centre) ** 2) / (2 * s**2)) / (s * math.sqrt(2 * math.pi)) for centre in (0, 1)]
    return losses, ((1 - q) * densities[0] + q * densities[1]) * (x[1] - x[0])


def dots(event: Event, direction: Direction, coarseness: float) -> tuple[Callable[[float], float], float]:
    """delta of one discretised execution as a function of epsilon, and the deviation of the loss."""
    width = deviation(event)
    log2_step = math.floor(math.log2(width / coarseness))
    loss = discretise(event, log2_step, 8.0).of(direction)[0]
    return lambda epsilon: discrete_delta(loss, 2.0**log2_step, epsilon - loss.slack), width


GAUSSIANS = [PoissonSampledGaussian(q, s) for q, s in itertools.product((1e-4, 0.01, 0.5, 1.0), (0.3, 1.0, 5.0))]
EVENTS: list[Event] = [
    PoissonSampledGaussian(0.5, 1.0),
    *(PoissonSampledLaplace(q, b) for q, b in itertools.product((1e-4, 0.05, 0.7, 1.0), (0.1, 1.0, 7.0))),
    PoissonSampledLaplace(1.0, 3.0, REPLACE),
    PoissonSampledGaussian(1.0, 1.7, REPLACE),
    *(RandomizedResponse(k, f) for k, f in ((2, 0.5), (2, 1e-3), (10, 0.9), (1000, 0.999))),
    *(
        FixedSizeSampledGaussian(m, n, s)
        for (m, n), s in itertools.product(((1, 1), (1, 2), (3, 1000)), (0.6, 2.0, 9.0))
    ),
]

REST = [event for events in (GAUSSIANS, EVENTS) for place, event in enumerate(events) if place % 3]
"""Mechanisms that the quick lane leaves out."""


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("event", [*GAUSSIANS[::3], *EVENTS[::3], *exhaustive(*REST)], ids=str)
def test_the_discrete_loss_dominates_at_every_epsilon_and_is_tight_on_a_fine_grid(
    event: Event, direction: Direction
) -> None:
    truth = exact(event) if direction is Direction.REMOVE else mirrored(exact(event))
    for coarseness in (2, 30):
        dominates(*dots(event, direction, coarseness), truth, direction)
    fine, width = dots(event, direction, 1000)
    for epsilon in np.array([-1.0, -0.1, 0.0, 0.1, 0.5]) * width:
        wanted = pytest.approx(float(truth(np.asarray(epsilon))), rel=2e-3, abs=1e-12)
        assert event not in EVENTS or fine(epsilon) == wanted


def dominates(discrete: Callable[[float], float], width: float, truth: Profile, direction: Direction) -> None:
    """Check that a discrete loss has no smaller delta than the truth at any epsilon."""
    for epsilon in width * np.concatenate([-np.geomspace(0.01, 5.0, 12), [0.0], np.geomspace(0.01, 9.0, 20)]):
        cancelled = 2.0**-50 * np.exp(epsilon)  # what is left of `mirrored`, whose terms are as large as this
        assert discrete(epsilon) >= truth(np.asarray(epsilon)) - 4e-15 - cancelled * (direction is Direction.ADD)


# --- samples of fixed size -------------------------------------------------------------------------------------------


def sums(records: list[float], size: int) -> list[float]:
    return [sum(sample) for sample in itertools.combinations(records, size)]


def brute_force(first: list[float], second: list[float], size: int, s: float, order: float) -> float:
    """Hockey-stick divergence of the releases on two shards of numbers: mixtures over all subsets, by quadrature."""
    x = np.linspace(-len(first) - 12 * s, len(first) + 12 * s, 200_001)

    def density(records: list[float]) -> Array:
        centres = sums(records, size)
        total = sum(np.exp(-((x - centre) ** 2) / (2 * s**2)) for centre in centres)
        return np.asarray(total / (len(centres) * s * math.sqrt(2 * math.pi)))

    return float(np.maximum(density(first) - order * density(second), 0.0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize("order", [0.6, 1.05, *exhaustive(4.0)])
@pytest.mark.parametrize("size", [2, *exhaustive(1, 4)])
def test_no_shard_of_numbers_exceeds_the_bound_for_fixed_sizes(size: int, order: float) -> None:
    """Four records within the clipping norm 1, one of them replaced; the bound is attained by the extreme ones."""
    s = 1.3
    delta, _ = dots(FixedSizeSampledGaussian(size, 4, s), Direction.REMOVE, 1000)
    bound = delta(math.log(order))
    shards = [[1, -1, -1, -1], [1, 1, 1, 1], [1, 0.5, 0, -1], [0.2, -1, 1, 0.3], [1, 1, -1, -1]]
    worst = 0.0
    for others, replacement in itertools.product(shards, (-1.0, 0.0, 0.7)):
        first, second = [1.0, *others[1:]], [replacement, *others[1:]]
        for pair_ in ((first, second), (second, first)):
            worst = max(worst, brute_force(*pair_, size, s, order))
    assert worst <= bound + 1e-9
    assert worst == pytest.approx(bound, rel=1e-3)


# --- compositions ----------------------------------------------------------------------------------------------------


HISTORIES: list[dict[Event, int]] = [
    {PoissonSampledGaussian(1.0, 4.0, REPLACE): 3, RandomizedResponse(4, 0.7): 1},
    {PoissonSampledGaussian(1.0, 2.0, REPLACE): 1, PoissonSampledLaplace(1.0, 3.0, REPLACE): 1},
    {PoissonSampledGaussian(1.0, 5.0, REPLACE): 2, FixedSizeSampledGaussian(50, 1000, 1.5): 1},
    {PoissonSampledGaussian(0.1, 1.0): 1, PoissonSampledLaplace(0.3, 1.0): 1},
    {PoissonSampledGaussian(0.6, 2.0): 1, PoissonSampledLaplace(0.01, 0.2): 1},
    {PoissonSampledGaussian(0.02, 0.8, ZERO_OUT): 1, PoissonSampledLaplace(1.0, 2.0, ZERO_OUT): 1},
]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda h: " + ".join(map(str, h)))
def test_heterogeneous_histories(history: dict[Event, int]) -> None:
    """Gaussian losses by quadrature, the exact profile of the other event at what they leave of epsilon."""
    delta = 1e-5
    bound = np.asarray(pld.epsilon(history, delta))
    (first, count), (second, _) = history.items()
    assert isinstance(first, PoissonSampledGaussian)
    noise = first.noise_multiplier / first.sensitivity / math.sqrt(count)
    losses, weights = gaussian_losses(first.sampling_rate, noise)
    remove = float(weights @ exact(second)(bound - losses))
    add = float(-np.expm1(bound) + np.exp(bound) * (weights @ exact(second)(-bound - losses)))
    assert 0.95 * delta <= max(remove, add) <= delta * (1 + 1e-6)


# --- samples that are cut down ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "records", "largest"),
    [(0.05, 1000, 110), (0.05, 1000, 51), (0.5, 40, 39), (1e-3, 1_000_000, 1200), (0.01, 60_000, 900), (1e-6, 100, 1)],
)
def test_the_tail_of_the_sample_size_is_rounded_up(q: float, records: int, largest: int) -> None:
    event = TruncatedPoissonSampledGaussian(q, 1.0, records, largest)
    with mpmath.workdps(50):
        rate = mpmath.mpf(q)
        term = mpmath.binomial(records, largest + 1) * rate ** (largest + 1) * (1 - rate) ** (records - largest - 1)
        tail = mpmath.mpf(0)
        for size in range(largest + 1, records + 1):
            tail += term
            term *= mpmath.mpf(records - size) / (size + 1) * rate / (1 - rate)
            if term < tail * mpmath.mpf(10) ** -30:
                break
        assert tail <= truncation(event) <= tail * (1 + 3e-6)
    never = TruncatedPoissonSampledGaussian(q, 1.0, 50, 50)
    assert truncation(never) == 0.0 and untruncated({never: 3, never.untruncated: 4}) == ({never.untruncated: 7}, 0.0)


def test_samples_cut_too_often_prove_nothing() -> None:
    event = TruncatedPoissonSampledGaussian(0.05, 1.0, 1000, 60)
    assert pld.epsilon({event: 50}, 1e-5) == math.inf
    assert rdp.epsilon({event: 50}, 1e-5) == math.inf
    assert np.isinf(rdp.rdp(event)).all()
    with pytest.raises(ValueError, match="untruncated"):
        pair(event)
    beyond_floats = TruncatedPoissonSampledGaussian(1e-3, 0.02, 1000, 200)
    assert 0.0 < truncation(beyond_floats) < 1e-200
    assert pld.epsilon({beyond_floats: 1}, 1e-9) == math.inf > pld.epsilon({beyond_floats.untruncated: 1}, 1e-9)


# --- quotas ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("event", "past"),
    [
        (PoissonSampledGaussian(0.02, 3.0), {}),
        (PoissonSampledGaussian(0.01, 1.0), {PoissonSampledGaussian(0.02, 2.0): 30}),
        (PoissonSampledLaplace(0.1, 1.0), {PoissonSampledGaussian(0.01, 1.0): 10}),
        (FixedSizeSampledGaussian(10, 1000, 2.0), {RandomizedResponse(2, 0.5): 1}),
        (TruncatedPoissonSampledGaussian(0.05, 1.0, 1000, 108), {TruncatedPoissonSampledGaussian(0.1, 2.0, 9, 7): 0}),
        (PoissonSampledGaussian(0.05, 1.0, ZERO_OUT), {TruncatedPoissonSampledGaussian(0.05, 1.0, 1000, 108): 5}),
    ],
)
def test_a_quota_of_any_event_is_maximal(event: Event, past: dict[Event, int]) -> None:
    n = step_quota(event, PrivacyBudget(3.0, 1e-5), past)
    assert n > 0
    assert pld.epsilon({**past, event: n}, 1e-5) <= 3.0 < pld.epsilon({**past, event: n + 1}, 1e-5)


# --- Rényi divergences -----------------------------------------------------------------------------------------------


def laplace_divergence(q: float, b: float, order: float) -> float:
    """Divergence of the direction that removes a record, the larger one, to 40 digits: adaptive quadrature."""
    with mpmath.workdps(40):
        rate, scale, a = mpmath.mpf(q), mpmath.mpf(b), mpmath.mpf(order)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            base, shifted = (mpmath.exp(-abs(x - centre) / scale) / (2 * scale) for centre in (0, 1))
            mixture = (1 - rate) * base + rate * shifted
            return base * (mixture / base) ** a

        return float(mpmath.log(mpmath.quad(integrand, [-mpmath.inf, 0, 0.5, 1, mpmath.inf])) / (a - 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("q", "b"), [(0.3, 1.0), (1.0, 0.3)])
def test_laplace_divergence(q: float, b: float) -> None:
    event = PoissonSampledLaplace(q, b)
    for order in (1.3, 4.0, 16.0):
        ours, truth = float(rdp.rdp(event, [order])[0]), laplace_divergence(q, b, order)
        assert ours >= truth * (1 - 1e-14)
        if q == 1.0 or order % 1.0 == 0.0:
            assert ours == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize(("k", "f"), [(2, 0.5), (10, 0.99), (3, 1e-6)])
def test_randomised_response_divergence(k: int, f: float) -> None:
    with mpmath.workdps(40):
        p, t = 1 - mpmath.mpf(f) + mpmath.mpf(f) / k, mpmath.mpf(f) / k
        for order in (1.1, 2.0, 40.0):
            moment = p**order * t ** (1 - order) + t**order * p ** (1 - order) + (k - 2) * t
            truth = float(mpmath.log(moment) / (order - 1))
            ours = float(rdp.rdp(RandomizedResponse(k, f), [order])[0])
            assert truth * (1 - 1e-12) <= ours <= truth * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize(("m", "n", "s"), [(30, 100, 4.0), (9, 10, 2.0)])
def test_the_divergence_of_fixed_sizes_bounds_that_of_its_pair(m: int, n: int, s: float) -> None:
    """The pair by quadrature: losses above 0 of the mixture against the normal, losses below 0 the other way round."""
    g, noise = m / n, s / 2
    losses, weights = gaussian_losses(g, noise)
    above = losses > 0
    base = weights * np.exp(-losses)
    for order in (1.5, 2.0, 4.0, 10.0):
        excess = (base * (np.exp(order * losses) - 1 - order * np.expm1(losses)))[above].sum()
        other = (weights * (np.exp(-order * losses) - 1 - order * np.expm1(-losses)))[above].sum()
        truth = math.log1p(excess + other) / (order - 1)
        ours = float(rdp.rdp(FixedSizeSampledGaussian(m, n, s), [order])[0])
        assert truth * (1 - 1e-6) <= ours <= 2.01 * truth


def test_pure_guarantees_need_no_delta() -> None:
    for event in (PoissonSampledLaplace(1.0, 2.0), RandomizedResponse(2, 0.5)):
        largest = pair(event).largest_loss
        assert rdp.epsilon({event: 3}, 1e-300) == pytest.approx(3 * largest, rel=1e-9)
        assert rdp.epsilon({event: 3}, 1e-300) >= 3 * largest


# --- properties ------------------------------------------------------------------------------------------------------

RATES = st.one_of(st.just(1.0), st.floats(-8, 0).map(lambda x: 10.0**x))
SCALES = st.floats(-6, 6).map(lambda x: 10.0**x)
SIZES = st.integers(1, 10**6)
ANY_EVENT = st.one_of(
    st.builds(PoissonSampledGaussian, RATES, SCALES),
    st.builds(PoissonSampledLaplace, RATES, SCALES),
    st.builds(PoissonSampledLaplace, st.just(1.0), SCALES, st.just(REPLACE)),
    st.builds(RandomizedResponse, st.integers(2, 10**6), st.floats(-12, 0).map(lambda x: 10.0**x)),
    st.builds(lambda m, rest, s: FixedSizeSampledGaussian(m, m + rest - 1, s), SIZES, SIZES, SCALES),
    st.builds(TruncatedPoissonSampledGaussian, RATES, SCALES, SIZES, SIZES),
)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("error")
@given(
    event=ANY_EVENT,
    steps=st.lists(st.integers(0, 10_000), min_size=2, max_size=4),
    delta=st.floats(-12, -1).map(lambda x: 10.0**x),
)
@example(PoissonSampledLaplace(1.0, 100.0, REPLACE), [1, 2], 1e-12)  # hardly more than its largest loss is possible
def test_any_event_has_a_bound_that_rises_with_the_steps(event: Event, steps: list[int], delta: float) -> None:
    values = pld.epsilons(event, sorted(steps), delta)
    assert not np.isnan(values).any()
    assert (values >= 0.0).all()
    assert (values[1:] >= values[:-1]).all()
    assert not np.isnan(rdp.rdp(event)).any()
    assert pld.epsilon({event: 1}, delta) <= rdp.epsilon({event: 1}, delta)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonSampledGaussian(0.5, 1.0, REPLACE), "FixedSizeSampledGaussian"),
        (lambda: PoissonSampledLaplace(0.5, 1.0, REPLACE), "sampling_rate 1"),
        (lambda: PoissonSampledLaplace(0.5, math.nan), "noise_multiplier is nan"),
        (lambda: RandomizedResponse(1, 0.5), "categories is 1"),
        (lambda: RandomizedResponse(2, 0.0), r"uniform_probability is 0\.0"),
        (lambda: RandomizedResponse(2, 0.5, ZERO_OUT), "holds for replace-one alone"),
        (lambda: FixedSizeSampledGaussian(3, 2, 1.0), "records is 2"),
        (lambda: FixedSizeSampledGaussian(0, 2, 1.0), "sample_size is 0"),
        (lambda: FixedSizeSampledGaussian(1, 2, 0.0), r"noise_multiplier is 0\.0"),
        (lambda: FixedSizeSampledGaussian(1, 2, 1.0, ZERO_OUT), "holds for replace-one alone"),
        (lambda: TruncatedPoissonSampledGaussian(0.1, 1.0, 0, 1), "records is 0"),
        (lambda: TruncatedPoissonSampledGaussian(0.1, 1.0, 5, 0), "largest_sample is 0"),
        (lambda: TruncatedPoissonSampledGaussian(0.1, 1.0, 5, 2, REPLACE), "holds for zero-out alone"),
    ],
)
def test_events_that_cannot_be_are_refused_with_the_remedy(make: Callable[[], Event], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
