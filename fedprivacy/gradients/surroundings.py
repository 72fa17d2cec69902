"""Everything around a computation of gradients that a process can change: torch's hooks, modes, settings, functions and
threads.

A method is proven on made-up records (`fedprivacy.gradients.invariance`), and the proof holds for what torch computed
then. A tool may change that later: a hook for all modules, a mode, a function of torch that is replaced. Most of it is
set aside for as long as gradients are computed (`undisturbed`). What cannot be set aside is compared, and a method is
proven anew after it changed (`Surroundings`).

One thread of the program computes gradients at a time, with a number of torch's threads. A small model's operations
finish before threads could share them, so the fastest number is measured (`by_speed`), by the least of several times: a
time that other processes lengthened says nothing about the machine, and they may be gone the next moment. While they
are there, threads sleep after a short wait (`fedprivacy._support.native`), so that too many cost less. A seeded run's
bits must not depend on a time, so the caller chooses only among numbers of threads with the same bits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _autograd, _functorch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.nn import functional
from torch.nn.modules import module
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import _disable_current_modes


class _Here(threading.local):
    """This thread's state."""

    depth = 0  # number of contexts that it is in
    left: ExitStack  # restores the modes that it left


_HERE = _Here()


class _Table(MutableMapping[Any, Any], dict[Any, Any]):  # type: ignore[metaclass, misc]
    """A table of torch's that is empty in a thread which computes gradients; the other threads see and change it."""

    def __init__(self, own: dict[Any, Any]) -> None:
        super().__init__()
        self.own = own

    def __getitem__(self, key: object) -> Any:
        if _HERE.depth:
            raise KeyError(key)
        return self.own[key]

    def __setitem__(self, key: object, value: object) -> None:
        if not _HERE.depth:
            self.own[key] = value

    def __delitem__(self, key: object) -> None:
        del self.own[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(() if _HERE.depth else self.own)

    def __len__(self) -> int:
        return 0 if _HERE.depth else len(self.own)


_TABLES = [(vars(parametrize), "_cache")] + [
    (vars(module), name) for name, own in vars(module).items() if name[:8] == "_global_" and isinstance(own, dict)
]
"""Namespaces and names of torch's tables of hooks for all layers, and of the parametrizations that it has computed."""


class Undisturbed:
    """Context in which torch computes what it computes by itself, in full float32, for as long as a thread is inside.

    Set aside are hooks for all layers, cached parametrizations, autocast, inference mode, hooks of saved tensors, modes
    that replace functions or operations, a default device among them, and `torch.compile`. They would see the records,
    and could mix them, and no check of a method would notice. They belong to one thread, or are hidden from the threads
    inside alone: hooks of other threads' models go on, and a hook that is registered meanwhile reaches no record.

    TF32 and bfloat16 products round a sum of clipped gradients by up to 2^-8 of itself, far beyond the mechanism's
    allowance for rounding, and the norms that scaled them are not rounded likewise.

    On a GPU, cuDNN then chooses its algorithms by their inputs' shapes alone, not by timing them, and among those that
    add in a fixed order: else a record's gradient would have other bits from one step to the next.

    A process that has set the precision by backend (`torch.backends.*.fp32_precision`) keeps full precision
    afterwards, because its own setting cannot be read back.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._cudnn = threading.Lock(), 0, ExitStack()
        self._tables: list[_Table] = []

    def __enter__(self) -> None:
        """Enter it; a thread may do so again within.

        Raises:
            RuntimeError: it is entered within a function that torch transforms or traces.
        """
        if not _HERE.depth:
            _HERE.left = _modes_left()
            with self._lock:
                if self._inside == 0:
                    self._set_aside()
                self._inside += 1
        _HERE.depth += 1

    def __exit__(self, *raised: object) -> None:
        _HERE.depth -= 1
        if not _HERE.depth:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._put_back()
            _HERE.left.close()

    def _set_aside(self) -> None:
        self._chosen = "highest"
        with suppress(RuntimeError):  # set by backend
            self._chosen = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        self._cudnn.enter_context(_repeatable_cudnn())
        owned = [space[name] for space, name in _TABLES]
        if [id(table.own) for table in self._tables] != [*map(id, owned)]:
            self._tables = [*map(_Table, owned)]  # kept, for the handles of hooks that are registered meanwhile
        for (space, name), table in zip(_TABLES, self._tables, strict=True):
            space[name] = table

    def _put_back(self) -> None:
        for (space, name), table in zip(_TABLES, self._tables, strict=True):
            if space[name] is table:  # else another thread has put its own there
                space[name] = table.own
        torch.set_float32_matmul_precision(self._chosen)
        self._cudnn.close()


def _repeatable_cudnn() -> AbstractContextManager[object]:
    """Return the context of cuDNN's settings, if this process uses a GPU: a CPU's build of torch is left alone."""
    if not torch.cuda.is_initialized():
        return nullcontext()
    settings: AbstractContextManager[object] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return settings


def _modes_left() -> ExitStack:
    """Leave the modes of this thread; closing what is returned enters them again."""
    if _functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None:
        raise RuntimeError(
            "Private gradients are computed within a function that torch transforms or traces (torch.func.vmap, "
            "torch.jit.trace, ...); compute them outside."
        )
    left = ExitStack()
    left.callback(set_eval_frame, set_eval_frame(None))
    while torch._C._len_torch_function_stack():
        left.callback(torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack())
    if torch._C._len_torch_dispatch_stack():
        left.enter_context(_disable_current_modes())
    while (hooks := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        _autograd._pop_saved_tensors_default_hooks()
        left.callback(_autograd._push_saved_tensors_default_hooks, *hooks)
    for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
        left.enter_context(torch.autocast(device, enabled=False))
    if torch.is_inference_mode_enabled():
        left.enter_context(torch.inference_mode(False))
    return left


undisturbed = Undisturbed()
"""The only instance in this process, because much of it is the process's."""

_SETTINGS: tuple[Callable[[], object], ...] = (
    torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled,
    torch._C._get_mkldnn_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.cudnn_sdp_enabled,
)
"""Settings that choose among torch's kernels."""

_FUNCTIONS = [
    (vars(space), itemgetter(*(name for name, own in vars(space).items() if isinstance(own, kinds) and name[0] != "_")))
    for space, kinds in ((torch, BuiltinFunctionType), (functional, (BuiltinFunctionType, FunctionType)))
]
"""Namespaces of torch's functions, and the getters of these."""

_METHODS = (FunctionType, staticmethod, classmethod, property)
"""Types of a class's methods, as the class keeps them."""


class Surroundings:
    """Torch's functions, methods and settings, and a model's methods: all that its gradients are computed by.

    Formal guarantee: `has_changed` tells if a public function of `torch` or `torch.nn.functional`, a method of
    `Tensor`, of a layer's class or of the loss's, a layer, its class, its own hooks and functions, or a setting that
    chooses kernels is another one than when this was made.

    It does not tell of values: a flag or a buffer that switches a layer, a helper or a closure of the user's module, or
    torch's own operators.
    """

    def __init__(self, model: nn.Module, loss: object) -> None:
        self._model, self._loss = model, getattr(loss, "__self__", loss)
        owners = [*model.modules(), self._loss]
        kinds = dict.fromkeys(kind for owner in owners for kind in type(owner).__mro__ if kind is not object)
        self._methods = [vars(kind) for kind in kinds]
        self._known = self._now()

    def has_changed(self) -> bool:
        """Return whether something has changed since this was made."""
        return self._now() != self._known

    def _now(self) -> list[object]:
        now = [setting() for setting in _SETTINGS]
        for space, functions in _FUNCTIONS:
            now += functions(space)
        now += vars(Tensor).values()
        for methods in self._methods:
            now += [method for method in methods.values() if isinstance(method, _METHODS)]
        layers = self._loss.modules() if isinstance(self._loss, nn.Module) else ()
        for layer in (*self._model.modules(), *layers):
            now += (id(layer), type(layer))
            for name, own in vars(layer).items():
                if name.endswith("_hooks"):
                    now += own.values()
                elif callable(own):
                    now.append(own)
        return now


class Modes:
    """Modes of a model's layers, as they were when this was made."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = [(layer, layer.training) for layer in model.modules()]

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Give each layer its mode of then, and afterwards that of now: a loop may call `train()` in every epoch."""
        now = [(layer, layer.training) for layer, mode in self._layers if layer.training != mode]
        try:
            for layer, mode in now:
                layer.training = not mode
            yield
        finally:
            for layer, mode in now:
                layer.training = mode


_ALONE = threading.RLock()

_LEAST_TURNS, _TURNS = 4, 12
_SECONDS = 0.5
"""Seconds after which no further turn begins, but for the least number of turns."""

_WORTH = 0.9
"""Share of the time that more threads must beat, because they are needed elsewhere, too."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for other threads of this process that compute gradients, of any model: models may share layers.

    A computation changes its model for a while: the parameters' values, the layers' modes and their `forward`.
    """
    with _ALONE:
        yield


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Let torch compute with so many threads, and with as many as before afterwards.

    The number is this thread's alone, but a thread that first uses torch meanwhile keeps it for good.
    """
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_speed(step: Callable[[], object]) -> list[int]:
    """Sort numbers of threads, up to torch's present number, by the least time of `step`; measured in turns."""
    most = torch.get_num_threads()
    numbers = [1 << power for power in range((most - 1).bit_length())] + [most]
    least = dict.fromkeys(numbers, math.inf)
    end = time.perf_counter() + _SECONDS
    for turn in range(_TURNS):
        if turn >= _LEAST_TURNS and time.perf_counter() > end:
            break
        for number in numbers:
            with computing_with(number):
                start = time.perf_counter()
                step()
                least[number] = min(least[number], time.perf_counter() - start)
    return sorted(numbers, key=lambda number: least[number] / (1.0 if number == 1 else _WORTH))
