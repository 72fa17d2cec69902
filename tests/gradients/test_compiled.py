"""A compiled step computes the same, for every size of batch, and gives way where it cannot."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from fedprivacy.gradients import FlatClipping, GradientEngine, PerLayerClipping
from fedprivacy.gradients.compiled import CompiledSum
from tests.gradients.oracle import cross_entropy


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def batch(records):
    generator = torch.Generator().manual_seed(records)
    return torch.randn(records, 6, generator=generator), torch.randint(3, (records,), generator=generator)


@pytest.fixture(scope="module", params=[FlatClipping(), PerLayerClipping()], ids=lambda c: type(c).__name__)
def engines(request):
    """One engine that compiles, as far as it goes without a C++ compiler, and one that does not."""
    model = perceptron()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
        compiling = GradientEngine(model, cross_entropy, request.param, compile=True)
        compiling.clipped_sum(*batch(20), 0.3)
    return compiling, GradientEngine(model, cross_entropy, request.param)


def test_it_is_compiled_once_for_all_sizes(engines):
    compiling, plain = engines
    compiled = compiling._compiled
    assert compiled.rows == 32
    assert compiled._proven
    calls = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for records in (0, 1, 7, 20, 32, 33, 100):
        for norm in (0.1, 0.3, 10.0):
            result, expected = (engine.clip(*batch(records), norm) for engine in (compiling, plain))
            assert torch.allclose(result.total, expected.total, rtol=1e-4, atol=1e-6)
            assert result.records == records
            assert result.within(norm) == expected.within(norm)
    assert compiling._compiled is compiled
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == calls


def test_parameters_may_move_between_steps(engines):
    compiling, plain = engines
    with torch.no_grad():
        for parameter in compiling.model.parameters():
            parameter.data = parameter + 0.1 * torch.randn_like(parameter)
    result, expected = (engine.clipped_sum(*batch(20), 0.3) for engine in (compiling, plain))
    assert torch.allclose(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("place", [0, 4])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_bad_record_contributes_zero(engines, place, poison):
    inputs, targets = batch(9)
    inputs[place] = poison
    result, expected = (engine.clipped_sum(inputs, targets, 0.3) for engine in engines)
    assert result.isfinite().all()
    assert torch.allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_a_record_that_makes_the_computation_fail_contributes_zero(engines):
    inputs, targets = batch(9)
    targets[4] = 7
    result, expected = (engine.clipped_sum(inputs, targets, 0.3) for engine in engines)
    assert torch.allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_without_a_compiler_it_runs_on(monkeypatch, caplog):
    def none(*args, **kwargs):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: none)
    model = perceptron()
    expected = GradientEngine(model, cross_entropy).clipped_sum(*batch(20), 0.3)
    engine = GradientEngine(model, cross_entropy, compile=True)
    for _ in range(2):
        assert torch.equal(engine.clipped_sum(*batch(20), 0.3), expected)
    assert [record.message for record in caplog.records].count(
        "This step cannot be compiled here, and runs on without: RuntimeError"
    ) == 1


def test_a_compiled_step_that_computes_something_else_is_not_used(monkeypatch):
    monkeypatch.setattr(
        torch, "compile", lambda function, **kwargs: lambda *args: (2 * function(*args)[0], function(*args)[1])
    )
    model = perceptron()
    engine = GradientEngine(model, cross_entropy, compile=True)
    assert torch.equal(
        engine.clipped_sum(*batch(20), 0.3), GradientEngine(model, cross_entropy).clipped_sum(*batch(20), 0.3)
    )
    assert isinstance(engine._compiled, CompiledSum)
    assert engine._compiled(*batch(20), 0.3) is None


def test_a_model_that_is_no_chain_is_not_compiled():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            return x + self.inner(x)

    engine = GradientEngine(nn.Sequential(Residual(), nn.Linear(6, 3)), cross_entropy, compile=True)
    engine.clipped_sum(*batch(5), 0.3)
    assert engine._compiled is None
