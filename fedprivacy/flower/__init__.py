"""The bridge to Flower: a strategy wrapper, a ClientApp, messages on the wire, an in-process grid."""

from fedprivacy.flower.client.app import private_client
from fedprivacy.flower.grid import InProcessGrid
from fedprivacy.flower.server.registry import TooFewClientsError
from fedprivacy.flower.server.rounds import RoundFailedError
from fedprivacy.flower.server.strategy import PrivateStrategy

__all__ = ["InProcessGrid", "PrivateStrategy", "RoundFailedError", "TooFewClientsError", "private_client"]
