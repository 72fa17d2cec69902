"""A record's output has the same bits whoever is beside it, and no record makes the others' fail."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients.per_record import RecordScores


def mlp():
    return nn.Sequential(nn.Linear(11, 37), nn.GELU(), nn.Linear(37, 5))


def convolutions():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 5))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3, 7, batch_first=True)

    def forward(self, records):
        return self.layer(records)[0][:, -1]


class Refusing(nn.Linear):
    """Raises on a record of threes."""

    def forward(self, records):
        if bool((records == 3.0).any()):
            raise ValueError(f"cannot compute {records.tolist()}")
        return super().forward(records)


def loss(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def first(outputs, targets):
    return outputs[:, 0]


def scores_of(model, *shape, measures=(loss, first)):
    return RecordScores(model, loss, measures, (torch.empty(0, *shape), torch.empty(0, dtype=torch.int64)))


def same(ones, others):
    return torch.equal(ones.view(torch.int64), others.view(torch.int64))


MODELS = [(mlp, (11,)), (convolutions, (1, 8, 8)), (Recurrent, (5, 3))]


@pytest.mark.parametrize(("make", "shape"), MODELS, ids=["perceptron", "convolutions", "recurrent"])
def test_a_record_has_the_same_scores_in_any_place_and_company(make, shape):
    torch.manual_seed(0)
    model = make()
    records, targets = torch.randn(70, *shape), torch.arange(70) % 5
    outputs = model(records).detach()
    expected = torch.stack([loss(outputs, targets), first(outputs, targets)], 1).double()
    scores = scores_of(model, *shape)
    torch.testing.assert_close(scores(records, targets), expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1e3)  # rounding shows
    together = scores(records, targets)
    assert together.shape == (70, 2)
    for order in (torch.arange(70).flip(0), torch.randperm(70)[:33], torch.arange(1)):
        assert same(scores(records[order], targets[order]), together[order])
    company = records.clone()
    company[1:] = torch.tensor([torch.nan, torch.inf, 1e30])[torch.arange(69) % 3].view(-1, *[1] * len(shape))
    assert same(scores(company, targets)[:1], together[:1])


def less_the_mean(outputs, targets):
    return outputs[:, 0] - outputs[:, 0].mean()


def test_where_records_are_mixed_each_is_computed_alone():
    scores = scores_of(nn.Linear(4, 2), 4, measures=[less_the_mean])
    assert scores.rows == 1
    records, targets = torch.randn(9, 4), torch.arange(9) % 2
    assert same(scores(records, targets), scores(records.flip(0), targets.flip(0)).flip(0))


def halved_in_place(outputs, targets):
    return targets.sub_((targets > 100) * (targets // 2)).double()


def of_two_classes(outputs, targets):
    return outputs.gather(1, 2 * (targets == 7).long().unsqueeze(1)).squeeze(1)


def test_a_score_that_writes_into_its_arguments_writes_into_nobody_s_record():
    scores = scores_of(nn.Linear(4, 2), 4, measures=[halved_in_place, of_two_classes])
    assert scores.rows > 1
    records, targets = torch.randn(scores.rows, 4), torch.full((scores.rows,), 150)
    before = scores(records, targets)
    targets[0] = 7  # its part fails, and is computed anew
    assert same(scores(records, targets)[1:], before[1:])
    assert int(targets[1]) == 150


class Roots(nn.Linear):
    """Its outputs are no numbers where they would be below zero."""

    def forward(self, records):
        return super().forward(records).sqrt()


def test_a_record_whose_output_is_no_number_has_no_score_by_its_target_either():
    torch.manual_seed(0)
    records, targets = torch.randn(40, 4), torch.arange(40)
    scores = scores_of(model := Roots(4, 2), 4, measures=[lambda outputs, targets: targets])(records, targets)
    unknown = model(records).isnan().any(1)
    assert 0 < unknown.sum() < 40 and torch.equal(scores[:, 0].isnan(), unknown)
    assert torch.equal(scores[~unknown, 0], targets[~unknown].double())


def refused(outputs, targets):
    if bool((targets == 1).any()):
        raise ValueError(f"cannot score {outputs.tolist()}")
    return outputs[:, 0]


@pytest.mark.parametrize("what", ["the model raises", "a score raises", "no such class", "no number"])
def test_a_record_that_cannot_be_scored_takes_nobody_else_s_scores(what):
    scores = scores_of(Refusing(4, 2), 4, measures=[loss, refused if what == "a score raises" else first])
    records, targets = torch.randn(50, 4), torch.zeros(50, dtype=torch.int64)
    alone = scores(records, targets)
    assert bool(alone.isfinite().all())
    if what == "the model raises":
        records[17] = 3.0
    elif what == "no number":
        records[17] = torch.nan
    else:
        targets[17] = 1 if what == "a score raises" else -7
    found = scores(records, targets)
    assert bool(found[17].isnan().all())
    others = torch.arange(50) != 17
    assert same(found[others], alone[others])
