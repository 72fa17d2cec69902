"""A server that amplifies rounding a thousand million times cannot make one record count for more than C.

`tests.privacy.hostile` says how it tries, and runs more trials than there is time for here.
"""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MessageType

from fedprivacy.deploy.keys import write_client_key
from fedprivacy.flower import InProcessGrid
from fedprivacy.flower.wire.messages import RECEIPT
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from fedprivacy.tasks import Shard
from fedprivacy.values.events import NeighbouringRelation
from tests.flower.asked import a_grant, app_of, grant_message, node_of, send
from tests.flower.blobs import PrivateSizes
from tests.privacy.hostile import MEANS, amplify, perceptron, squared_error, trials

ONE_OF_EACH = 48
"""Trials: every network and loss with every amplification, its units dead or alive."""

RARE = pytest.mark.exhaustive


IN_FULL = ("book-keeping", "vmap, one row at a time")
"""Means that share the least with the quick one and with each other; the soak has all."""


@pytest.mark.parametrize(
    "means",
    [
        pytest.param(means, marks=() if means == MEANS[0] else RARE if means in IN_FULL else pytest.mark.soak)
        for means in MEANS
    ],
)
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
    """A deployed client's records, and the network whose parameters a server chooses."""

    def __init__(self, leaves=None):
        generator = torch.Generator().manual_seed(0)
        kept = torch.arange(600) != (-1 if leaves is None else leaves)
        self.inputs = torch.randn(600, 20, generator=generator)[kept]
        self.targets = torch.randint(2, (600,), generator=generator).float()[kept]

    def model(self):
        return perceptron(30)

    def loss(self, outputs, targets):
        return squared_error(outputs, targets)

    def shard(self, source):
        return Shard(self.inputs, self.targets)


def released(task, folder, parameters, rounds):
    """The mean of the sums that a deployed client releases, in clipping norms."""
    InProcessGrid(app_of(task), 1, {})  # sets the identity of the process, which Flower's messages read
    folder.mkdir()
    key = write_client_key(folder, "hospital").private_key
    node = node_of(folder, key) | {"epsilon": 1e9, "least-noise-multiplier": 0.01}
    learning_rate, sums = 1e12, []
    for number in range(1, rounds + 1):
        settings = {"round": number, "steps": 1, "sampling_rate": 1.0, "noise_multiplier": 0.02}
        settings |= {"relation": NeighbouringRelation.ADD_OR_REMOVE_ONE, "expected_batch_size": 1.0}
        content = grant_message(a_grant(learning_rate=learning_rate, **settings))
        content["arrays"] = ArrayRecord({name: Array(values) for name, values in parameters.items()})
        reply = send(MessageType.TRAIN, content, node, task=task)
        assert RECEIPT in reply.content, reply.content
        moved = [parameters[n].astype(np.float64) - a.numpy() for n, a in reply.content["arrays"].items()]
        sums.append(np.concatenate([part.ravel() for part in moved]) / learning_rate)
    return np.mean(sums, 0)


@pytest.mark.parametrize("gated", [False, True])
def test_a_deployed_client_is_as_firm_in_its_very_first_round(tmp_path, gated):
    """Guard and signed grants included: one record counted for 2.6 C here, at a noise multiplier of 0.02."""
    model = perceptron(30)
    amplify(model, 3, 1e9, gated=gated)
    parameters = {name: p.detach().numpy() for name, p in model.named_parameters()}
    one, other = (released(Amplified(leaves), tmp_path / str(leaves), parameters, 4) for leaves in (None, 0))
    noise = 0.02 * (2 * one.size / 4) ** 0.5
    assert np.linalg.norm(one - other) <= np.hypot(1.0 + SUM_ALLOWANCE, 1.3 * noise)
