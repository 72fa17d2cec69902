"""Launches of a training step, the values that it waits for, the rows that it computes and the memory that it takes.

    python -m benchmarks.launches [--models lr-256] [--device cuda] [--parts | --memory] [--json] [--lines FILE]

On a GPU a small model's step takes as long as its launches, whatever the arithmetic. These can be counted without one:
they are torch's operations, but for views and empty memory. A wait is an operation whose result the host must have
before it goes on. Counted are a step of ours as a CPU computes it, and as a GPU would (`products.as_on_gpu`); the step
without privacy; and the least of Opacus' modes. The numbers are exact, and the same on every machine with one version
of torch. Needs the `bench` extra for Opacus.

--memory counts bytes instead: all tensors that are alive at the worst moment of a steady step, but for batch and
parameters, as `torch.profiler` sees them. The figures of a GPU's ways are those of a GPU, but for its libraries'
scratch.

With --device cuda the steps run on a GPU, and beside the counts stands what `torch.profiler` sees of a steady step: the
kernels that the host launches, the graphs that it replays, and the calls in which it waits.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from benchmarks import where
from benchmarks.gradient_models import NAMES, Problem, problem
from benchmarks.gradient_steps import OurStep, nonprivate_step
from benchmarks.lines import tell
from benchmarks.measure import Mark, Step, nothing, tensor_peak
from benchmarks.peers_opacus import MODES, opacus_step
from fedprivacy.gradients import layout
from fedprivacy.gradients.products import as_on_gpu, as_recorded
from fedprivacy.gradients.surroundings import undisturbed
from fedprivacy.gradients.watch import Watch
from fedprivacy.mechanisms import gaussian_sum
from fedprivacy.mechanisms.lattice_noise import add_lattice_noise_on_device

_WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2", "unique_dim")
_ON_HOST = ("cpu", "tolist")
"""Methods of a tensor with which the host waits for a GPU, and which a CPU does without an operation."""

_NO_KERNEL = (
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
    "lift_fresh",
)


_STEP = "benchmarks.launches.step"
_LAUNCH = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel")
_REPLAY = "cudaGraphLaunch"
_WAIT = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_COPY_AND_WAIT = ("cudaMemcpy", "cudaMemcpy2D")


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of a step on a GPU by the profiler: kernels launched, graphs replayed, calls in which the host waits."""

    kernels: int
    graphs: int
    waits: int


@dataclass(frozen=True, slots=True)
class Launches:
    """Counts of one step.

    Attributes:
        launches: operations that compute something.
        waits: those whose result the host reads.
        rows: computed for each record; 1.0 where nothing is filled up.
        parts: launches of each part of a step that has any; empty of the others' steps.
        seen: what the profiler sees on a GPU; None: it ran on none.
    """

    launches: int
    waits: int
    rows: float = 1.0
    parts: Mapping[str, int] | None = None
    seen: Seen | None = None


class Counting(Watch, where.Watch):
    """Counts operations instead of time, for one part of a step at a time."""

    def __init__(self) -> None:
        Watch.__init__(self)
        self.launches, self.waits, self._part, self._repeated = Counter[str](), 0, where.REST, False

    def go(self, part: str) -> str:
        """Count for a part from now on; return the one before."""
        before, self._part = self._part, part
        return before

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        self.waits += name in _WAITS
        of_tensors = any(isinstance(each, Tensor) for each in tree_leaves((args, kwargs)))
        self.launches[self._part] += of_tensors and not (func.is_view or name in _NO_KERNEL or self._repeated)
        return func(*args, **kwargs)

    def as_one(self, told: Callable[..., Any]) -> Callable[..., Any]:
        """Count the repetition of what `told` records as one launch."""

        def record(compute: Callable[..., Any]) -> tuple[Any, Callable[[], None]]:
            results, repeat = told(compute)

            def once() -> None:
                self.launches[where.REST] += 1
                self._repeated = True
                repeat()
                self._repeated = False

            return results, once

        return record


