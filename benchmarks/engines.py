"""What an engine costs: milliseconds for one client task that does nothing.

    python -m benchmarks.engines [--json] [--clients 100] [--parameters 30000] [--rounds 5]

The same ServerApp (Flower's FedAvg, every client in every round) and the same ClientApp (returns the arrays that it
received) run on our in-process grid and on Flower's simulation engine on Ray, in one process, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedprivacy.flower import InProcessGrid

Engine = Callable[[ServerApp, ClientApp, int], None]


class TimedFedAvg(FedAvg):
    """FedAvg that notes when each round begins.

    Args:
        clients: that it waits for.
        cohort: how many of them train in a round; None: all.
    """

    def __init__(self, clients: int, cohort: int | None = None) -> None:
        asked = clients if cohort is None else cohort
        super().__init__(
            fraction_train=asked / clients, fraction_evaluate=0.0, min_train_nodes=asked, min_available_nodes=clients
        )
        self.started: list[float] = []

    def configure_train(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        """Note the time once the nodes are there."""
        messages = super().configure_train(*args, **kwargs)
        self.started.append(time.perf_counter())
        return messages


def idle_client() -> ClientApp:
    """A ClientApp that sends back what it got."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    return app


def milliseconds_per_task(engine: Engine, clients: int, parameters: int, rounds: int) -> float:
    """Median over rounds of the time of a round, divided by the number of clients."""
    strategy = TimedFedAvg(clients)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord({"flat": Array(np.zeros(parameters, dtype=np.float32))})
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        strategy.started.append(time.perf_counter())

    engine(server, idle_client(), clients)
    durations = np.diff(strategy.started)
    return 1000.0 * statistics.median(durations) / clients


def in_process(server: ServerApp, client: ClientApp, clients: int) -> None:
    """Our engine."""
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    server(InProcessGrid(client, clients, run_config={}), context)


def on_ray(server: ServerApp, client: ClientApp, clients: int) -> None:
    """Flower's engine."""
    from flwr.simulation import run_simulation

    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        init: dict[str, Any] = {
            "num_cpus": os.cpu_count(),
            "_temp_dir": folder,
            "logging_level": "ERROR",
            "log_to_driver": False,
        }
        backend = {"init_args": init, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, client, clients, backend_config=backend)


def main() -> None:
    """Measure both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    size = (options.clients, options.parameters, options.rounds)
    ours, ray = milliseconds_per_task(in_process, *size), milliseconds_per_task(on_ray, *size)
    if options.json:
        print(json.dumps({"in_process_ms": ours, "ray_ms": ray}))
        return
    print(f"{options.clients} clients, {options.parameters} parameters, median of {options.rounds} rounds, per task:")
    print(f"  in-process grid      {ours:8.3f} ms")
    print(f"  Flower on Ray        {ray:8.3f} ms  ({ray / ours:.0f} x)")


if __name__ == "__main__":
    main()
