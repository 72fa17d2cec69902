"""Runs the same ServerApp and ClientApp without a network: in this process, with workers or without."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedprivacy.flower.client.client_app import TaskApp
from fedprivacy.flower.client.local import IN_PROCESS
from fedprivacy.flower.kept import KeptModels
from fedprivacy.flower.simulated.cluster import ClusterWorkers
from fedprivacy.flower.simulated.populations import Population, train_privately
from fedprivacy.flower.simulated.workers import USELESS, Crew, Workers
from fedprivacy.flower.unpublished import begin_task, empty_run, failed_reply, number
from fedprivacy.runs.placement import HERE, Placement
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.runs.settings.device import choose_device, gpus_here
from fedprivacy.tasks.identity import simulated_client_id

if TYPE_CHECKING:
    from fedprivacy.flower.unpublished import Run

log = logging.getLogger("fedprivacy.engine")

POPULATION = 100
"""Minimum number of clients that train together in one process; fewer get messages, as deployed ones do."""

_SERVER_NODE_ID = 1
_FIRST_CLIENT_NODE_ID = 1000


def drive(server_app: ServerApp, client_app: ClientApp, config: RunConfig, placement: Placement = HERE) -> None:
    """Let a ServerApp talk to simulated clients until it has done what it does.

    Args:
        server_app: made with `config`, for example `fedprivacy.server.app.server_app(config=config)`.
        client_app: made with `config`, for example `fedprivacy.flower.private_client(config=config)`.
        config: the run's configuration.
        placement: where clients run, and in how many processes.

    Raises:
        ConfigError: there cannot be such workers.
        WorkerError: one of these died, and so did the one that took its clients.
    """
    with quiet_flower():
        population = _population(client_app, config, placement)
        with population if isinstance(population, Crew) else nullcontext():
            grid = InProcessGrid(client_app, config.clients, run_config={}, population=population)
            server_app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Keep Flower's log of every round out of the way of the progress bar."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def trains_together(config: RunConfig) -> bool:
    """True if clients of our app are many, and train as one population."""
    return config.clients >= POPULATION


def config_here(config: RunConfig, placement: Placement) -> RunConfig:
    """Return the configuration by which this process opens shards: on its CPU those that others train on GPUs.

    Raises:
        ConfigError: there cannot be such workers.
    """
    if not trains_together(config) and not placement.ray_address:
        return config
    there = placement.ray_address or any(seat.environment for seat in placement.seats(config.device, gpus_here()))
    return replace(config, device="cpu" if there else str(choose_device(config.device)))


def _population(client_app: ClientApp, config: RunConfig, placement: Placement = HERE) -> Population | None:
    """The clients as one population, where they are many, and their app is ours."""
    if not isinstance(client_app, TaskApp) or client_app.config is None or not trains_together(config):
        if placement.elsewhere:
            choose_device(config.device)
            log.warning(USELESS, placement.words, f"fewer than {POPULATION} clients, or an app of another kind")
        return None
    task, train = client_app.task, getattr(client_app, "train_together", train_privately)  # a baseline has its own
    if placement.ray_address:
        return ClusterWorkers(task, config, train, placement)
    seats = placement.seats(config.device, gpus_here())
    return Workers(task, config, train, placement, seats) if seats else Population(task, config, train)


class InProcessGrid(Grid):
    """The in-process engine: delivers every message to a ClientApp at once, one client after another, in this thread.

    Args:
        client_app: what every client runs.
        clients: number of simulated clients.
        run_config: what the clients find in their context.
        run_id: Flower's number of the run.
        population: the clients as one population, which may train together; None: each has its messages.
    """

    def __init__(
        self,
        client_app: ClientApp,
        clients: int,
        run_config: UserConfig,
        run_id: int = 1,
        population: Population | None = None,
    ) -> None:
        begin_task(run_id, _SERVER_NODE_ID)
        self.population = population
        self.kept = KeptModels() if population is None else population.kept
        self._client_app = client_app
        self._clients, self._run_config = clients, run_config
        self._run, self._run_id = empty_run(run_id), run_id
        self._messages = 0
        self._replies: dict[str, Message] = {}
        nodes = range(_FIRST_CLIENT_NODE_ID, _FIRST_CLIENT_NODE_ID + clients)
        self._contexts: dict[int, Context] = {}
        if population is None:
            self._contexts |= {node_id: self._context(node_id) for node_id in nodes}

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Every client's node id."""
        if self.population is None:
            return list(self._contexts)
        return list(range(_FIRST_CLIENT_NODE_ID, _FIRST_CLIENT_NODE_ID + self._clients))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run every message's client at once and keep the replies."""
        message_ids = []
        for message in messages:
            message_id = self._number(message)
            reply = self._deliver(message)
            self._number(reply)
            self._replies[message_id] = reply
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand over the replies to these messages, each once."""
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run the messages' clients and return their replies."""
        return self.pull_messages(self.push_messages(messages))

    def _number(self, message: Message) -> str:
        self._messages += 1
        number(message, str(self._messages))
        return str(self._messages)

    def _deliver(self, message: Message) -> Message:
        context = self._context(message.metadata.dst_node_id)
        client_id = simulated_client_id(message.metadata.dst_node_id - _FIRST_CLIENT_NODE_ID, self._clients)
        self.kept.lend(client_id, context.state)
        try:
            reply = self._client_app(message, context)
            self.kept.take(client_id, context.state)
            return reply
        except Exception:
            log.exception("The ClientApp of node %s failed.", message.metadata.dst_node_id)
            return failed_reply(message)

    def _context(self, node_id: int) -> Context:
        """A client's own; in a population, made when it is first asked for something."""
        if node_id not in self._contexts:
            part = node_id - _FIRST_CLIENT_NODE_ID
            self._contexts[node_id] = Context(
                run_id=self._run_id,
                node_id=node_id,
                node_config={"partition-id": part, "num-partitions": self._clients, IN_PROCESS: True},
                state=RecordDict(),
                run_config=self._run_config,
            )
        return self._contexts[node_id]
