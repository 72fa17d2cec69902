"""fedprivacy: federated learning where the privacy cost is a first-class result."""

from fedprivacy.budget import PrivacyBudget
from fedprivacy.events import NeighbouringRelation, PoissonSampledGaussian

__all__ = ["NeighbouringRelation", "PoissonSampledGaussian", "PrivacyBudget"]
