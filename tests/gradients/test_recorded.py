"""A part that is recorded, as a CUDA graph is, computes what it would without: every bit, at whatever values."""

from unittest import mock

import pytest
import torch
from torch import nn

from fedprivacy.gradients import AutomaticClipping, FlatClipping, GradientEngine, PerLayerClipping, layout
from fedprivacy.gradients.layout import Layout
from fedprivacy.gradients.products import as_on_gpu, as_recorded
from tests.gradients.oracle import cross_entropy


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.LayerNorm(33), nn.Linear(33, 3))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.frozen, self.head = nn.Embedding(9, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.frozen.requires_grad_(False)

    def forward(self, ids):
        return self.head(torch.relu(self.frozen(self.words(ids).sum(1))))


def batch(records, ids, rows=()):
    """Records of which some have no gradient."""
    generator = torch.Generator().manual_seed(records)
    if ids:
        inputs = torch.randint(9, (records, *rows, 6), generator=generator)
        inputs[1 : records // 2 : 3, ..., 2] = 9
    else:
        inputs = torch.randn(records, *rows, 6, generator=generator)
        inputs[0], inputs[2], inputs[3] = torch.nan, torch.inf, 1e30
    targets = torch.randint(3, (records, *rows), generator=generator)
    targets[4] = 3
    return inputs, targets


@pytest.fixture
def repeats(monkeypatch):
    """Counts how often a recording is repeated."""
    by_heart, counted = layout.by_heart, []

    def counting(compute):
        results, repeat = by_heart(compute)
        return results, lambda: (counted.append(1), repeat())

    monkeypatch.setattr(layout, "by_heart", counting)
    return counted


def moved(engine, size):
    """Move the parameters, as a step does."""
    generator = torch.Generator().manual_seed(7)
    for p in engine.model.parameters():
        p.data += size * torch.randn(p.shape, generator=generator)


@pytest.mark.parametrize("rows", [(), (2,)], ids=["records", "persons"])
@pytest.mark.parametrize("model", [net, Words])
@pytest.mark.parametrize(
    "clipping", [FlatClipping(), PerLayerClipping(), AutomaticClipping()], ids=["flat", "per layer", "auto"]
)
def test_a_recording_repeats_every_bit(model, clipping, rows, repeats):
    """At other parameters, of fewer records and more, in one part and in several, with another clipping norm."""
    laid_out = Layout(*rows)
    with as_on_gpu():
        eager = GradientEngine(model(), cross_entropy, clipping, layout=laid_out)
        repeating = GradientEngine(model(), cross_entropy, clipping, layout=laid_out)
        for records, clipping_norm in ((40, 0.5), (7, 0.25), (0, 0.5), (97, 1.5)):
            given = batch(max(records, 5), model is Words, rows)
            given = [each[:records] for each in given]
            expected, before = eager.clip(*given, clipping_norm, usual=40), len(repeats)
            with as_recorded():
                found = repeating.clip(*given, clipping_norm, usual=40)
            assert len(repeats) - before >= -(-records // 64)
            assert found.same_as(expected) and found.records == expected.records < max(records, 1)
            for engine in (eager, repeating):
                moved(engine, 0.3)
        assert repeating.method == f"{eager.method} as a CUDA graph"


def test_a_recording_reads_no_memory_that_the_model_has_left():
    engine, inputs, targets = GradientEngine(Words(), cross_entropy), *batch(40, ids=True)
    with as_on_gpu(), as_recorded():
        before = engine.clip(inputs, targets, 0.5)
        engine.model.frozen.weight.data = 2.0 * engine.model.frozen.weight.data
        after = engine.clip(inputs, targets, 0.5)
    with as_on_gpu():
        assert after.same_as(engine.clip(inputs, targets, 0.5)) and not after.same_as(before)


@pytest.mark.parametrize("fault", ["one bit", "error"])
def test_a_recording_with_other_bits_is_not_used(fault, monkeypatch, caplog):
    by_heart = layout.by_heart

    def spoilt(compute):
        results, repeat = by_heart(compute)
        if fault == "error":
            raise RuntimeError("operation not permitted when stream is capturing")
        return results, lambda: (repeat(), results[0][5:6].nextafter_(torch.full((1,), torch.inf, dtype=torch.float64)))

    monkeypatch.setattr(layout, "by_heart", spoilt)
    inputs, targets = batch(40, ids=False)
    with as_on_gpu(), as_recorded():
        found = GradientEngine(net(), cross_entropy).clip(inputs, targets, 0.5)
    with as_on_gpu():
        assert found.same_as(GradientEngine(net(), cross_entropy).clip(inputs, targets, 0.5))
    assert ("not permitted" if fault == "error" else "other bits") in caplog.text


def test_a_graph_is_recorded_aside_after_a_first_run(monkeypatch):
    """Torch is told so; a GPU is not here."""
    order = mock.Mock()
    order.current_stream = mock.create_autospec(torch.cuda.current_stream)
    for name in ("Stream", "CUDAGraph", "current_stream", "stream", "graph"):
        stand_in = mock.create_autospec(getattr(torch.cuda, name))
        order.attach_mock(stand_in, name)
        monkeypatch.setattr(torch.cuda, name, stand_in)
    results, repeat = layout.as_graph(order.compute)
    happened = [name for name, _, _ in order.mock_calls]
    assert happened.count("compute") == 2 and results is order.compute.return_value
    assert happened.index("compute") < happened.index("graph") < len(happened) - happened[::-1].index("compute")
    assert repeat is torch.cuda.CUDAGraph.return_value.replay


def test_a_record_on_which_the_loss_raises_counts_for_nothing():
    def loss(outputs, targets):
        if bool((targets == 2).any()):
            raise ValueError("no such class")
        return cross_entropy(outputs, targets)

    inputs, targets = torch.randn(40, 6), torch.arange(40) % 2
    targets[[3, 20]] = 2
    with as_on_gpu(), as_recorded():
        found = GradientEngine(net(), loss).clip(inputs, targets, 0.5)
    with as_on_gpu():
        assert found.same_as(GradientEngine(net(), loss).clip(inputs, targets, 0.5)) and found.records == 38
