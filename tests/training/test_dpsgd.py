"""DP-SGD does what its event says: noise of the stated size, once a step, for the sum and for adaptive clipping."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.adaptive import QuantileClipping
from fedprivacy.training.dpsgd import DPSGD, NoisyMean
from fedprivacy.training.optimizers import SGD
from fedprivacy.values.events import PoissonSampledGaussian

KEY = Keystream.from_seed(0, "client-0")


def squared_error(outputs, targets):
    return (outputs.squeeze(1) - targets) ** 2


def linear():
    model = nn.Linear(20, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def engine(model=None):
    return GradientEngine(model or linear(), squared_error)


def sgd(q=0.5, sigma=2.0, clipping_norm=0.5, batch=10.0, optimizer=None, proximal_mu=0.0):
    mechanism = SampledGaussianSum(PoissonSampledGaussian(q, sigma), clipping_norm)
    return DPSGD(NoisyMean(mechanism, batch), optimizer or SGD(1.0), proximal_mu)


def shard(records=20):
    torch.manual_seed(0)
    return Shard(torch.randn(records, 20), torch.randn(records))


def flat(update):
    return torch.cat([p.flatten() for p in update.parameters.values()])


def blank(records):
    """Records without a gradient: what is released is noise alone."""
    return Shard(torch.zeros(records, 20), torch.zeros(records))


def test_noise_is_added_once_for_each_local_step():
    model = linear()
    update = sgd().train(engine(model), blank(5), steps=400, round=1, keystream=KEY)
    variance = (flat(update).numpy()[:-1] ** 2).sum() / (400 * (2.0 * 0.5 / 10.0) ** 2)
    assert 5e-5 < stats.chi2.cdf(variance, 20) < 1 - 5e-5
    assert update.steps == 400


def test_one_step_is_the_clipped_sum_plus_noise_over_the_public_divisor():
    data, trainer = shard(), sgd(q=1.0, clipping_norm=0.25, batch=7.0, optimizer=SGD(0.1))
    update = trainer.train(engine(), data, steps=1, round=4, keystream=KEY)
    gradients = torch.cat([-2 * data.targets[:, None] * data.inputs, -2 * data.targets[:, None]], dim=1)
    clipped = gradients * (0.25 / gradients.norm(dim=1)).clamp(max=1.0)[:, None]
    noise = trainer.gradient.mechanism.release(lambda *_: torch.zeros(21), len(data), KEY, Position(4, 1))
    assert torch.allclose(flat(update), -0.1 * (clipped.sum(0) + noise) / 7.0, atol=1e-5)


def test_momentum_and_proximal_term_are_post_processing_of_the_same_releases():
    def trained(steps, **options):
        """The way that so many steps go from a model whose weights are not zero."""
        model = linear()
        nn.init.ones_(model.weight)
        start = flat_parameters(model)
        return flat(sgd(**options).train(engine(model), blank(5), steps=steps, round=1, keystream=KEY)) - start

    first, plain = trained(1), trained(2)
    assert torch.allclose(trained(2, optimizer=SGD(1.0, 0.5)), plain + 0.5 * first, atol=1e-5)
    assert torch.allclose(trained(2, proximal_mu=0.25), plain - 0.25 * first, atol=1e-5)


def test_a_shard_with_a_missing_target_is_refused():
    with pytest.raises(ValueError, match="one target for each record"):
        Shard(torch.zeros(3, 2), torch.zeros(2))


def first_output(outputs, targets):
    """The gradient of each record is the record itself, then."""
    return outputs[:, 0]


def counting_engine():
    return GradientEngine(nn.Linear(3, 1, bias=False), first_output)


@pytest.mark.parametrize(("share", "clipping_norm"), [(0.001, 0.1), (0.01, 2.0), (0.3, 0.1)])
def test_one_record_moves_the_joined_vector_by_no_more_than_the_sensitivity(share, clipping_norm):
    torch.manual_seed(0)
    adaptive = QuantileClipping(share=share)
    records = torch.randn(40, 3) * torch.logspace(-3, 3, 40)[:, None]
    clip = counting_engine().clip
    whole = adaptive.append_count(clip(records, torch.zeros(40), clipping_norm), clipping_norm)
    bound = adaptive.sensitivity(clipping_norm)
    distances = []
    for i in range(40):
        others = torch.arange(40) != i
        rest = adaptive.append_count(clip(records[others], torch.zeros(39), clipping_norm), clipping_norm)
        distances.append(float((whole - rest).norm()))
    assert max(distances) <= bound * (1 + 1e-4)
    assert max(distances) >= bound * (1 - 1e-3)  # the bound is met: a clipped record uses all of it


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.8])
def test_the_norm_moves_by_the_noisy_share_within_and_never_further_than_if_all_were_on_one_side(quantile):
    """Catches: a sign. Noise makes the count negative, or larger than the batch, as often as not."""
    adaptive, norm, batch = QuantileClipping(quantile=quantile, learning_rate=0.2), 3.0, 100.0
    for noisy, share in ((-1e9, 0.0), (-60.0, 0.0), (-50.0, 0.0), (-20.0, 0.3), (0.0, 0.5), (50.0, 1.0), (1e9, 1.0)):
        moved = adaptive.next_norm(noisy * adaptive.weight(norm), norm, batch)
        assert moved == pytest.approx(norm * math.exp(-0.2 * (share - quantile)))


@pytest.mark.parametrize(
    "setting",
    [{"quantile": 1.1}, {"quantile": -0.1}, {"learning_rate": 0.0}, {"share": 1.0}, {"share": 0.0}],
)
def test_impossible_settings_are_named(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=name):
        QuantileClipping(**setting)
