"""An index that a table does not have makes one record count for nothing; on a GPU it must not reach a kernel."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedprivacy.gradients.watch import IndicesInRange, OnePath
from tests.gradients.oracle import cross_entropy

TABLE = torch.zeros(5, 2)

LOOKUPS = {
    "embedding": lambda at: functional.embedding(at, TABLE),
    "rows": lambda at: TABLE[at],
    "rows and columns": lambda at: TABLE[at, at % 2],
    "index_select": lambda at: TABLE.index_select(0, at),
    "index_select of the last axis": lambda at: TABLE.T.index_select(-1, at),
    "gather": lambda at: TABLE.gather(0, at.unsqueeze(1)),
    "take": lambda at: TABLE[:, 0].clone().take(at),
    "scatter": lambda at: TABLE.scatter(0, at.unsqueeze(1), 1.0),
    "scatter_add_": lambda at: TABLE.clone().scatter_add_(0, at.unsqueeze(1), TABLE),
    "index_add_": lambda at: TABLE.clone().index_add_(0, at, TABLE[:4]),
    "index_put": lambda at: TABLE.index_put((at,), TABLE[0]),
    "one_hot": lambda at: torch.zeros(4, 5).scatter_(1, at.unsqueeze(1), 1),
    "cross_entropy": lambda at: cross_entropy(torch.rand(4, 5), at),
    "cross_entropy by position": lambda at: cross_entropy(torch.rand(2, 5, 2), at.view(2, 2)),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_an_index_out_of_range_raises_before_a_kernel_meets_it(name):
    look_up, known = LOOKUPS[name], torch.tensor([0, 4, 1, 3])
    with OnePath(known), IndicesInRange() as lookups:
        look_up(known)
    assert lookups.used
    for unknown in (5, -6, 2**40):
        with IndicesInRange(), pytest.raises(IndexError, match="an index is out of range"):
            look_up(torch.tensor([0, unknown, 1, 3]))


def test_a_label_that_the_loss_ignores_is_known():
    with IndicesInRange():
        assert cross_entropy(torch.rand(2, 3), torch.tensor([2, -100]))[1] == 0.0


@pytest.mark.parametrize("place", ["id", "label"])
def test_it_is_seen_inside_of_vmap(place):
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))

    def loss(parameters, ids, label):
        return cross_entropy(functional_call(model, parameters, (ids.unsqueeze(0),)), label.unsqueeze(0))[0]

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    ids, labels = torch.tensor([[0, 4], [1, 3]]), torch.tensor([0, 1])
    with IndicesInRange() as lookups:
        gradients(dict(model.named_parameters()), ids, labels)
    assert lookups.used
    (ids if place == "id" else labels)[1] = 5
    with IndicesInRange(), pytest.raises(IndexError, match="an index is out of range"):
        gradients(dict(model.named_parameters()), ids, labels)


def test_what_looks_nothing_up_is_let_through():
    with IndicesInRange() as lookups:
        nn.Linear(3, 2)(torch.rand(4, 3)).relu().sum(1)[torch.tensor([True, False, True, True])]
    assert not lookups.used
