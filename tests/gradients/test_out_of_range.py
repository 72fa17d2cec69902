"""A label or an id out of range makes one record count for nothing; on a GPU it must not reach a kernel."""

import pytest
import torch

from fedprivacy.gradients.losses import tried_on_cpu
from fedprivacy.gradients.rules.embedding import check_range
from tests.gradients.oracle import cross_entropy


@pytest.mark.parametrize("label", [9, -5])
def test_a_loss_is_tried_on_the_cpu_before_it_is_computed(label):
    seen = []

    def loss(outputs, targets):
        seen.append(outputs.requires_grad)
        return cross_entropy(outputs, targets)

    tried, outputs = tried_on_cpu(loss), torch.rand(4, 3, requires_grad=True)
    with pytest.raises(IndexError):
        tried(outputs, torch.tensor([0, 1, label, 2]))
    assert seen == [False], "the kernel that the gradient comes from was not reached"
    assert torch.equal(tried(outputs, torch.tensor([0, 1, 1, 2])), cross_entropy(outputs, torch.tensor([0, 1, 1, 2])))


def test_ids_out_of_range_are_refused_and_others_are_not():
    check_range(torch.tensor([[0, 3], [1, 2]]), 4)
    for ids in ([[0, 4]], [[-1, 0]]):
        with pytest.raises(IndexError):
            check_range(torch.tensor(ids), 4)
