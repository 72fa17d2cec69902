"""A layer rule that everybody has: `nn.PReLU`, which is recomputed record by record without one."""

from tests.additions.addition import Addition, after

ACTIVATIONS = '''"""Activations with a trained slope."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients.pieces import Piece, Written
from fedprivacy.gradients.tape import Tape


def prelu(tape: Tape, name: str, layer: nn.PReLU, inputs: Tensor) -> Tensor:
    """`nn.PReLU` on inputs [batch, channels, ...], with one slope for each channel or for all."""
    tape.require_records_first(name, inputs)
    output = functional.prelu(inputs, layer.weight)

    def pieces_of(gradient: Tensor) -> list[Piece]:
        slopes = (inputs.detach().clamp(max=0.0) * gradient).flatten(1)
        return [Written(slopes.unflatten(1, (layer.num_parameters, -1)).sum(2))]

    tape.watch(name, inputs, output, [tape.part(layer.weight)], pieces_of)
    return output
'''

PRELU = Addition(
    edits={
        "fedprivacy/gradients/rules/__init__.py": [
            after(
                "from fedprivacy.gradients.pieces import Piece, Written\n",
                "from fedprivacy.gradients.rules.activation import prelu\n",
            ),
            after("    nn.Embedding: embedding,\n", "    nn.PReLU: prelu,\n"),
        ],
    },
    files={("fedprivacy/gradients/rules", "activation.py"): ACTIVATIONS},
)

PROGRAM = """
from unittest import mock

import torch
from torch import nn

from fedprivacy.gradients import rules
from tests.gradients.oracle import check_every_clipping

for slopes in (1, 3):
    torch.manual_seed(slopes)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.PReLU(slopes), nn.Flatten(), nn.Linear(12, 4))
    inputs, targets = torch.randn(9, 2, 6), torch.randint(4, (9,))
    rule = mock.Mock(wraps=rules._RULES[nn.PReLU])
    with mock.patch.dict(rules._RULES, {nn.PReLU: rule}):
        check_every_clipping(model, inputs, targets)
    read = [call.args[3] for call in rule.call_args_list]
    print(max(map(len, read)))
"""
