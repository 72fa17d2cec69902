"""Discrete-time survival: a likelihood for each patient, and concordance as Harrell counts it by hand."""

import math

import pytest
import torch

from simulations.reproduce.survival import concordance_index, expected_risk, hazard_model, survival_loss

ENDS = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("risks", "patients", "concordance"),
    [
        ([2.0, 1.0], [(1, 1.0), (1, 2.0)], 1.0),
        ([1.0, 2.0], [(1, 1.0), (1, 2.0)], 0.0),
        ([1.0, 1.0], [(1, 1.0), (1, 2.0)], 0.5),  # equal risks
        ([3.0, 2.0, 1.0], [(1, 1.0), (0, 2.0), (1, 3.0)], 1.0),  # the censored one is compared with the first alone
        ([2.0, 1.0, 3.0], [(1, 1.0), (0, 2.0), (1, 3.0)], 0.5),
        ([2.0, 1.0], [(1, 1.0), (0, 1.0)], 1.0),  # at equal times, who was censored lived longer
        ([2.0, 1.0, 0.0], [(1, 1.0), (1, 1.0), (0, 2.0)], 1.0),  # two events at once say nothing of each other
        ([4.0, 1.0, 3.0, 2.0], [(1, 1.0), (1, 2.0), (1, 3.0), (0, 4.0)], 4 / 6),
    ],
)
def test_concordance_counts_pairs_as_one_does_by_hand(risks, patients, concordance):
    assert concordance_index(torch.tensor(risks), torch.tensor(patients)) == pytest.approx(concordance)


def test_without_an_event_nothing_is_concordant():
    assert math.isnan(concordance_index(torch.tensor([1.0, 2.0]), torch.tensor([(0.0, 1.0), (0.0, 2.0)])))


@pytest.mark.parametrize(
    ("event", "time", "likelihood"),
    [
        (1, 0.0, 0.1),  # an event on the first day is in the first interval
        (1, 1.0, 0.1),
        (1, 1.5, 0.9 * 0.2),
        (1, 3.0, 0.9 * 0.8 * 0.3),
        (0, 0.5, 1.0),
        (0, 1.5, 0.9),
        (0, 3.5, 0.9 * 0.8 * 0.7),
        (1, 3.5, 0.9 * 0.8 * 0.7),  # after the last interval everybody is censored
    ],
)
def test_a_patients_likelihood_is_the_product_over_her_intervals(event, time, likelihood):
    logits = torch.logit(torch.tensor([[0.1, 0.2, 0.3]]))
    loss = survival_loss(logits, torch.tensor([[float(event), time]]), ENDS)
    assert loss.shape == (1,)
    assert loss.item() == pytest.approx(-math.log(likelihood), abs=1e-6)


def test_risk_is_minus_the_logarithm_of_surviving():
    assert expected_risk(torch.logit(torch.tensor([[0.1, 0.2]]))).item() == pytest.approx(-math.log(0.9 * 0.8))


def test_at_first_everybody_has_the_given_hazard():
    logits = hazard_model(4, 3, 0.03)(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(logits.sigmoid(), torch.full((5, 3), 0.03))
