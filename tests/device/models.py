"""Models of every kind that private gradients are computed for, each with records that it accepts."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gradient_models import TextClassifier, WideResNet, perceptron, tanh_cnn


class Recurrent(nn.Module):
    """A layer that book-keeping has no rule for."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(20, 12), nn.Linear(12, 3)

    def forward(self, sequences):
        state = sequences.new_zeros(len(sequences), 12)
        for step in range(sequences.shape[1]):
            state = torch.tanh(self.cell(torch.cat([sequences[:, step], state], 1)))
        return self.head(state)


class Rescaled(nn.Module):
    """A parameter of its own, outside of every layer."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(9)), nn.Linear(9, 3)

    def forward(self, inputs):
        return self.head(torch.tanh(inputs * self.scale))


class Volumes(nn.Module):
    """Convolutions in one, two and three axes, with groups, dilation and a transposed one."""

    def __init__(self):
        super().__init__()
        self.line = nn.Conv1d(4, 8, 3, padding=1, groups=2)
        self.plane = nn.Conv2d(2, 4, 3, padding=2, dilation=2)
        self.space = nn.Conv3d(1, 2, 2)
        self.wider = nn.ConvTranspose2d(2, 3, 2)
        self.norm, self.head = nn.GroupNorm(2, 8), nn.Linear(8, 3)

    def forward(self, series):
        lines = functional.relu(self.norm(self.line(series)))
        planes = functional.gelu(self.plane(lines.unflatten(1, (2, 4))))
        spaces = torch.tanh(self.space(planes.unsqueeze(1)))
        wider = functional.silu(self.wider(spaces.mean(2)))
        return self.head(wider.flatten(1)[:, :8])


@dataclass(frozen=True)
class Case:
    """A model, its records, and the loss's name."""

    build: object
    inputs: object
    classes: int

    def model(self) -> nn.Module:
        """Make it, with the same parameters every time."""
        torch.manual_seed(0)
        return self.build()

    def records(self, count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
        """Make records and their classes."""
        torch.manual_seed(seed)
        return self.inputs(count), torch.randint(self.classes, (count,))


CASES = {
    "linear": Case(lambda: nn.Linear(30, 2), lambda n: torch.randn(n, 30), 2),
    "perceptron": Case(perceptron, lambda n: torch.randn(n, 784), 10),
    "convolutions": Case(tanh_cnn, lambda n: torch.randn(n, 1, 28, 28), 10),
    "residual": Case(lambda: WideResNet(10, 1), lambda n: torch.randn(n, 3, 32, 32), 10),
    "transformer": Case(TextClassifier, lambda n: torch.randint(10_000, (n, 64)), 4),
    "volumes": Case(Volumes, lambda n: torch.randn(n, 4, 16), 3),
    "odd widths": Case(
        lambda: nn.Sequential(nn.Linear(131, 77), nn.Tanh(), nn.Linear(77, 259), nn.Tanh(), nn.Linear(259, 3)),
        lambda n: torch.randn(n, 131),
        3,
    ),
    "recurrent": Case(Recurrent, lambda n: torch.randn(n, 5, 8), 3),
    "own parameter": Case(Rescaled, lambda n: torch.randn(n, 9), 3),
}
