"""Where a private training step goes: its processor time by part, as a client takes it; see `benchmarks.gradients`.

A client trains by `DPSGD` on a shard of four times the batch, at rate 1/4, in rounds of some local steps. While a round
is watched, the functions that are listed in `_spenders` tell a clock when they begin and end. A function's time is its
own: what a listed one within it takes counts there.

Rounds that are watched and rounds that are not take turns. The watch itself takes time, some in every part: both are
reported. Times are means of the middle half of the rounds, so that parts add up to a step.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from benchmarks.gradient_models import CLIPPING_NORM, LEARNING_RATE, NOISE_MULTIPLIER, problem
from benchmarks.measure import Mark, interleaved, median
from fedprivacy.gradients import GradientEngine, engine, methods, pieces, program, tape
from fedprivacy.mechanisms import gaussian_sum, keystream
from fedprivacy.tasks.task import Shard
from fedprivacy.training import batches, optimizers
from fedprivacy.training.dpsgd import DPSGD, NoisyMean
from fedprivacy.values.events import PoissonSampledGaussian

LOCAL_STEPS = 10
"""Number of steps of a round: what a round costs besides is a tenth of that in each."""

_SHARDS = 4
"""Records of a shard, in expected batches."""

SAMPLING, KEYS, ROWS, FORWARD, BACKWARD = "sampling", "keys and ciphers", "moving rows", "forward", "loss and backward"
GRADIENTS, NORMS, SUMS, BLOCKS = "per-record gradients", "norms", "clipped sums", "blocks of the sum"
NOISE, OPTIMISER, REST = "noise", "mean and optimiser", "all else, mostly Python"

PARTS = (SAMPLING, KEYS, ROWS, FORWARD, BACKWARD, GRADIENTS, NORMS, SUMS, BLOCKS, NOISE, OPTIMISER, REST)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One model's step, in microseconds of processor time.

    Attributes:
        step: a step that nobody watches, the median.
        watched: a step that is watched, by a clock of its own.
        parts: own time of each of `PARTS` in a watched step.
    """

    step: float
    watched: float
    parts: dict[str, float]


