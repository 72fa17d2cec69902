"""A run to feed trackers with. As a program, it feeds all of them: python -m tests.trackers.tracked_run FOLDER"""

import atexit
import json
import math
import socket
import sys
from pathlib import Path

from fedprivacy.trackers import TRACKERS, Feed, build_trackers
from fedprivacy.values.series import EpsilonSpread, RoundPoint, RunFacts

ROOT = Path(__file__).parent.parent.parent

FACTS = RunFacts(
    run_id="5f0c",
    name="digits-1",
    settings={
        "task": "/home/alice/hunter2/task.py:digits",
        "clients": 4,
        "rounds": 3,
        "local-steps": 5,
        "epsilon": None,
        "delta": 1e-5,
        "noise-multiplier": None,
        "sampling-rate": 0.25,
        "batch-size": None,
        "strategy": "/home/alice/hunter2/averaging.py:fedavg",
        "device": "auto",
        "ledger": "postgresql+psycopg://alice:hunter2@host/ledger",
        "signing-key": "/home/alice/hunter2/signing.key",
        "out": "runs/hunter2",
        "resume": "",
    },
    noise_multiplier=1.125,
    relation="zero-out",
    metric="accuracy",
)


def point(number, *, loss=0.5):
    return RoundPoint(
        round=number,
        metrics={"accuracy": 0.1 * number, "loss": loss, "f1@top 5%": 0.25},
        epsilons=EpsilonSpread(0.0, number / 8, number / 4, number / 2, float(number) if number < 3 else math.inf),
        clients=4,
        participants=3 if number else 0,
        failed=number % 2,
        exhausted=number // 2,
        unreconciled=number // 3,
    )


POINTS = [point(0), point(1, loss=math.nan), point(2, loss=-math.inf), point(3)]


def warnings(caplog):
    """The warnings of a feed."""
    return [record.getMessage() for record in caplog.records if record.name == "fedprivacy.server"]


def stay_offline():
    """Refuse this process every connection over a network, and say at its very end which it tried."""
    tried = []
    atexit.register(lambda: sys.stdout.write(json.dumps(tried)))
    connect = socket.socket.connect

    def refuse(self, address):
        if self.family == socket.AF_UNIX:
            return connect(self, address)
        tried.append(repr(address))
        raise ConnectionRefusedError(address)

    socket.socket.connect = refuse


def saying_something(record):
    """The console shows what no tracker should keep."""

    def say_and_record(point):
        sys.stdout.write("a console's words\n")
        record(point)

    return say_and_record


def main(folder):
    from alembic import command

    command.upgrade = None  # who calls it here fails: another run may do so in another thread
    stay_offline()
    trackers = build_trackers(",".join(TRACKERS))
    trackers["wandb"].record = saying_something(trackers["wandb"].record)
    feed = Feed(trackers)
    feed.begin(FACTS, folder)
    for each in POINTS:
        feed.record(each)
    feed.end("stopped", patience=600.0)  # however busy this machine is


if __name__ == "__main__":
    main(Path(sys.argv[1]))
