"""A server that amplifies rounding a thousand million times cannot make one record count for more than C.

`tests.privacy.hostile` says how it tries, and runs more trials than there is time for here.
"""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MessageType

from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from fedprivacy.tasks import Shard
from fedprivacy.values.events import NeighbouringRelation
from tests.flower.asked import a_grant, grant_message, send
from tests.flower.blobs import PrivateSizes
from tests.privacy.hostile import MEANS, amplify, perceptron, squared_error, trials

ONE_OF_EACH = 48
"""Trials: every network and loss with every amplification, its units dead or alive."""

IN_FULL = ("book-keeping", "vmap, one row at a time")
"""Means that share the least with the quick one and with each other; the soak has all."""

LANES = {MEANS[0]: ()} | dict.fromkeys(IN_FULL, pytest.mark.exhaustive)


@pytest.mark.parametrize("means", [pytest.param(m, marks=LANES.get(m, pytest.mark.soak)) for m in MEANS])
def test_amplified_rounding_is_the_same_for_neighbours(means):
    assert max(trials(means, ONE_OF_EACH)) <= 1.0 + SUM_ALLOWANCE


def test_these_parameters_do_amplify_rounding():
    """The same output, added up in another order, changes by many times itself: on every processor."""
    found = 0.0
    for seed in range(6):
        inputs = torch.randn(100, 20, generator=torch.Generator().manual_seed(seed))
        net = perceptron(50)
        amplify(net, seed, 1e9, gated=False)
        with torch.no_grad():
            before, order = net(inputs), torch.randperm(50, generator=torch.Generator().manual_seed(seed))
            net[0].weight.copy_(net[0].weight[order])
            net[2].weight.copy_(net[2].weight[:, order])
            after = net(inputs)
        found = max(found, ((before - after).abs() / before.abs().clamp(min=1e-3)).max().item())
    assert found > 0.1


class Amplified(PrivateSizes):
    """A deployed client's records, of which some have left, and a network whose parameters a server chooses."""

    def __init__(self, left):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(600, 20, generator=generator)[left:]
        self.targets = torch.randint(2, (600,), generator=generator).float()[left:]

    def model(self):
        return perceptron(30)

    def loss(self, outputs, targets):
        return squared_error(outputs, targets)

    def shard(self, source):
        return Shard(self.inputs, self.targets)


SETTINGS = {"steps": 1, "sampling_rate": 1.0, "noise_multiplier": 0.02, "learning_rate": 1e12}
SETTINGS |= {"relation": NeighbouringRelation.ADD_OR_REMOVE_ONE, "expected_batch_size": 1.0}


def released(node, left, arrays):
    """The mean of the sums that a deployed client releases in four rounds, in clipping norms."""
    sums = []
    for number in range(4 * left + 1, 4 * left + 5):
        content = grant_message(a_grant(round=number, **SETTINGS))
        content["arrays"] = arrays
        back = send(MessageType.TRAIN, content, node, task=Amplified(left)).content["arrays"]
        moved = [sent.numpy().astype(np.float64) - back[name].numpy() for name, sent in arrays.items()]
        sums.append(np.concatenate([part.ravel() for part in moved]) / 1e12)
    return np.mean(sums, 0)


@pytest.mark.parametrize("gated", [False, True])
def test_a_deployed_client_is_as_firm_in_its_very_first_round(node, gated):
    """Guard and signed grants included: one record counted for 2.6 C here, at a noise multiplier of 0.02."""
    model = perceptron(30)
    amplify(model, 3, 1e9, gated=gated)
    arrays = ArrayRecord({name: Array(p.detach().numpy()) for name, p in model.named_parameters()})
    own = node | {"epsilon": 1e9, "least-noise-multiplier": 0.01}
    one, other = (released(own, left, arrays) for left in (0, 1))
    noise = 0.02 * (2 * one.size / 4) ** 0.5
    assert np.linalg.norm(one - other) <= np.hypot(1.0 + SUM_ALLOWANCE, 1.3 * noise)
