import itertools

import mpmath
import numpy as np
import pytest

from fedprivacy.accounting.pairs import pair
from fedprivacy.accounting.privacy_loss import TILTS, Direction, discretise, discretise_events, support
from fedprivacy.values.events import PoissonSampledGaussian
from tests.accounting import oracles

ALONE = np.array([0])  # where the losses of one event begin
EVENTS = [PoissonSampledGaussian(q, s) for q, s in itertools.product((1e-4, 0.01, 0.5, 1.0), (0.3, 1.0, 5.0))]


@pytest.mark.parametrize("event", [*EVENTS, PoissonSampledGaussian(1e-8, 1.0)], ids=str)
def test_the_slack_covers_the_rounding_of_cell_boundaries(event: PoissonSampledGaussian) -> None:
    low, high = support(event, Direction.REMOVE, 7.0)
    losses = np.linspace(low, high, 41)[1:-1]
    outcomes, slack = pair(event).outcomes(losses, ALONE)
    with mpmath.workdps(50):
        q, s = mpmath.mpf(event.sampling_rate), mpmath.mpf(event.noise_multiplier)
        for wanted, outcome in zip(losses, outcomes, strict=True):
            exact = mpmath.log1p(q * mpmath.expm1(mpmath.mpf(outcome) / s))
            assert abs(exact - mpmath.mpf(wanted)) <= slack
    assert slack < 1e-12


@pytest.mark.parametrize("rest", [1e-2, 1e-6, 1e-10, 1e-13, 2.0**-53])
def test_the_slack_covers_large_negative_losses_at_rates_close_to_one(rest: float) -> None:
    event = PoissonSampledGaussian(1.0 - rest, 0.5)
    losses = np.linspace(np.log(rest) * 0.999, -1e-3, 40)
    outcomes, slack = pair(event).outcomes(losses, ALONE)
    with mpmath.workdps(60):
        q = mpmath.mpf(event.sampling_rate)
        for loss, outcome in zip(losses, outcomes, strict=True):
            exact = mpmath.log(1 - q + q * mpmath.exp(mpmath.mpf(float(outcome)) / mpmath.mpf(0.5)))
            assert abs(exact - mpmath.mpf(float(loss))) <= slack


@pytest.mark.parametrize(("q", "s"), [(0.01, 1.0), (1.0, 3.0), (0.7, 0.4)])
def test_the_error_covers_the_rounding_of_masses(q: float, s: float) -> None:
    gaussians = pair(PoissonSampledGaussian(q, s))
    losses = np.linspace(*gaussians.support(6.0)[:, 0], 60)[1:]
    p, base, slack = gaussians.masses(losses, ALONE)
    outcomes, _ = gaussians.outcomes(losses, ALONE)
    with mpmath.workdps(40):
        z, shifted = ([mpmath.mpf(x) + half / mpmath.mpf(s) for x in outcomes] for half in (0.5, -0.5))
        for cell in range(losses.size - 1):
            exact = [mpmath.ncdf(t[cell + 1]) - mpmath.ncdf(t[cell]) for t in (z, shifted)]
            assert abs(base.inside[cell] - exact[0]) <= base.error[cell]
            assert abs(p.inside[cell] - (1 - mpmath.mpf(q)) * exact[0] - mpmath.mpf(q) * exact[1]) <= p.error[cell]
    assert (p.error <= 1e-12).all()
    assert slack < 1e-12


def test_no_mass_is_lost_and_each_event_keeps_its_slack_in_both_directions_and_on_coarser_grids() -> None:
    """On a grid that ends at three deviations of the noise."""
    ((_, losses),) = discretise_events([PoissonSampledGaussian(0.1, 0.3), PoissonSampledGaussian(0.1, 5.0)], -10, 3.0)
    found = [grid.of(direction) for grid in (losses, losses.coarsen(2)) for direction in Direction]
    slack = [loss.slack for loss in found[0]]
    assert slack[0] > 2.0 * slack[1] > 0.0 and all([loss.slack for loss in few] == slack for few in found)
    assert all(1.0 <= loss.masses.sum() + loss.infinity <= 1.0 + 1e-9 for few in found for loss in few)


def test_the_table_of_moments_is_that_of_the_masses() -> None:
    loss = discretise(PoissonSampledGaussian(0.01, 1.0), -11, 7.0).of(Direction.REMOVE)[0]
    indices = loss.first + np.arange(loss.masses.size)
    for row in (0, 20, 40, 50):
        direct = np.log(np.sum(loss.masses * np.exp(TILTS[row] * indices)))
        assert loss.log_mgf[row] == pytest.approx(direct, abs=1e-9)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("q", "s", "log2_step"), [(0.003, 1.0, -13), (0.02, 0.6, -12)])
def test_cells_that_are_wider_in_the_tails_still_dominate_and_are_as_tight(
    q: float, s: float, log2_step: int, direction: Direction
) -> None:
    """A tenth of the points carry mass, and delta of the discrete loss is the exact one and a thousandth at most."""
    event, step = PoissonSampledGaussian(q, s), 2.0**log2_step
    loss = discretise(event, log2_step, 8.0).of(direction)[0]
    assert loss.present.size < 0.2 * loss.masses.size
    for epsilon in (loss.first + np.linspace(0.05, 0.7, 23) * loss.masses.size) * step:
        exact = oracles.single_step_delta(event, float(epsilon), remove=direction is Direction.REMOVE)
        ours = oracles.discrete_delta(loss, step, float(epsilon) - loss.slack)
        assert exact * (1.0 - 1e-9) <= ours <= exact * 1.001 + 1e-15
