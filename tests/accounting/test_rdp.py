import mpmath
import numpy as np
import pytest

from fedprivacy.accounting import rdp
from fedprivacy.values.events import (
    FixedSizeSampledGaussian,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
)
from tests.accounting.marked import exhaustive, soak


def exact_rdp(q: float, s: float, order: float) -> mpmath.mpf:
    """Divergence to 50 digits: the binomial sum for whole orders, adaptive quadrature for the others."""
    with mpmath.workdps(50):
        q, s, a = mpmath.mpf(q), mpmath.mpf(s), mpmath.mpf(order)
        if order == int(order):
            terms = (
                mpmath.binomial(int(a), k) * q**k * (1 - q) ** (a - k) * mpmath.expm1(k * (k - 1) / (2 * s**2))
                for k in range(2, int(a) + 1)
            )
            return mpmath.log1p(mpmath.fsum(terms)) / (a - 1)

        def integrand(t: mpmath.mpf) -> mpmath.mpf:
            u = q * mpmath.expm1(t / s - 1 / (2 * s**2))
            return mpmath.npdf(t) * ((1 + u) ** a - 1 - a * u)

        return mpmath.log1p(mpmath.quad(integrand, mpmath.linspace(-12, a / s + 12, 30))) / (a - 1)


OCTAVES = 1.0 + 2.0 ** (np.arange(-8, 21) / 2.0)


@pytest.mark.parametrize(
    ("q", "s", "order"),
    [
        (1e-9, 1.0, 2.0),
        (0.5, 0.3, 65.0),
        (1.0, 3.0, 9.0),
        *exhaustive(
            (1e-6, 0.3, 1.0 + 2.0**-1.5),
            (0.9, 0.5, 1.0 + 2.0**-4),
            (1e-3, 2.5, 1.0 + 2.0**4.5),
        ),
        *soak((0.3, 0.6, 1.0 + 2.0**3.5)),  # (1 + u)^a leaves the floating-point range here
        *soak((0.01, 1.0, 1.0 + 2.0**0.5), (0.01, 1.0, 1025.0), (1e-4, 0.1, 1025.0)),
    ],
)
def test_alone_and_in_a_batch_it_matches_50_digits_and_is_rounded_up(q: float, s: float, order: float) -> None:
    event, exact = PoissonSampledGaussian(q, s), exact_rdp(q, s, order)
    alone = rdp.rdp(event, [order])[0]
    in_a_batch = rdp.divergences([event], OCTAVES)[0, np.flatnonzero(order == OCTAVES)[0]]
    for ours in (alone, in_a_batch):
        assert 0.0 <= float(ours / exact - 1) < 3e-11


def test_long_orders_lie_on_a_chord_above_their_neighbours_curve() -> None:
    below, order, above = rdp.rdp(PoissonSampledGaussian(0.01, 1.0), [46.0, 46.25, 47.0])
    assert order * 45.25 == pytest.approx(0.75 * below * 45.0 + 0.25 * above * 46.0)


def test_a_row_of_a_batch_does_not_depend_on_the_others() -> None:
    events = [
        PoissonSampledGaussian(0.01, 1.0),
        RandomizedResponse(3, 0.5),
        PoissonSampledGaussian(1.0, 2.0),
        PoissonSampledGaussian(0.01, 1e-3),
        PoissonSampledLaplace(0.2, 1.0),
        PoissonSampledGaussian(0.3, 1.02),
        FixedSizeSampledGaussian(1, 10, 2.0),
        PoissonSampledGaussian(0.01, 1.0),
        PoissonSampledGaussian(1e-3, 1e9),
    ]
    rows = rdp.divergences(events, OCTAVES)
    assert rows.shape == (9, 29)
    for event, row in zip(events, rows, strict=True):
        assert row == pytest.approx(rdp.rdp(event, OCTAVES), rel=1e-13)
    assert rdp.divergences([], OCTAVES).shape == (0, 29)


@pytest.mark.parametrize("order", [1.0, 0.5, float("nan"), float("inf")])
def test_orders_are_finite_and_start_above_one(order: float) -> None:
    with pytest.raises(ValueError, match="greater than 1"):
        rdp.rdp(PoissonSampledGaussian(0.1, 1.0), [order])
