"""Models of every kind that private gradients are computed for, each with records that it accepts."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


def convolutions():
    """Overlapping windows of max-pooling between convolutions."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


class Residual(nn.Module):
    """Two residual blocks with GroupNorm and ReLU, the second of half the pixels."""

    def __init__(self):
        super().__init__()
        self.stem, self.narrow = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, padding=1)
        self.wide, self.shortcut = nn.Conv2d(16, 64, 3, 2, padding=1), nn.Conv2d(16, 64, 1, 2, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(16, 16), nn.GroupNorm(16, 16), nn.GroupNorm(16, 64)])
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        images = self.stem(images)
        images = images + self.narrow(functional.relu(self.norms[0](images)))
        active = functional.relu(self.norms[1](images))
        images = self.wide(active) + self.shortcut(active)
        return self.head(functional.relu(self.norms[2](images)).mean((2, 3)))


class Transformer(nn.Module):
    """One block over the embedded tokens of a text."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.token, self.heads = nn.Embedding(10_000, width), heads
        self.maps = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, 4)

    def forward(self, ids):
        tokens = self.token(ids)
        normed = self.norms[0](tokens)
        query, key, value = (each(normed).unflatten(2, (self.heads, -1)).transpose(1, 2) for each in self.maps[:3])
        weights = torch.softmax(query @ key.transpose(2, 3) / query.shape[3] ** 0.5, dim=3)
        tokens = tokens + self.maps[3]((weights @ value).transpose(1, 2).flatten(2))
        tokens = tokens + self.perceptron(self.norms[1](tokens))
        return self.head(self.norms[2](tokens).mean(1))


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


class Branching(nn.Module):
    """A branch on a value, which only the loop can compute."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, inputs):
        return self.one(inputs) if inputs.sum() > 0 else self.other(inputs)


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
    """A model, and the records that it accepts."""

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
    "perceptron": Case(
        lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)), lambda n: torch.randn(n, 784), 10
    ),
    "convolutions": Case(convolutions, lambda n: torch.randn(n, 1, 28, 28), 10),
    "residual": Case(Residual, lambda n: torch.randn(n, 3, 32, 32), 10),
    "transformer": Case(Transformer, lambda n: torch.randint(10_000, (n, 64)), 4),
    "volumes": Case(Volumes, lambda n: torch.randn(n, 4, 16), 3),
    "odd widths": Case(
        lambda: nn.Sequential(nn.Linear(131, 77), nn.Tanh(), nn.Linear(77, 259), nn.Tanh(), nn.Linear(259, 3)),
        lambda n: torch.randn(n, 131),
        3,
    ),
    "recurrent": Case(Recurrent, lambda n: torch.randn(n, 5, 8), 3),
    "own parameter": Case(Rescaled, lambda n: torch.randn(n, 9), 3),
}

SMALL = {
    "small transformer": Case(lambda: Transformer(8, 2), lambda n: torch.randint(10_000, (n, 6)), 4),
    "branching": Case(Branching, lambda n: torch.randn(n, 5), 3),
}
"""More of them, which no GPU is asked to compute: its time goes to the others."""

QUICK = {"linear": "program", "small transformer": "book-keeping", "own parameter": "vmap", "branching": "loop"}
"""A small model for each method, which the quick lane takes."""
