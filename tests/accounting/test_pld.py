import dataclasses
import itertools
import math
from types import ModuleType

import mpmath
import numpy as np
import pytest

from fedprivacy.accounting import pld, privacy_loss, rdp
from fedprivacy.accounting.privacy_loss import TILTS, Direction, discretise, hockey_stick
from fedprivacy.values.events import PoissonSampledGaussian
from tests.accounting.marked import exhaustive
from tests.accounting.oracles import composed_delta, exact_share, gaussian_epsilon, single_step_epsilon


def epsilon(q: float, s: float, n: int, delta: float) -> float:
    return pld.epsilon({PoissonSampledGaussian(q, s): n}, delta)


# --- closed forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "n"),
    [
        *((0.3, 1), (1.0, 30), (50.0, 1000), (10.0, 100_000), (1e3, 5)),
        *((0.3, 20_000), (0.05, 100), (0.02, 20), (0.01, 1_000_000)),  # of a large epsilon
    ],
)
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12, 1e-40])
def test_without_sampling_it_is_the_gaussian_mechanism(s: float, n: int, delta: float) -> None:
    exact = gaussian_epsilon(math.sqrt(n) / s, delta)
    ours = epsilon(1.0, s, n, delta)
    assert exact * (1 - 1e-12) <= ours <= exact * 1.002 + 1e-12


@pytest.mark.parametrize(
    ("q", "s"), list(itertools.product((1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9), (0.3, 0.5, 0.7, 1.0, 2.0, 5.0)))
)
@pytest.mark.parametrize("delta", [1e-5, *exhaustive(1e-3, 1e-9)])
def test_one_step_is_exact(q: float, s: float, delta: float) -> None:
    """No frequency is counted twice, either: an error there nearly halves or doubles delta at one step."""
    exact = single_step_epsilon(PoissonSampledGaussian(q, s), delta)
    ours = epsilon(q, s, 1, delta)
    assert exact * (1 - 1e-9) <= ours <= exact * 1.01 + 1e-12


# --- compositions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("q", "s", "n", "delta"), [(0.01, 1.0, 1000, 1e-5), (0.9, 3.0, 5, 1e-8)])
def test_each_direction_is_bounded_and_tight(q: float, s: float, n: int, delta: float, direction: Direction) -> None:
    """The direction that removes a record dominates in every setting tried, so only this test sees the other one."""
    history = {PoissonSampledGaussian(q, s): n}
    epsilons, deltas = pld.profiles(history)[direction]
    near = np.flatnonzero(np.abs(np.log(deltas / delta)) < 0.1)
    assert near.size >= 2
    for epsilon, bound in zip(epsilons[near], deltas[near], strict=True):
        assert 0.97 * bound <= composed_delta(history, float(epsilon), direction is Direction.REMOVE) <= bound


def test_what_leaves_the_grid_is_charged_to_delta() -> None:
    """A grid that ends at 3 standard deviations loses 0.4 % of the mass in three steps."""
    event = PoissonSampledGaussian(1.0, 2.0)
    terms = [(discretise(event, -9, 3.0).of(Direction.REMOVE)[0], 3)]
    assert 3 * 1.2e-3 < 3 * terms[0][0].infinity < 3 * 1.4e-3
    for delta in (0.005, 0.02, 0.1):
        placement = pld.GridPlacement.of(terms, 2.0**-9, delta, math.inf)
        assert pld.DeltaCurve.of(terms, placement).epsilon(delta) >= gaussian_epsilon(math.sqrt(3) / 2, delta)
    assert pld.DeltaCurve.of(terms, placement).epsilon(0.004) == math.inf


