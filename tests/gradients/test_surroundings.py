"""Whatever a process changes around a computation, after a method was proven, one record moves the sum by at most C.

Each change of `CHANGES` mixes the records of a batch, or switches something, in the way of tools that people use: hooks
for all layers (`FlopCounterMode`, quantisers), modes, functions of torch that are replaced (DeepSpeed's `linear`),
layers' classes that are patched, settings.
"""

import threading
import warnings
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fedprivacy.gradients import GradientEngine, UnsupportedModelError
from fedprivacy.gradients.per_record import RecordScores
from fedprivacy.gradients.surroundings import Surroundings, undisturbed
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from tests.accounting.marked import exhaustive
from tests.gradients.oracle import cross_entropy

torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(20, 1, 4, 4), torch.randint(3, (20,))
LEAVING = [
    (torch.arange(20) != place, INPUTS * (1 + 999 * (torch.arange(20) == place)).view(-1, 1, 1, 1))
    for place in (0, 5, 7, 19)
]
"""Masks of who is left when a record leaves, and inputs of whom that record is a thousand times as large."""


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.shapes, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(functional.relu(self.shapes(x)).mean((2, 3)))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = parametrizations.weight_norm(nn.Linear(16, 3))

    def forward(self, x):
        return self.head(x.flatten(1))


def chain():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


MODELS = {
    "book-keeping": Image,
    "program": chain,
    "parametrized": Normed,
}


