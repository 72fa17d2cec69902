"""A task and a strategy that end their run at one moment, stand still there until somebody does, or fill its disk."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import torch
from flwr.serverapp.strategy import FedAvg

import fedprivacy as fp

MOMENT = "STOPPED_AT"
"""In the environment: `moment:n`, when it comes for the n-th time."""

HERE = "STANDING_STILL"
"""In the environment: the file that says that it has come; it also counts. Without `still` the process ends itself."""

RUN = "RUN_OF"
"""In the environment: the run's folder. Before it is there, the task is only tried, and nothing counts."""

FILL = "FILL"
"""In the environment: `folder:bytes`, a disk to fill, and what is left free of it."""

STILL = "STAND_STILL"
STANDSTILL = 600.0
"""Seconds: longer than anybody waits for a run to end."""


def reach(moment):
    wanted, _, times = os.environ.get(MOMENT, "").partition(":")
    if wanted != moment or not Path(os.environ[RUN], "config.json").exists():
        return
    here = Path(os.environ[HERE])
    with Path(f"{here}.count").open("a+") as count:
        count.write(".")
        come = count.tell()
    if come == int(times):
        here.touch()
        if FILL in os.environ:
            fill(*os.environ[FILL].split(":"))
        elif os.environ.get(STILL):
            time.sleep(STANDSTILL)
        else:
            os.kill(os.getpid(), signal.SIGINT)


def fill(folder, free):
    with Path(folder, "filler").open("wb", buffering=0) as filler:
        with suppress(OSError):
            while True:
                filler.write(bytes(4096))
        filler.truncate(filler.tell() - int(free))


class Coins(fp.Task):
    recipe = fp.Recipe(rounds=4, delta=1e-3, epsilon=5.0)

    def model(self):
        reach("enrolling")
        return torch.nn.Linear(2, 2)

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id)
        sides = torch.randint(2, (60,), generator=generator)
        return fp.Shard(torch.randn(60, 2, generator=generator) + sides[:, None], sides)

    def loss(self, outputs, targets):
        reach("training")
        return super().loss(outputs, targets) + 0.0  # cross entropy alone would be known, and asked for in no step

    def evaluate(self, model):
        reach("recording")
        return {"accuracy": float(model.weight.sum())}

    def partition(self, num_partitions):
        return "made up"


class Slow(FedAvg):
    def aggregate_train(self, server_round, replies):
        reach("averaging")
        return super().aggregate_train(server_round, replies)