def test_rounding_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With units in the last place as large as 1e-7 the bound rises; so does it with cell boundaries that are off."""
    event = PoissonSampledGaussian(0.02, 1.0)
    terms = [(discretise(event, -10, 8.0).of(Direction.REMOVE)[0], 200)]
    placement = pld.GridPlacement.of(terms, 2.0**-10, 1e-6, math.inf)
    base = pld.DeltaCurve.of(terms, placement).epsilon(1e-6)
    shifted = [(dataclasses.replace(loss, slack=0.001), count) for loss, count in terms]
    assert pld.DeltaCurve.of(shifted, placement).epsilon(1e-6) == pytest.approx(base + 200 * 0.001)
    (shifted_points, _), (points, _) = (pld.DeltaCurve.of(t, placement).points(64) for t in (shifted, terms))
    assert shifted_points == pytest.approx(points + 200 * 0.001)
    curve = pld.DeltaCurve.of(terms, placement).log_delta
    monkeypatch.setattr(pld, "ROUNDING", 1e-7)
    monkeypatch.setattr(privacy_loss, "ROUNDING", 1e-7)
    assert (pld.DeltaCurve.of(terms, placement).log_delta > curve).all()
    assert pld.DeltaCurve.of(terms, placement).epsilon(1e-6) > base * 1.00001


# --- heterogeneous histories ----------------------------------------------------------------------------------------

HISTORIES = [
    ({PoissonSampledGaussian(0.01, 1.0): 300, PoissonSampledGaussian(0.05, 3.0): 200}, 1e-5),
    ({PoissonSampledGaussian(0.1, 1.5): 1, PoissonSampledGaussian(0.001, 0.8): 5000}, 1e-6),
    ({PoissonSampledGaussian(1.0, 1.0): 1, PoissonSampledGaussian(1e-6, 2.0): 100_000}, 1e-5),  # differ by a million
    *exhaustive(({PoissonSampledGaussian(0.01 * i, 1.0 + i): 20 * i for i in range(1, 7)}, 1e-10)),
]


@pytest.mark.parametrize(("history", "delta"), HISTORIES)
def test_heterogeneous_histories(history: dict[PoissonSampledGaussian, int], delta: float) -> None:
    assert 0.95 <= exact_share(history, pld.epsilon(history, delta), delta) <= 1.0


@pytest.mark.parametrize("past", [{PoissonSampledGaussian(0.02, 1.1): 40}, {PoissonSampledGaussian(0.05, 2.0): 100}])
def test_a_past_and_more_steps_are_the_merged_history(past: dict[PoissonSampledGaussian, int]) -> None:
    event, steps = PoissonSampledGaussian(0.02, 1.1), [0, 1, 60, 500]
    ours = pld.epsilons(event, steps, 1e-5, past=past)
    for n, value in zip(steps, ours, strict=True):
        merged = dict(past)
        merged[event] = merged.get(event, 0) + n
        assert value == pytest.approx(pld.epsilon(merged, 1e-5), rel=1e-5)


def test_step_counts_in_any_order_repeated_or_none() -> None:
    event = PoissonSampledGaussian(0.01, 1.0)
    values = pld.epsilons(event, [100, 0, 5, 100], 1e-5)
    assert values[1] == 0.0
    assert values[0] == values[3] > values[2] > 0.0
    assert pld.epsilons(event, [], 1e-5).shape == (0,)
    assert pld.epsilon({}, 1e-5) == 0.0


# --- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("q", "s", "n", "delta"),
    [
        (0.5, 0.3, 1, 1e-12),
        (0.5, 0.3, 100_000, 1e-12),  # epsilon above 500
        (1.0, 0.3, 100_000, 1e-12),
        (1e-3, 0.1, 1, 1e-5),
        (0.5, 1e-3, 1, 1e-5),
        (1e-9, 10.0, 1, 1e-5),
        (1e-8, 1.0, 1_000_000, 1e-12),
        (0.01, 1.0, 2**31 - 1, 1e-5),
        (0.01, 1.0, 10, 1e-300),
        (0.01, 1.0, 1000, 0.9999),
        (0.5, 1e200, 1, 1e-5),
        (0.5, 1e-200, 1, 1e-5),  # infinite
        (1e-300, 1.0, 1, 1e-5),
    ],
)
def test_extremes_raise_nothing_and_stay_between_0_and_rdp(q: float, s: float, n: int, delta: float) -> None:
    value = epsilon(q, s, n, delta)
    assert value >= 0.0 and (value < math.inf or s == 1e-200)
    assert value <= rdp.epsilon({PoissonSampledGaussian(q, s): n}, delta)


def test_the_kernel_is_the_transform_of_the_hockey_stick() -> None:
    frequencies = [0.0, 1e-5, 0.1, 3.0, math.pi]
    for tilt, step in itertools.product((1e-6, 1e-2, 1.0, 5.0), (1e-9, 1e-3, 1.0, 50.0, 8192.0)):
        ours = hockey_stick(tilt, step, np.array(frequencies))
        for frequency, value in zip(frequencies, ours, strict=True):
            with mpmath.workdps(40):
                c = mpmath.mpf(tilt) - 1j * mpmath.mpf(frequency)
                exact = 1 / (mpmath.exp(c) - 1) - 1 / (mpmath.exp(c + step) - 1)
                assert abs(mpmath.mpc(complex(value)) - exact) <= 1e-14 * abs(exact)


@pytest.mark.parametrize("module", [pld, privacy_loss], ids=["powers", "transforms"])
def test_errors_of_transforms_and_of_their_powers_and_scale_are_doubted(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a million times as large units in the last place, of powers and scale or of the transforms alone."""
    loss = discretise(PoissonSampledGaussian(0.3, 1.0), -1, 5.0).of(Direction.REMOVE)[0]
    kept, _, doubt, scale = pld.composed_transform([(loss, 50)], 60, 30, start=7)
    monkeypatch.setattr(module, "ROUNDING", 1e-9)
    _, _, larger, raised = pld.composed_transform([(loss, 50)], 60, 30, start=7)
    assert (larger[kept] > 1e3 * doubt[kept]).all()
    assert (raised > scale + 1e-8) == (module is pld)


@pytest.mark.parametrize("count", [1, 1000, 10**7])
def test_the_doubt_of_the_spectrum_covers_its_rounding(count: int) -> None:
    """Against a 40-digit discrete Fourier transform of the same tilted masses, at every frequency."""
    tilt, points = 30, 60
    loss = discretise(PoissonSampledGaussian(0.3, 1.0), -1, 5.0).of(Direction.REMOVE)[0]
    kept, values, doubt, _ = pld.composed_transform([(loss, count)], points, tilt, start=7)
    indices = loss.first + np.arange(loss.masses.size)
    tilted = loss.masses * np.exp(TILTS[tilt] * indices - loss.log_mgf[tilt])
    computed = np.zeros(points // 2 + 1, dtype=complex)
    computed[kept] = values
    with mpmath.workdps(40):
        for k in range(points // 2 + 1):
            angle = -2j * mpmath.pi * k / points
            transform = mpmath.fsum(m * mpmath.exp(angle * int(i)) for m, i in zip(tilted, indices, strict=True))
            exact = transform**count * mpmath.exp(-angle * 7)
            assert abs(mpmath.mpc(complex(computed[k])) - exact) <= doubt[k] + 1e-300
    assert doubt[0] < 1e-5
