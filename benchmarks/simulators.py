"""This project's simulation, and the least that any simulation could cost: the same rounds, each told when it begins.

A contender takes a setting and a number of rounds, and returns the seconds of `time.perf_counter` at which each round
began, and the last one ended.
"""

from __future__ import annotations

import inspect
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fedprivacy as fp
import fedprivacy.simulation.simulate  # `fedprivacy` loads it when it is first used, which would count as work
from benchmarks.populations import BATCH, LEARNING_RATE, NOISE_MULTIPLIER, STEPS, Population, Setting

EPSILON, DELTA = 100.0, 1e-5
"""A budget that is enforced, and spent by nobody: every round has its whole cohort."""

WORKERS = "workers"
"""The setting of `fp.simulate` that says how many processes train."""


class TimedPopulation(Population):
    """A population that notes when it is evaluated: when it is tried, before the first round, and after each."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.marks: list[float] = []

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Nothing but the time."""
        self.marks.append(time.perf_counter())
        return {}


def has_workers() -> bool:
    """Whether `fp.simulate` can train in several processes."""
    return WORKERS in inspect.signature(fp.simulate).parameters


def fedprivacy_rounds(setting: Setting, rounds: int, **settings: Any) -> list[float]:
    """`fp.simulate`: record-level privacy, with accounting, enforced budgets, ledger and recorder."""
    task = TimedPopulation(replace(setting, device="cpu"))  # the engine moves a shard to its device
    with tempfile.TemporaryDirectory() as folder:
        fp.simulate(
            task,
            clients=setting.users,
            rounds=rounds,
            fraction_train=setting.cohort / setting.users,
            noise_multiplier=NOISE_MULTIPLIER,
            epsilon=EPSILON,
            delta=DELTA,
            seed=0,
            device=setting.device,
            out=Path(folder, "run"),
            progress=False,
            **settings,
        )
    return task.marks[-rounds - 1 :]


def bare_rounds(setting: Setting, rounds: int) -> list[float]:
    """Plain SGD without privacy or messages: one model into which the global parameters are copied for each user."""
    draw = random.Random(0)
    model = setting.model().to(setting.device)
    local = list(model.parameters())
    world = [parameter.detach().clone() for parameter in local]
    optimizer = torch.optim.SGD(local, lr=LEARNING_RATE)
    marks = [time.perf_counter()]
    for _ in range(rounds):
        total = [torch.zeros_like(parameter) for parameter in world]
        for user in draw.sample(range(setting.users), setting.cohort):
            _copy(world, local)
            _descend(model, optimizer, *setting.records(user))
            _add(local, total, 1.0 / setting.cohort)
        world = total
        if setting.device != "cpu":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
    return marks


@torch.no_grad()
def _copy(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    for there, here in zip(source, target, strict=True):
        here.copy_(there)


@torch.no_grad()
def _add(local: Sequence[Tensor], total: Sequence[Tensor], weight: float) -> None:
    for parameter, sum in zip(local, total, strict=True):
        sum.add_(parameter, alpha=weight)


def _descend(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> None:
    for first in range(0, STEPS * BATCH, BATCH):
        optimizer.zero_grad()
        batch = slice(first, first + BATCH)
        functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