def mixed(value):
    """Divide by the batch's largest number, as a quantiser does."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() and value.numel()
    return value / value.detach().abs().max() if floating else value


def all_mixed(values):
    return tuple(map(mixed, values))


@contextmanager
def hooked(kind, hook):
    handle = getattr(module, f"register_module_{kind}")(hook)
    try:
        yield
    finally:
        handle.remove()


def replaced(owner, name):
    own = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *given, **named: mixed(own(*given, **named)))


@contextmanager
def own_classes():
    with ExitStack() as stack:
        for kind in (Image, Normed, nn.Sequential):
            stack.enter_context(replaced(kind, "forward"))
        yield


@contextmanager
def switched(value, read, switch):
    before = read()
    switch(value)
    try:
        yield
    finally:
        switch(before)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return mixed(found) if getattr(func, "__name__", "") in {"relu", "linear", "conv2d"} else found


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return mixed(found) if any(name in str(func) for name in ("relu", "addmm", "convolution")) else found


@contextmanager
def warnings_as_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


HOOKS = {
    "forward hook": lambda: hooked("forward_hook", lambda layer, given, found: mixed(found)),
    "forward pre-hook": lambda: hooked("forward_pre_hook", lambda layer, given: all_mixed(given)),
    "full backward hook": lambda: hooked("full_backward_hook", lambda layer, inner, _: all_mixed(inner)),
    "full backward pre-hook": lambda: hooked("full_backward_pre_hook", lambda layer, outer: all_mixed(outer)),
    "counter of operations": lambda: FlopCounterMode(display=False),
    "hook of registration": lambda: hooked(
        "parameter_registration_hook", lambda layer, name, p: nn.Parameter(mixed(p))
    ),
}
MODES = {
    "mode of functions": Functions,
    "mode of operations": Operations,
    "hooks of saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, mixed),
    "saved tensors on the CPU": torch.autograd.graph.save_on_cpu,
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast in float16": lambda: torch.autocast("cpu", torch.float16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "cached parametrizations": parametrize.cached,
    "forward differentiation": torch.autograd.forward_ad.dual_level,
    "one thread for autograd": lambda: torch.autograd.set_multithreading_enabled(False),
    "low precision": lambda: switched("medium", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "numpy raises": lambda: np.errstate(all="raise"),
}
"""After these, and after hooks, not a bit differs."""

REPLACED = {
    functional: ("linear", "relu", "conv2d", "cross_entropy"),
    torch: ("relu",),
    torch.Tensor: ("mean", "flatten"),
    nn.Module: ("__call__", "_call_impl"),
    nn.Linear: ("forward",),
    nn.Conv2d: ("forward",),
    nn.ReLU: ("forward",),
}
FUNCTIONS = {
    f"{owner.__name__.rpartition('.')[2]}.{name}": lambda owner=owner, name=name: replaced(owner, name)
    for owner, names in REPLACED.items()
    for name in names
}
FUNCTIONS["classes of one's own"] = own_classes

SETTINGS = {
    "float64": lambda: switched(torch.float64, torch.get_default_dtype, torch.set_default_dtype),
    "bfloat16": lambda: switched(torch.bfloat16, torch.get_default_dtype, torch.set_default_dtype),
    "without oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "deterministic": lambda: switched(
        True, torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    ),
    "flushed": lambda: switched(True, lambda: False, torch.set_flush_denormal),
    "two threads": lambda: switched(2, torch.get_num_threads, torch.set_num_threads),
    "anomalies": torch.autograd.detect_anomaly,
    "warnings as errors": warnings_as_errors,
}

CHANGES = HOOKS | MODES | FUNCTIONS | SETTINGS
MEETING = {
    "program": CHANGES,
    "book-keeping": HOOKS | FUNCTIONS,
    "parametrized": ["full backward hook", "cached parametrizations", "warnings as errors", "Linear.forward"],
}
"""Changes that each model meets: a change is set aside in the same way for all, so not every pair is tried."""

QUICK = {("book-keeping", "forward hook"), ("program", "mode of functions")}


def made(name):
    torch.manual_seed(1)
    engine = GradientEngine(MODELS[name](), cross_entropy)
    engine.prepare(INPUTS, TARGETS)
    return engine


def largest_change(engine):
    """The largest change of the sum, in C, by a record that leaves, as it is or a thousand times as large."""
    changes = []
    for kept, loud in LEAVING:
        without = engine.clipped_sum(INPUTS[kept], TARGETS[kept], 1.0)
        changes += [(engine.clipped_sum(rows, TARGETS, 1.0) - without).norm() for rows in (INPUTS, loud)]
    return max(changes).item()


@pytest.mark.parametrize(
    ("model", "change"),
    [
        pytest.param(model, change, marks=[] if (model, change) in QUICK else pytest.mark.exhaustive)
        for model, changes in MEETING.items()
        for change in changes
    ],
)
def test_one_record_moves_the_sum_by_the_clipping_norm_whatever_has_changed(model, change):
    engine = made(model)
    expected = engine.clipped_sum(INPUTS, TARGETS, 1.0)
    with CHANGES[change]():
        try:
            engine.prepare(INPUTS, TARGETS)  # as a loop does before it charges
        except UnsupportedModelError:
            assert change in FUNCTIONS
            return
        assert largest_change(engine) <= 1 + SUM_ALLOWANCE
        found = engine.clipped_sum(INPUTS, TARGETS, 1.0)
    if change in HOOKS | MODES:
        assert torch.equal(found, expected)
    engine.prepare(INPUTS, TARGETS)
    assert torch.equal(engine.clipped_sum(INPUTS, TARGETS, 1.0), expected)  # nothing is left of it


def own_forward(layer):
    own = layer.forward
    layer.forward = lambda x: mixed(own(x))


OWN = {
    "forward hook": lambda layer: layer.register_forward_hook(lambda _, given, found: mixed(found)),
    "forward pre-hook": lambda layer: layer.register_forward_pre_hook(lambda _, given: all_mixed(given)),
    "backward hook": lambda layer: layer.register_full_backward_hook(lambda _, inner, outer: all_mixed(inner)),
    "forward": own_forward,
    "class": lambda layer: setattr(layer, "__class__", type("Other", (type(layer),), {})),
}


@pytest.mark.parametrize("change", ["class", *exhaustive(*(name for name in OWN if name != "class"))])
def test_what_a_layer_is_given_of_its_own_after_the_proof_is_noticed(change):
    engine = made("book-keeping")
    surroundings = Surroundings(engine.model, cross_entropy)
    OWN[change](engine.model.shapes)
    assert surroundings.has_changed()
    assert largest_change(engine) <= 1 + SUM_ALLOWANCE


def test_a_layer_in_the_place_of_another_is_noticed():
    model = chain()
    surroundings = Surroundings(model, cross_entropy)
    model.train(False)
    assert not surroundings.has_changed()
    model[2] = nn.ReLU()
    assert surroundings.has_changed()


def test_a_hook_of_all_layers_sees_no_record_and_stays_registered():
    engine, layer, seen = made("book-keeping"), nn.Linear(1, 1), []
    with hooked("forward_hook", lambda layer, given, found: seen.append(layer)):
        engine.clipped_sum(INPUTS, TARGETS, 1.0)
        assert seen == []
        layer(torch.ones(1))
        assert seen == [layer]
    layer(torch.ones(1))
    assert seen == [layer]


@pytest.mark.parametrize("kept", [False, True])
def test_other_threads_keep_their_hooks_while_gradients_are_computed(kept):
    """One that they register meanwhile reaches no record, and can be removed later, as those from before."""
    layer, seen, found = nn.Linear(1, 1), [], []

    def hook(layer, given, outputs):
        seen.append(threading.get_ident())
        return 2 * outputs

    def beside():
        before = layer(torch.ones(1))
        handle = module.register_module_forward_hook(hook)
        found.append(torch.equal(layer(torch.ones(1)), 2 * before))
        if not kept:
            handle.remove()
            found.append(torch.equal(layer(torch.ones(1)), before))
        handles.append(handle)

    class Interrupted(Image):
        def forward(self, x):
            if not handles:
                other = threading.Thread(target=beside)
                other.start()
                other.join()
            return super().forward(x)

    engine, handles = GradientEngine(Interrupted(), cross_entropy), [None]
    expected = engine.clipped_sum(INPUTS, TARGETS, 1.0)
    handles.clear()
    assert torch.equal(engine.clipped_sum(INPUTS, TARGETS, 1.0), expected)
    assert found and all(found) and threading.get_ident() not in seen
    layer(torch.ones(1))
    assert (threading.get_ident() in seen) == kept
    handles[0].remove()
    seen.clear()
    layer(torch.ones(1))
    assert not seen


def test_a_computation_that_fails_leaves_everything_as_it_was():
    hook = module.register_module_forward_hook(lambda *given: None)
    mode, seen, tables = Functions(), [], [own for own in vars(module).values() if isinstance(own, dict)]
    with hook, mode, torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
        with pytest.raises(KeyboardInterrupt), undisturbed, undisturbed:
            seen.append(
                (torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), torch.ones(1).device.type)
            )
            raise KeyboardInterrupt
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), torch.ones(1).device.type))
    assert seen == [(False, False, "cpu"), (True, True, "meta")]
    assert all(any(own is table for own in vars(module).values()) for table in tables)


def traced(step):
    return lambda given: torch.jit.trace(step, (given,))


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.functionalize, traced])
def test_gradients_within_a_transformed_function_are_refused(transform):
    engine = made("program")
    with pytest.raises(RuntimeError, match="that torch transforms or traces"):
        transform(lambda weight: weight * engine.clipped_sum(INPUTS, TARGETS, 1.0).norm())(torch.ones(2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["program", "book-keeping"])
def test_a_compiled_loop_computes_gradients_as_they_were_proven(model):
    engine, compiled = made(model), []

    def backend(graph, _):
        compiled.append(graph)
        return lambda *given: all_mixed(graph(*given))

    looped = mock.Mock(clipped_sum=torch.compile(engine.clipped_sum, backend=backend))
    assert largest_change(looped) <= 1 + SUM_ALLOWANCE and compiled


def test_scores_stay_apart_whatever_has_changed():
    def confidence(outputs, targets):
        return functional.relu(outputs.softmax(1)).amax(1)

    torch.manual_seed(1)
    scores = RecordScores(Image(), cross_entropy, [confidence], (INPUTS[:0], TARGETS[:0]))
    loud = INPUTS.clone()
    loud[5] *= 1e3
    others = torch.arange(20) != 5
    for change in ("forward hook", "mode of functions", "functional.linear", "classes of one's own"):
        with CHANGES[change]():
            calm, stirred = (scores(rows, TARGETS)[others] for rows in (INPUTS, loud))
        assert torch.equal(calm, stirred), change
