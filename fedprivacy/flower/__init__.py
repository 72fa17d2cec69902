"""The bridge to Flower: a strategy wrapper, a ClientApp, messages on the wire, simulated clients.

Every name is loaded when it is first asked for: a data owner's client loads neither the server nor the simulator.
"""

from typing import TYPE_CHECKING

from fedprivacy._support.imports import from_homes, names_of

if TYPE_CHECKING:
    from fedprivacy.flower.client.client_app import private_client as private_client
    from fedprivacy.flower.server.accounts import BudgetSpentError as BudgetSpentError
    from fedprivacy.flower.server.nodes import TooFewClientsError as TooFewClientsError
    from fedprivacy.flower.server.rounds import RoundFailedError as RoundFailedError
    from fedprivacy.flower.server.strategy import PrivateStrategy as PrivateStrategy
    from fedprivacy.flower.simulated.engine import InProcessGrid as InProcessGrid
    from fedprivacy.flower.simulated.workers import WorkerError as WorkerError

_HOMES = {
    "BudgetSpentError": "server.accounts",
    "InProcessGrid": "simulated.engine",
    "PrivateStrategy": "server.strategy",
    "RoundFailedError": "server.rounds",
    "TooFewClientsError": "server.nodes",
    "WorkerError": "simulated.workers",
    "private_client": "client.client_app",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - all of them are strings

__getattr__ = from_homes(__name__, _HOMES)
__dir__ = names_of(__name__)
