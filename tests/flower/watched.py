"""A task that notes in the run's folder who opens its shards, and in which a machine dies or a worker stands still."""

import os
import signal
import time
from pathlib import Path

import torch

import fedprivacy as fp

OPENED, EVALUATED, DEADLY, STILL, STANDING = map(Path, ("opened", "evaluated", "deadly", "still", "standing"))
"""Notes in the folder that the server works in: `part process` of each shard that is opened, and a dot for each
evaluation, of which the trial has the first and round 0 the second. While there is a file deadly, or still, it happens.
"""

DOOMED = "FEDPRIVACY_TESTS_DOOMED"
"""In the environment of the machine that is to die."""

IN_ROUND_2 = 3
"""Evaluations before it."""

STANDSTILL = 400.0
"""Seconds: longer than anybody waits for a run to end."""


class Watched(fp.Task):
    dataset = "made up"
    shard_sizes_public = True
    recipe = fp.Recipe(rounds=3, local_steps=2, sampling_rate=0.5, delta=1e-3, epsilon=5.0)

    def model(self):
        torch.manual_seed(0)
        return torch.nn.Linear(2, 2)

    def shard(self, source):
        with OPENED.open("a") as notes:
            notes.write(f"{source.partition_id} {os.getpid()}\n")
        generator = torch.Generator().manual_seed(source.partition_id)
        sides = torch.randint(2, (20 + source.partition_id % 5,), generator=generator)
        return fp.Shard(torch.randn(len(sides), 2, generator=generator) + sides[:, None], sides)

    def loss(self, outputs, targets):
        if EVALUATED.exists() and EVALUATED.stat().st_size == IN_ROUND_2:
            if DEADLY.exists() and DOOMED in os.environ:
                for process in (os.getppid(), os.getpid()):  # Ray's own process on this machine, and this worker
                    os.kill(process, signal.SIGKILL)
            if STILL.exists():
                STANDING.touch()
                time.sleep(STANDSTILL)
        return (outputs[:, 1] - targets).square()  # no cross entropy, whose gradient would be known without a call

    def evaluate(self, model):
        with EVALUATED.open("a") as notes:
            notes.write(".")
        return {"accuracy": float(model.weight.sum())}

    def partition(self, num_partitions):
        return "made up"


def opened():
    """Who has opened each shard: processes by part."""
    notes = [line.split() for line in OPENED.read_text().splitlines()]
    return {int(part): [int(process) for other, process in notes if other == part] for part, _ in notes}
