"""Every clipping keeps its one promise: a record's scaled gradient is no longer than C, in float32 too."""

import pytest
import torch

from fedprivacy.gradients import AutomaticClipping, FlatClipping, PerLayerClipping

RECORDS = 500
CLIPPINGS = (FlatClipping(), PerLayerClipping(), AutomaticClipping(), AutomaticClipping(stability=1e-6))


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=repr)
@pytest.mark.parametrize("layers", [1, 2, 7])
@pytest.mark.parametrize("clipping_norm", [1e-3, 0.7, 3e4])
def test_a_scaled_gradient_is_no_longer_than_c_though_every_step_rounds_to_float32(clipping, layers, clipping_norm):
    """Gradients have every length, from far below C to far above it, all of it in one layer or spread over them."""
    torch.manual_seed(0)
    groups = clipping.groups([f"layer{i}.weight" for i in range(layers)])
    lengths = clipping_norm * torch.logspace(-9, 9, RECORDS, dtype=torch.float64)
    gradients = torch.randn(layers, RECORDS, 5, dtype=torch.float64) * torch.logspace(0, 3, RECORDS)[:, None]
    gradients[1:, : RECORDS // 2] = 0.0
    gradients = (gradients * (lengths / gradients.square().sum((0, 2)).sqrt())[:, None]).float()
    squared = torch.zeros(max(groups) + 1, RECORDS, dtype=torch.float64)
    squared.index_add_(0, torch.tensor(groups), gradients.norm(dim=2).double().square())
    scales = clipping.scales(squared, clipping_norm).float()
    clipped = torch.stack([gradients[i] * scales[groups[i]][:, None] for i in range(layers)])
    norms = clipped.double().square().sum((0, 2)).sqrt()
    assert norms.max() <= clipping_norm
    assert norms.max() >= clipping_norm * 0.99  # the bound is met, or the test would see no scale that is too large


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=repr)
def test_a_gradient_of_zeros_stays_zero_and_disturbs_nobody(clipping):
    scales = clipping.scales(torch.tensor([[0.0, 4.0]], dtype=torch.float64), 1.0)
    assert (scales * torch.tensor([0.0, 2.0])).isfinite().all()
    assert 0.0 < scales[0, 1] * 2.0 <= 1.0


def test_the_least_stability_is_taken_and_no_less():
    assert AutomaticClipping(stability=1e-6).stability == 1e-6
    for less in (0.99e-6, 0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="stability"):
            AutomaticClipping(less)
