"""Rounds of Flower's simulation on Ray whose clients train with Opacus, as Flower's own example of the two has it.

Each client makes its model, optimizer and loader private anew in every round; no epsilon is asked for. The example
reads it every round, which costs many times what training does.
"""

from __future__ import annotations

import logging
import time
import warnings

import opacus
import ray
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.engines import TimedFedAvg, on_ray
from benchmarks.populations import BATCH, CLIPPING_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Setting

PRELOADED = (ray,)
"""What `on_ray` imports, which would count as work."""


def opacus_client(setting: Setting) -> ClientApp:
    """A ClientApp that trains its user's records with Opacus."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = setting.model()
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        model.load_state_dict(arrays.to_torch_state_dict())
        records = TensorDataset(*setting.records(int(context.node_config["partition-id"])))
        _descend(model, records)
        metrics = MetricRecord({"num-examples": len(records)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def _descend(model: torch.nn.Module, records: TensorDataset) -> None:
    """One pass of Poisson-sampled steps."""
    warnings.filterwarnings("ignore", message="Secure RNG turned off|Full backward hook is firing")
    private, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        data_loader=DataLoader(records, batch_size=BATCH),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIPPING_NORM,
    )
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.cross_entropy(private(inputs), targets).backward()
        optimizer.step()


def flower_rounds(setting: Setting, rounds: int) -> list[float]:
    """Flower's FedAvg, and as many of Ray's workers as there are cores."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = TimedFedAvg(setting.users, setting.cohort)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid=grid, initial_arrays=ArrayRecord(setting.model().state_dict()), num_rounds=rounds)
        strategy.started.append(time.perf_counter())

    on_ray(server, opacus_client(setting), setting.users)
    return strategy.started
