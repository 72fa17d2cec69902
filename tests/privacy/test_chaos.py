"""A server that amplifies rounding a thousand million times cannot make one record count for more than C.

`tests.privacy.hostile` says how it tries, and runs more trials than there is time for here.
"""

import pytest
import torch

from fedprivacy.mechanisms import SUM_ALLOWANCE
from tests.privacy.hostile import MEANS, amplify, perceptron, trials

TRIALS = {"program": 120, "book-keeping": 120, "vmap": 80, "loop": 36}


@pytest.mark.parametrize("means", MEANS)
def test_amplified_rounding_is_the_same_for_neighbours(means):
    assert max(trials(means, TRIALS[means])) <= 1.0 + SUM_ALLOWANCE


def test_these_parameters_do_amplify_rounding():
    """Where a record's output is computed among others as the kernel likes, it changes by many times itself."""
    found = 0.0
    for seed in range(6):
        inputs = torch.randn(100, 20, generator=torch.Generator().manual_seed(seed))
        net = perceptron(50)
        amplify(net, seed, 1e9, gated=False)
        with torch.no_grad():
            whole, less = net(inputs), net(inputs[1:])
        found = max(found, ((whole[1:] - less).abs() / whole[1:].abs().clamp(min=1e-3)).max().item())
    assert found > 0.1