def of_step(step: Step, *, on_gpu: bool = False, graph: bool = False) -> Launches:
    """Count what a step launches once it is steady: the third of three; a GPU's may repeat a graph."""
    counting = Counting()
    with ExitStack() as around:
        if graph:
            around.enter_context(as_recorded())
            by_heart = layout.by_heart  # what stands in for a graph on a CPU
            around.enter_context(patch.object(layout, "by_heart", counting.as_one(by_heart)))
        if on_gpu:
            around.enter_context(_as_on_gpu())
        around.enter_context(_reads_counted(counting))
        for owner, attribute, call in where.watched_by(counting):
            around.enter_context(patch.object(owner, attribute, call))
        step(nothing)
        step(nothing)
        counting.waits = 0
        with undisturbed, counting:  # the engine sets aside what it meets when it enters, and this is within it
            step(nothing)
    return Launches(counting.launches.total(), counting.waits, parts={k: n for k, n in counting.launches.items() if n})


@contextmanager
def _reads_counted(counting: Counting) -> Iterator[None]:
    """Count a read of a whole tensor by the host as a wait."""

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
            counting.waits += 1
            return method(tensor, *arguments, **options)

        return read

    with ExitStack() as around:
        for name in _ON_HOST:
            around.enter_context(patch.object(Tensor, name, counted(getattr(Tensor, name))))
        yield


def seen_on_gpu(step: Step) -> Seen:
    """Have the profiler watch one step, which has been taken before."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function(_STEP):
            step(nothing)
        torch.cuda.synchronize()
    events = [event for event in profiler.events() or () if event.device_type.name == "CPU"]
    return of_calls((event.name, event.time_range.start, event.time_range.end) for event in events)


def of_calls(events: Iterable[tuple[str, float, float]]) -> Seen:
    """Count the calls that begin within the step, by their names, beginnings and ends."""
    events = list(events)
    ((begin, end),) = [(begin, end) for name, begin, end in events if name == _STEP]
    calls = [name for name, at, _ in events if begin <= at <= end]
    waits = [name for name in calls if name.startswith(_WAIT) or name in _COPY_AND_WAIT]
    return Seen(sum(name.startswith(_LAUNCH) for name in calls), calls.count(_REPLAY), len(waits))


def of_model(given: Problem) -> dict[str, Launches]:
    """Count the launches of each contender on one problem."""
    there = given.device.type == "cuda"

    def counted(step: Step, **way: bool) -> Launches:
        found = of_step(step, **way)
        return replace(found, seen=seen_on_gpu(step)) if there else found

    found, gpu = {}, {"on_gpu": True}
    ways = {"ours": {}, "ours on a GPU": gpu, "and with a graph": gpu | {"graph": True}}
    for name, way in {"and with a graph": {}}.items() if there else ways.items():
        step = OurStep(given)
        found[name] = replace(counted(step, **way), rows=step.rows / len(given.inputs))
    found["without privacy"] = counted(nonprivate_step(given))
    peers = []
    for mode in MODES:
        try:
            peers.append(counted(opacus_step(given, mode)))
        except Exception:  # a mode that does not know the model
            continue
    if peers:
        found["Opacus' least"] = min(peers, key=lambda counted: counted.launches)
    return found


@contextmanager
def _as_on_gpu() -> Iterator[None]:
    """Compute on a CPU as a GPU computes, noise included."""
    with as_on_gpu(), patch.object(gaussian_sum, "add_lattice_noise", add_lattice_noise_on_device):
        yield


def bytes_of_model(given: Problem) -> dict[str, int]:
    """Return the bytes that a step of each contender takes on a CPU, beyond batch and parameters."""

    def on_gpu(autocast: torch.dtype | None = None) -> Step:
        ours = OurStep(given, autocast=autocast)

        def step(mark: Mark) -> None:
            with _as_on_gpu():
                ours(mark)

        return step

    builds: dict[str, Callable[[], Step]] = {"ours": lambda: OurStep(given), "ours on a GPU": on_gpu}
    builds["ours in bfloat16"] = partial(on_gpu, torch.bfloat16)
    builds["without privacy"] = partial(nonprivate_step, given)
    builds |= {f"Opacus, {mode}": partial(opacus_step, given, mode) for mode in MODES}
    parameters, found = sum(p.nbytes for p in given.build().parameters()), dict[str, int]()
    for name, build in builds.items():
        with suppress(Exception) if name.startswith("Opacus") else nullcontext():  # a mode may not know the model
            found[name] = tensor_peak(build) - parameters
    peers = {name: taken for name, taken in found.items() if name.startswith("Opacus")}
    if peers:
        found = {name: taken for name, taken in found.items() if name not in peers}
        found |= {"Opacus' ghost mode": peers.get("Opacus, ghost", 0), "Opacus' least": min(peers.values())}
    return found


def report_bytes(models: Mapping[str, Mapping[str, int]], console: Console) -> None:
    """Print every model's megabytes, and ours on a GPU as a multiple of Opacus' ghost mode."""
    contenders = list(dict.fromkeys(name for found in models.values() for name in found))
    table = Table("MB", *contenders, "ours on a GPU / ghost mode", box=box.SIMPLE_HEAD)
    for name, found in models.items():
        ghost = found.get("Opacus' ghost mode")
        ratio = f"{found['ours on a GPU'] / ghost:.2f}" if ghost else ""
        table.add_row(name, *(f"{found[each] / 1e6:,.2f}" if each in found else "" for each in contenders), ratio)
    console.print(table)


def report(models: Mapping[str, Mapping[str, Launches]], console: Console) -> None:
    """Print the launches, waits and rows of every model."""
    contenders = list(dict.fromkeys(name for found in models.values() for name in found))
    table = Table("model", *contenders, box=box.SIMPLE_HEAD)
    for name, found in models.items():
        table.add_row(name, *(_in_words(found.get(contender)) for contender in contenders))
    console.print(table)
    console.print("Launches; waits; rows computed for each record, where rows are filled up.")
    if any(counted.seen for found in models.values() for counted in found.values()):
        console.print("In brackets: kernels, graphs and waits that the profiler sees.")


def report_parts(models: Mapping[str, Mapping[str, Launches]], contender: str, console: Console) -> None:
    """Print a contender's launches by part."""
    table = Table(f"part, {contender}", *models, box=box.SIMPLE_HEAD)
    for part in where.PARTS:
        table.add_row(part, *(str((found[contender].parts or {}).get(part, "")) for found in models.values()))
    console.print(table)


