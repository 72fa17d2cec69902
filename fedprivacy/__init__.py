"""fedprivacy: federated learning where the privacy cost is a first-class result."""

from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

__all__ = ["NeighbouringRelation", "PoissonSampledGaussian", "PrivacyBudget"]
