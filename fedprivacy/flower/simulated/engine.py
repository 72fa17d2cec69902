"""Runs the same ServerApp and ClientApp without a network: in this process, or on Flower's engine on Ray."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedprivacy.flower.client.client_app import TaskApp
from fedprivacy.flower.client.local import IN_PROCESS
from fedprivacy.flower.kept import KeptModels
from fedprivacy.flower.simulated.cluster import ClusterWorkers
from fedprivacy.flower.simulated.crew import USELESS, Crew
from fedprivacy.flower.simulated.populations import Population, train_privately
from fedprivacy.flower.simulated.workers import Workers
from fedprivacy.flower.unpublished import begin_task, empty_run, failed_reply, number
from fedprivacy.runs.placement import HERE, Placement
from fedprivacy.runs.records.folder import check_usable, read_history
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.settings.configuration import ConfigError, Engine, RunConfig
from fedprivacy.runs.settings.device import choose_device
from fedprivacy.tasks.identity import simulated_client_id

if TYPE_CHECKING:
    from fedprivacy.flower.unpublished import Run

log = logging.getLogger("fedprivacy.engine")

_ENDED = "ended"
"""File in Ray's folder from which its workers learn that nobody waits for their clients any more."""

_GIVE_UP = signal.SIGUSR1
"""Signal that a worker sends to itself when that file appears."""

_LOOK_SECONDS = 0.2
"""Seconds between two looks for that file."""

POPULATION = 100
"""Minimum number of clients that train together in one process; fewer get messages, as deployed ones do."""

_SERVER_NODE_ID = 1
_FIRST_CLIENT_NODE_ID = 1000


def simulate(
    server_app: ServerApp,
    client_app: ClientApp,
    config: RunConfig,
    placement: Placement = HERE,
) -> RunHistory:
    """Run a simulation to its end and read back what it recorded.

    Args:
        server_app: made with `config`, for example `fedprivacy.server.app.server_app(config=config)`.
        client_app: made with `config`, for example `fedprivacy.flower.private_client(config=config)`.
        config: the run's configuration; `out` must be set.
        placement: where clients run, and in how many processes.

    Raises:
        ConfigError: `out` is empty, the configured device is not there, or there cannot be such workers, or the engine
            cannot have asynchronous rounds.
        WorkerError: one of these died, and so did the one that took its clients.
        RunFolderError: `out` holds a run already, or cannot be written; said before an engine is started, which takes
            a while.
    """
    if not config.out:
        raise ConfigError(["out is empty; name the folder that receives the results."])
    placement.check()
    check_rounds(config, placement.engine)
    check_machine(config, placement)
    drive(server_app, client_app, config, placement)
    return read_history(Path(config.out))


def drive(server_app: ServerApp, client_app: ClientApp, config: RunConfig, placement: Placement = HERE) -> None:
    """Let a ServerApp talk to simulated clients until it has done what it does."""
    with quiet_flower():
        if placement.engine is Engine.RAY:
            _on_ray(server_app, client_app, config)
        else:
            _in_process(server_app, client_app, config, placement)


def check_rounds(config: RunConfig, engine: Engine) -> None:
    """Raise a `ConfigError` unless an engine can have rounds as they are configured."""
    if engine is Engine.RAY and config.buffer_size is not None:
        raise ConfigError(
            [
                f"buffer-size is {config.buffer_size}, and asynchronous rounds are simulated in this process; choose "
                "engine in-process."
            ]
        )
    if engine is Engine.RAY and config.keeps:
        raise ConfigError(
            [
                f"{config.keeping}, and clients keep something from round to round, for which Flower's engine has no "
                "checkpoint; choose engine in-process, which has workers and takes a ray-address, too."
            ]
        )


def check_machine(config: RunConfig, placement: Placement = HERE) -> None:
    """Raise what this machine would stop a run with: a device that it lacks, a folder that cannot be written."""
    if not placement.ray_address:  # a cluster's machines have devices of their own
        choose_device(config.device)
    if not config.resume:
        check_usable(Path(config.out))


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


def _in_process(server_app: ServerApp, client_app: ClientApp, config: RunConfig, placement: Placement) -> None:
    population = _population(client_app, config, placement)
    with population if isinstance(population, Crew) else nullcontext():
        grid = InProcessGrid(client_app, config.clients, run_config={}, population=population)
        server_app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))


