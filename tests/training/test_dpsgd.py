"""DP-SGD does what its event says: noise of the stated size, once a step, whatever the batch."""

import pytest
import torch
from scipy import stats
from torch import nn

from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.dpsgd import DPSGD, NoisyMean
from fedprivacy.training.optimizers import SGD, Adam
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


def test_the_update_states_the_event_of_the_mechanism_that_ran():
    trainer = sgd(q=0.3, sigma=1.7)
    update = trainer.train(engine(), shard(), steps=3, round=1, keystream=KEY)
    assert update.event is trainer.gradient.mechanism.event
    assert (update.event.sampling_rate, update.event.noise_multiplier, update.steps) == (0.3, 1.7, 3)


def test_one_step_is_the_clipped_sum_plus_noise_over_the_public_divisor():
    data, trainer = shard(), sgd(q=1.0, clipping_norm=0.25, batch=7.0, optimizer=SGD(0.1))
    update = trainer.train(engine(), data, steps=1, round=4, keystream=KEY)
    gradients = torch.cat([-2 * data.targets[:, None] * data.inputs, -2 * data.targets[:, None]], dim=1)
    clipped = gradients * (0.25 / gradients.norm(dim=1)).clamp(max=1.0)[:, None]
    noise = trainer.gradient.mechanism.release(lambda *_: torch.zeros(21), len(data), KEY, Position(4, 1))
    assert torch.allclose(flat(update), -0.1 * (clipped.sum(0) + noise) / 7.0, atol=1e-5)


def test_the_same_randomness_repeats_and_another_round_does_not():
    def run(round, key=KEY):
        return flat(sgd().train(engine(), shard(), steps=2, round=round, keystream=key))

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    assert not torch.equal(run(1), run(1, Keystream.secret()))


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


def test_every_gradient_is_taken_where_the_step_before_has_led():
    """The steps find the least squares with hardly any noise; from a model that never moves they would not."""
    torch.manual_seed(0)
    inputs = torch.randn(60, 20)
    data = Shard(inputs, inputs @ torch.linspace(-1, 1, 20))
    trainer = sgd(q=1.0, sigma=1e-6, clipping_norm=100.0, batch=60.0, optimizer=Adam(0.1))
    update = trainer.train(engine(), data, steps=300, round=1, keystream=KEY)
    assert torch.allclose(flat(update)[:-1], torch.linspace(-1, 1, 20), atol=0.01)


def test_a_shard_with_a_missing_target_is_refused():
    with pytest.raises(ValueError, match="one target for each record"):
        Shard(torch.zeros(3, 2), torch.zeros(2))