def _in_words(counted: Launches | None) -> str:
    if counted is None:
        return ""
    waits = f"; {counted.waits}" if counted.waits else ""
    rows = f"; {counted.rows:.2f}" if counted.rows > 1.0 else ""
    seen = f" ({counted.seen.kernels:,}, {counted.seen.graphs}, {counted.seen.waits})" if counted.seen else ""
    return f"{counted.launches:,}{waits}{rows}{seen}"


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--parts", action="store_true", help="ours by part, too")
    parser.add_argument("--memory", action="store_true", help="bytes instead of launches, on a CPU")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="append each model's numbers at once, as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    console, found = Console(), {}
    if asked.memory:
        taken = {name: bytes_of_model(problem(name, torch.device("cpu"))) for name in asked.models.split(",")}
        if asked.json:
            print(json.dumps(taken))
        else:
            report_bytes(taken, console)
        return
    for name in asked.models.split(","):
        found[name] = of_model(problem(name, torch.device(asked.device)))
        tell(asked.lines, {"models": {name: {k: asdict(v) for k, v in found[name].items()}}})
    if asked.json:
        print(json.dumps({name: {k: asdict(v) for k, v in each.items()} for name, each in found.items()}))
        return
    report(found, console)
    for contender in (
        [name for name in found[next(iter(found))] if name.startswith(("ours", "and"))] if asked.parts else ()
    ):
        report_parts(found, contender, console)


if __name__ == "__main__":
    main()
