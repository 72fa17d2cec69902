"""A part of a batch as a recording: a GPU is told its kernels once, as a CUDA graph, and repeats them at one command.

A step of a small model takes a GPU as long as the host needs to launch its kernels. A graph launches them all at once.
They are the kernels that computed such parts before, in the same order and on the same shapes, so what was proven of
them (`fedprivacy.gradients.invariance`) holds for the recording. The engine compares both all the same, on made-up
records, before it uses a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Results = tuple[Tensor, ...]

Compute = Callable[[Tensor, Tensor, Tensor, Tensor], Results]
"""(inputs, targets, mask of the rows that are records, clipping norm) -> results, by operations that depend on no value
and that no host waits for.
"""


class RecordedPart:
    """A computation of parts of one size."""

    def __init__(self, compute: Compute, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        """Record a computation on inputs and targets [size, ...], whose values do not matter.

        Raises:
            Exception: any error of the computation, or of torch about an operation that cannot be recorded.
        """
        self._compute, self._trained = compute, [p for p in model.parameters() if p.requires_grad]
        self._own = [p.detach().clone() for p in self._trained]  # a recording reads and writes the same memory always
        self._inputs, self._targets = inputs.clone(), targets.clone()
        self._places = torch.arange(len(inputs), device=inputs.device)
        self._counted = self._places >= 0
        self._clipping_norm = torch.ones((), dtype=torch.float64, device=inputs.device)
        self._results, self._repeat = (_as_graph if inputs.is_cuda else _by_heart)(self._on_own_memory)

    def __call__(self, inputs: Tensor, targets: Tensor, clipping_norm: float) -> Results:
        """Compute at most as many records as were recorded, at the model's present parameters.

        Returns:
            The results, which hold until the next call.
        """
        for own, rows in ((self._inputs, inputs), (self._targets, targets)):
            own[: len(rows)].copy_(rows)
            if len(rows) < len(own):
                own[len(rows) :].copy_(rows[:1].expand_as(own[len(rows) :]))
        torch.lt(self._places, len(inputs), out=self._counted)
        self._clipping_norm.fill_(clipping_norm)
        torch._foreach_copy_(self._own, [p.detach() for p in self._trained])
        self._repeat()
        return self._results

    def _on_own_memory(self) -> Results:
        with _at(self._trained, self._own):
            return self._compute(self._inputs, self._targets, self._counted, self._clipping_norm)


@contextmanager
def _at(parameters: list[nn.Parameter], memory: list[Tensor]) -> Iterator[None]:
    before = [p.data for p in parameters]
    try:
        for p, own in zip(parameters, memory, strict=True):
            p.data = own
        yield
    finally:
        for p, own in zip(parameters, before, strict=True):
            p.data = own


def _as_graph(compute: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
    """Record a computation as a CUDA graph; return its results, and what computes them again."""
    present, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(present)
    with torch.cuda.stream(aside):
        compute()  # what is made once, such as a library's workspace, must not be made within the recording
    present.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):  # other threads compute meanwhile
        results = compute()
    return results, graph.replay


def _by_heart(compute: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
    """Do on a CPU what a recording does: write the results of the same memory into the same memory."""
    results = compute()

    def repeat() -> None:
        for result, again in zip(results, compute(), strict=True):
            result.copy_(again)

    return results, repeat
