"""DP-SCAFFOLD's users: what they hold, the optimum, and runs that come nearer to it. The goals are the command's."""

import math

import pytest
import torch
from torch.nn import functional

from simulations.reproduce import logistic
from simulations.reproduce.experiment import Workplace


@pytest.fixture
def few(monkeypatch):
    """Fewer and smaller users; what was made of others is forgotten before and after."""
    for name, number in {"USERS": 20, "RECORDS": 300, "TRAINED": 250}.items():
        monkeypatch.setattr(logistic, name, number)
    for made in (logistic.users, logistic.least_loss):
        made.cache_clear()
    yield
    for made in (logistic.users, logistic.least_loss):
        made.cache_clear()


def test_inputs_have_norm_1_and_users_differ_by_alpha_and_beta(few):
    inputs, classes = logistic.users(0.0, 0.0)
    assert inputs.shape == (20, 250, logistic.INPUTS) and classes.shape == (20, 250)
    torch.testing.assert_close(inputs.norm(dim=2), torch.ones(20, 250))
    apart, _ = logistic.users(0.0, 5.0)
    spread, alike = (1 - of.mean(1).norm(dim=1).mean() for of in (apart, inputs))
    assert spread < 0.7 * alike  # each keeps to itself
    assert not torch.equal(logistic.users(5.0, 0.0)[1], classes)


@pytest.mark.exhaustive
def test_the_least_loss_is_that_of_the_optimum(few):
    """Found of the inputs as they are, in float64, until hardly a gradient is left."""
    inputs, classes = logistic.users(1.0, 1.0)
    model = logistic.Logistic(1.0, 1.0).model().double()
    rows, wanted = inputs.flatten(0, 1).double(), classes.flatten()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=600, tolerance_grad=1e-6, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(rows), wanted)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert max(parameter.grad.abs().max() for parameter in model.parameters()) < 1e-5
    assert logistic.least_loss(1.0, 1.0) == pytest.approx(closure().item(), abs=1e-5)


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_short_runs_come_nearer_to_the_optimum_and_say_what_they_cost(few, monkeypatch, tmp_path):
    """Noise is less than the paper's, as so few records and rounds need."""
    for name, value in {"rounds": 8, "cohort_size": 10, "noise_multiplier": 4.0}.items():
        monkeypatch.setitem(logistic.SETTINGS, name, value)
    found = dict(logistic.LOGISTIC.measure(100, Workplace(tmp_path, tmp_path, print)))
    assert list(found) == [row.name for row in logistic.LOGISTIC.rows]
    for (alpha, beta), name in zip(logistic.UNLIKE, ("FedAvg (0, 0)", "FedAvg (1, 1)", "FedAvg (5, 5)"), strict=True):
        untrained = logistic.loss_of(logistic.Logistic(alpha, beta).model(), alpha, beta).item()
        start = math.log10(untrained - logistic.least_loss(alpha, beta))
        assert found[name].value < start - 0.02
        assert found[name.replace("FedAvg", "SCAFFOLD")].value < start - 0.02
    assert len({measured.epsilon for measured in found.values()}) == 1  # the same sizes, steps and noise
    assert 0.1 < found["FedAvg (0, 0)"].epsilon < 10.0