class Watch:
    """A clock that runs for one part at a time.

    Attributes:
        spent: nanoseconds of each part.
        whole: nanoseconds of all, by two looks at the time alone.
    """

    def __init__(self) -> None:
        self.spent, self.whole = dict.fromkeys(PARTS, 0), 0
        self._part, self._since = REST, 0

    def run(self, function: Callable[[], None]) -> None:
        """Call a function, while the clock runs."""
        start = self._since = time.process_time_ns()
        function()
        self.go(REST)
        self.whole = time.process_time_ns() - start

    def go(self, part: str) -> str:
        """Run for a part from now on; return the one before."""
        now, before = time.process_time_ns(), self._part
        self.spent[before] += now - self._since
        self._part, self._since = part, now
        return before

    def over(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, whose calls count for a part."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self.go(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.go(before)

        return call


def breakdown(name: str, rounds: int) -> Breakdown:
    """Take private steps of a model, and find where their time goes.

    Args:
        name: one of the names of `benchmarks.gradient_models`.
        rounds: turns of watched and of other rounds.
    """
    take, watched = _client(name), list[Watch]()

    def watch(_: Mark) -> None:
        clock = Watch()
        with ExitStack() as watching:
            for owner, attribute, call in watched_by(clock):
                watching.enter_context(patch.object(owner, attribute, call))
            clock.run(take)
        watched.append(clock)

    times = interleaved({"step": lambda _: take(), "watched": watch}, rounds, (), torch.device("cpu"))
    middle = _middle_half(sorted(watched[1:], key=lambda clock: clock.whole))  # the first may prepare something

    def mean(nanoseconds: Iterator[int]) -> float:
        return statistics.fmean(nanoseconds) / LOCAL_STEPS / 1e3

    parts = {part: mean(clock.spent[part] for clock in middle) for part in PARTS}
    return Breakdown(median(times["step"]) / LOCAL_STEPS * 1e6, mean(clock.whole for clock in middle), parts)


def _client(name: str) -> Callable[[], None]:
    """Return a function that takes a client's next round."""
    family, _, batch = name.rpartition("-")
    records = problem(f"{family}-{_SHARDS * int(batch)}", torch.device("cpu"))
    computing = GradientEngine(records.build(), partial(cross_entropy, reduction="none"))
    mechanism = gaussian_sum.SampledGaussianSum(PoissonSampledGaussian(1 / _SHARDS, NOISE_MULTIPLIER), CLIPPING_NORM)
    training = DPSGD(NoisyMean(mechanism, float(batch)), optimizers.SGD(LEARNING_RATE))
    shard, key, numbers = Shard(records.inputs, records.targets), keystream.Keystream.secret(), itertools.count(1)

    def take() -> None:
        training.train(computing, shard, steps=LOCAL_STEPS, round=next(numbers), keystream=key)

    return take


def watched_by(clock: Watch) -> Iterator[tuple[object, str, Callable[..., Any]]]:
    """Yield what is replaced while a round is watched: owner, attribute, and what tells the clock."""
    for part, owner, attribute in _spenders():
        yield owner, attribute, clock.over(part, getattr(owner, attribute))
    start: Callable[..., Any] = optimizers.SGD.start
    watch: Callable[..., Any] = tape.Tape.watch

    def watch_pieces(*use: Any) -> None:
        *before, pieces_of = use
        watch(*before, clock.over(GRADIENTS, pieces_of))

    yield optimizers.SGD, "start", lambda sgd, position: clock.over(OPTIMISER, start(sgd, position))
    yield tape.Tape, "watch", watch_pieces


def _spenders() -> Iterator[tuple[str, object, str]]:
    """Yield the functions that spend the time of a part: the part, the function's owner, its name."""
    yield SAMPLING, gaussian_sum, "poisson_sample"
    yield KEYS, keystream.Keystream, "subkey"
    yield KEYS, keystream.Reader.__dict__["_encryptor"], "func"
    yield ROWS, batches, "_rows"
    yield ROWS, engine, "filled"
    for method in (program.Program, methods.BookKeeping):
        yield FORWARD, method, "_forward"
        yield BACKWARD, method, "pieces"
    for kind in _kinds(program.Operation, "piece"):
        yield GRADIENTS, kind, "piece"
    yield NORMS, engine, "squared_norms"
    for kind in _kinds(pieces.Piece, "add_weighted_sum"):
        yield SUMS, kind, "add_weighted_sum"
    yield SUMS, GradientEngine, "_add"
    for step in ("__init__", "add", "total"):
        yield BLOCKS, pieces.Sums, step
    yield NOISE, gaussian_sum, "lattice_step"
    yield NOISE, gaussian_sum, "add_lattice_noise"
    yield OPTIMISER, NoisyMean, "release"
    yield REST, gaussian_sum.SampledGaussianSum, "release"


def _kinds(base: type[Any], function: str) -> list[type[Any]]:
    """Return the classes that derive from `base` directly and have a function of their own."""
    return [kind for kind in base.__subclasses__() if function in vars(kind)]


def _middle_half(ordered: Sequence[Watch]) -> Sequence[Watch]:
    return ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]


def report(models: dict[str, Breakdown], console: Console) -> None:
    """Print every model's parts, in microseconds and as shares of the watched step."""
    table = Table("part of a step", *models, box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for part in PARTS:
        table.add_row(part, *(_with_share(each.parts[part], each.watched) for each in models.values()))
    table.add_section()
    table.add_row("all, watched", *(f"{each.watched:,.0f} 100 %" for each in models.values()))
    table.add_row("not watched", *(_with_share(each.step, each.watched) for each in models.values()))
    console.print(table)


def _with_share(microseconds: float, whole: float) -> str:
    return f"{microseconds:,.0f} {100 * microseconds / whole:3.0f} %"
