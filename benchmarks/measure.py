"""What one step costs in time and memory, next to the other contenders.

Time. Contenders take turns in one process: A B C A B C. Whatever slows the machine down slows all of them, so ratios
are taken within a round and the median over rounds is reported. On a CPU it is processor time, on a GPU wall time
between two synchronisations.

Memory. A contender is built anew and takes two steps. Counted is what is alive at the worst moment of the second step
and was not before it was built, less the model's parameters: activations, gradients, noise, and what a contender keeps
from one step to the next (`.grad`, buffers). On a CPU, PyTorch's profiler tells each allocation of a tensor, and
tracemalloc the peak of what Python and numpy allocate in the step (of this, what is kept between steps is not seen).
A step marks where its gradients end and its noise begins; the two peaks are added within each stage, so the figure can
only be too large. Neither sees the scratch of the BLAS. On a GPU it is the peak of PyTorch's allocator. The figure is
the same every time, but for a kilobyte of Python objects.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

Mark = Callable[[], None]
"""Called by a step where its gradients end and its noise begins."""

Step = Callable[[Mark], None]
"""One training step."""

Times = dict[str, list[float]]
"""Seconds a step, for each contender and round; NaN for a round that it sat out."""

_LEAST_SECONDS = 0.03
"""A step is repeated until a measurement takes this long."""

_FAR_BEHIND = 3.0
"""Times slower than the quickest rival: more than any noise of a measurement."""

_ROUNDS_OF_THOSE_BEHIND = 2

_STAGE = "benchmarks.measure.stage"


def nothing() -> None:
    """The mark of a step whose stages do not matter."""


def seconds(step: Step, device: torch.device, repetitions: int = 1) -> float:
    """Mean time of a step."""
    start = _now(device)
    for _ in range(repetitions):
        step(nothing)
    return (_now(device) - start) / repetitions


def interleaved(steps: Mapping[str, Step], rounds: int, rivals: Collection[str], device: torch.device) -> Times:
    """Time steps by turns, each warmed up before.

    Args:
        steps: the contenders.
        rounds: turns of each.
        rivals: contenders of which only the quickest matters. Those far behind it take part in two rounds only.
        device: where they run.
    """
    first = {name: _estimate(step, device) for name, step in steps.items()}
    quickest = min((first[name] for name in rivals if name in first), default=math.inf)
    behind = {name for name in rivals if first.get(name, 0.0) > _FAR_BEHIND * quickest}
    times: Times = {name: [] for name in steps}
    for round in range(rounds):
        for name, step in steps.items():
            if name in behind and round >= _ROUNDS_OF_THOSE_BEHIND:
                times[name].append(math.nan)
            else:
                times[name].append(seconds(step, device, _repetitions(first[name])))
    return times


def _estimate(step: Step, device: torch.device) -> float:
    once = seconds(step, device)
    return once if once >= _LEAST_SECONDS else seconds(step, device, _repetitions(once))


def _repetitions(once: float) -> int:
    return math.ceil(_LEAST_SECONDS / once)


def median(values: Sequence[float]) -> float:
    """Median of the rounds that were measured."""
    return statistics.median(value for value in values if not math.isnan(value))


def time_ratio(times: Times, one: str, other: str) -> float:
    """Median over rounds of one contender's time over another's."""
    return median([a / b for a, b in zip(times[one], times[other], strict=True)])


def peak_bytes(build: Callable[[], Step], parameter_bytes: int, device: torch.device) -> int:
    """The most memory that a step needs beyond the model's parameters; see the module's text for the rule.

    Args:
        build: makes model and step.
        parameter_bytes: size of the model's parameters.
        device: where the step runs.
    """
    gc.collect()
    return (_peak_on_gpu(build, device) if device.type == "cuda" else _peak_on_cpu(build)) - parameter_bytes


def _peak_on_cpu(build: Callable[[], Step]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler announces itself
    python_peaks: list[int] = []

    def mark() -> None:
        python_peaks.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.reset_peak()
        with record_function(_STAGE):
            pass

    with profile(use_kineto=True, profile_memory=True) as profiler:
        step = build()
        step(nothing)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        mark()
        step(mark)
        mark()
        tracemalloc.stop()
    return max(map(sum, zip(_tensor_peaks(profiler), python_peaks[1:], strict=True)))


def tensor_peak(build: Callable[[], Step]) -> int:
    """Return the largest number of bytes of tensors in the third step that were not there before `build`, on a CPU.

    The profiler also sees what a kernel allocates for itself, such as a conversion to float64 before a sum.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler announces itself
    gc.collect()
    with profile(use_kineto=True, profile_memory=True) as profiler:
        step = build()
        step(nothing)
        step(nothing)
        gc.collect()
        for marked in (nothing, lambda: step(nothing)):
            marked()
            with record_function(_STAGE):
                pass
    return max(_tensor_peaks(profiler))


def _tensor_peaks(profiler: Any) -> list[int]:
    """Bytes of tensors at the worst moment between one mark and the next."""
    alive, peaks = 0, []
    for event in sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == _STAGE:
            peaks.append(alive)
        elif event.name() == "[memory]":
            alive += event.nbytes()
            if peaks:
                peaks[-1] = max(peaks[-1], alive)
    return peaks[:-1]


def _peak_on_gpu(build: Callable[[], Step], device: torch.device) -> int:
    before = torch.cuda.memory_allocated(device)
    step = build()
    step(nothing)
    torch.cuda.reset_peak_memory_stats(device)
    step(nothing)
    return torch.cuda.max_memory_allocated(device) - before


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