def trains_together(config: RunConfig, placement: Placement = HERE) -> bool:
    """True if clients of our app train as one population: they are many, or rounds are asynchronous."""
    many = config.clients >= POPULATION or config.buffer_size is not None
    return many and placement.engine is Engine.IN_PROCESS


def _population(client_app: ClientApp, config: RunConfig, placement: Placement = HERE) -> Population | None:
    """The clients as one population, where they are many, or rounds asynchronous, and their app is ours."""
    together = trains_together(config, placement)
    if not isinstance(client_app, TaskApp) or client_app.config is None or not together:
        if placement.elsewhere:
            choose_device(config.device)
            log.warning(USELESS, placement.words, f"fewer than {POPULATION} clients, or an app of another kind")
        return None
    task, train = client_app.task, getattr(client_app, "train_together", train_privately)  # a baseline has its own
    if not placement.elsewhere:
        return Population(task, config, train)
    return (ClusterWorkers if placement.ray_address else Workers)(task, config, train, placement)


def _on_ray(server_app: ServerApp, client_app: ClientApp, config: RunConfig) -> None:
    """Flower's own simulation of Python objects: deprecated, and the only one that takes fractions of a GPU.

    The server runs in this thread, as it does without Ray, and Flower's engine in one of its own: so Ctrl-C and errors
    end the server where it is, and neither waits for the other for ever.
    """
    from flwr.simulation import run_simulation

    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    # A worker that is not there after this time is started anew, for ever; on a busy machine Ray's minute is too short.
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")
    handed: SimpleQueue[tuple[Grid, Context] | None] = SimpleQueue()
    done = threading.Event()

    def hand_over(grid: Grid, context: Context) -> None:
        handed.put((grid, context))
        done.wait()

    # Ray joins whatever cluster its temporary folder names, even a dead one: give it a folder of its own.
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,
        warnings.catch_warnings(),
        ThreadPoolExecutor(1) as thread,
    ):
        warnings.simplefilter("ignore")
        client = cast(ClientApp, _Travelling(client_app, Path(folder, _ENDED)))
        server, backend = cast(ServerApp, hand_over), _ray_backend(config, folder)
        engine = thread.submit(run_simulation, server, client, config.clients, backend_config=backend)
        engine.add_done_callback(lambda _: handed.put(None))
        try:
            if given := handed.get():
                server_app(*given)
        except BaseException:
            logging.getLogger("flwr").setLevel(logging.CRITICAL)  # clients that fail now are no news
            done.set()
            Path(folder, _ENDED).touch()
            raise
        done.set()
        engine.result()


class _Travelling:
    """A ClientApp that goes to Ray's workers with every message, and is unpickled once in each.

    What a client keeps for the life of a process (shards, engines) it keeps for its task, which must stay one object.
    A worker gives up what its client does when the file `ended` appears.
    """

    def __init__(self, app: ClientApp, ended: Path) -> None:
        from ray import cloudpickle

        self._app = app
        self._ended = ended
        pickled: Callable[[object], bytes] = cloudpickle.dumps
        self._pickled = pickled(app)

    def __call__(self, message: Message, context: Context) -> Message:
        return self._app(message, context)

    def __reduce__(self) -> tuple[Callable[[bytes, Path], ClientApp], tuple[bytes, Path]]:
        return _unpickled, (self._pickled, self._ended)


@lru_cache(maxsize=1)
def _unpickled(app: bytes, ended: Path) -> ClientApp:
    signal.signal(_GIVE_UP, signal.default_int_handler)  # Ray keeps SIGINT itself from its workers
    threading.Thread(target=_give_up_with, args=(ended,), daemon=True).start()
    return cast(ClientApp, pickle.loads(app))


def _give_up_with(ended: Path) -> None:
    while not ended.exists():
        time.sleep(_LOOK_SECONDS)
    signal.pthread_kill(threading.main_thread().ident or 0, _GIVE_UP)


def _ray_backend(config: RunConfig, folder: str) -> dict[str, Any]:
    import torch

    gpus = torch.cuda.device_count() if config.device != "cpu" else 0
    address = os.environ.get("RAY_ADDRESS")
    cluster = {"address": address} if address else {"num_cpus": os.cpu_count(), "num_gpus": gpus, "_temp_dir": folder}
    return {
        "init_args": cluster | {"logging_level": "ERROR", "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": min(1.0, gpus / config.clients) if gpus else 0.0},
    }


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
        """Create a message from the server."""
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
