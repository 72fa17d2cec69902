"""What the tests of a guard charge, and against which budget."""

from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.05, 1.2, NeighbouringRelation.ZERO_OUT)
BUDGET = PrivacyBudget(3.0, 1e-5)


def key(round=1, attempt=0, run_id="run"):
    return Attempt(run_id, round, attempt)
