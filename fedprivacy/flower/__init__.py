"""The bridge to Flower: a strategy wrapper, a ClientApp, messages on the wire, an in-process grid."""

from fedprivacy.flower.client.app import private_client
from fedprivacy.flower.client.crew import WorkerError
from fedprivacy.flower.server.accounts import BudgetSpentError
from fedprivacy.flower.server.registry import TooFewClientsError
from fedprivacy.flower.server.rounds import RoundFailedError
from fedprivacy.flower.server.strategy import PrivateStrategy
from fedprivacy.flower.simulation import InProcessGrid

__all__ = [
    "BudgetSpentError",
    "InProcessGrid",
    "PrivateStrategy",
    "RoundFailedError",
    "TooFewClientsError",
    "WorkerError",
    "private_client",
]
