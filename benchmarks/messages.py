"""The number of bytes of a round's messages, next to those of Flower's federated averaging without privacy.

    python -m benchmarks.messages [--json] [--settings lr,mlp]

Both average the same models over three clients, by messages. Counted is the content of a training's message as Flower
writes it: what the server sends to a client, and what the client answers. TLS and Flower's headers are added to both.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import chdir
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedprivacy as fp
from benchmarks.engines import idle_client
from benchmarks.populations import SETTINGS, Population, Setting
from fedprivacy.flower import InProcessGrid
from fedprivacy.flower.simulated.engine import quiet_flower
from fedprivacy.server.app import server_app

CLIENTS, ROUNDS = 3, 2


class WeighedApp(ClientApp):
    """A ClientApp that notes the number of bytes of the largest message that it got to train, and of its answer."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self.app, self.sent, self.answered = app, 0, 0

    def __call__(self, message: Message, context: Context) -> Message:
        """Hand the message on."""
        sent = recorddict_to_proto(message.content).ByteSize()
        reply = self.app(message, context)
        if message.metadata.message_type == MessageType.TRAIN:
            self.sent = max(self.sent, sent)
            self.answered = max(self.answered, recorddict_to_proto(reply.content).ByteSize())
        return reply


def weighed(server: ServerApp, client: ClientApp, **run_config: str | float) -> WeighedApp:
    """Run a server and its clients, and return the client that noted the weights."""
    app = WeighedApp(client)
    context = Context(1, 1, {}, RecordDict(), run_config)
    with tempfile.TemporaryDirectory() as folder, chdir(folder), quiet_flower():
        server(InProcessGrid(app, CLIENTS, run_config), context)
    return app


def averaging(setting: Setting) -> ServerApp:
    """Flower's own server, without privacy."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(setting.model().state_dict()), num_rounds=ROUNDS)

    return app


def bytes_of(setting: Setting) -> dict[str, Any]:
    """Weigh both contenders' messages."""
    task = Population(setting)
    settings = {"clients": CLIENTS, "rounds": ROUNDS, "noise-multiplier": 1.0, "epsilon": 100.0}
    ours = weighed(server_app(task=task, drawn=False), fp.private_client(task), **settings)
    flower = weighed(averaging(setting), idle_client())
    return {
        "parameters": sum(parameter.numel() for parameter in setting.model().parameters()),
        **{"sent": ours.sent, "answered": ours.answered},
        **{"flower_sent": flower.sent, "flower_answered": flower.answered},
    }


def main() -> None:
    """Weigh messages and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--settings", default="lr,mlp,cnn,pfl-cnn", help="whose models are sent")
    options = parser.parse_args()
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    found = {name: bytes_of(SETTINGS[name]) for name in options.settings.split(",")}
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'model':8} {'parameters':>10} {'sent':>10} {'answered':>10}   {'Flower: sent':>12} {'answered':>10}")
    for name, row in found.items():
        parameters, sent, answered, flower_sent, flower_answered = (f"{number:,}" for number in row.values())
        print(f"{name:8} {parameters:>10} {sent:>10} {answered:>10}   {flower_sent:>12} {flower_answered:>10}")


if __name__ == "__main__":
    main()
