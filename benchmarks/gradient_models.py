"""The models and batches on which gradients are measured. A name is a model and a batch size: cnn-64, wrn-1024."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 0.01

NAMES = (
    "lr-256",
    "mlp-64",
    "mlp-256",
    "mlp-1024",
    "cnn-64",
    "cnn-256",
    "resnet-64",
    "wrn-32",
    "transformer-64",
    "transformer-256",
)
"""What is measured unless told otherwise."""

_VOCABULARY = 10_000
_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """One model and one fixed batch of synthetic float32 data.

    Attributes:
        name: model and batch size.
        build: makes the model anew, with the same parameters every time.
        inputs: shape [batch, ...].
        targets: classes, shape [batch].
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.inputs.device


def problem(name: str, device: torch.device) -> Problem:
    """The problem of that name, on `device`.

    Raises:
        ValueError: there is no such model, or no batch size.
    """
    family, _, batch = name.rpartition("-")
    if family not in _MODELS or not batch.isdigit() or int(batch) == 0:
        raise ValueError(f"There is no model '{name}'; write one of {', '.join(_MODELS)}, a dash and a batch size.")
    model, records, classes = _MODELS[family]

    def build() -> nn.Module:
        torch.manual_seed(0)
        return model().to(device)

    torch.manual_seed(1)
    return Problem(name, build, records(int(batch)).to(device), torch.randint(classes, (int(batch),)).to(device))


def logistic_regression() -> nn.Module:
    """Two classes, 30 features."""
    return nn.Linear(30, 2)


def perceptron() -> nn.Module:
    """One hidden layer over the pixels of MNIST."""
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def softmax_regression() -> nn.Module:
    """Ten classes, the pixels of MNIST."""
    return nn.Linear(784, 10)


def small_perceptron() -> nn.Module:
    """One hidden layer over the 8 x 8 pixels of the digits."""
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def tanh_cnn() -> nn.Module:
    """The network of Papernot et al. 2021 for MNIST, 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


class ResidualBlock(nn.Module):
    """Two convolutions, each after GroupNorm and ReLU (He et al. 2016)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, width_in), nn.GroupNorm(16, width)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        same = width_in == width and stride == 1
        self.shortcut = None if same else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images [batch, width_in, h, w] to [batch, width, h / stride, w / stride]."""
        active = functional.relu(self.norm1(images))
        residual = images if self.shortcut is None else self.shortcut(active)
        return self.conv2(functional.relu(self.norm2(self.conv1(active)))) + residual


class WideResNet(nn.Module):
    """Wide ResNet (Zagoruyko and Komodakis 2016) with GroupNorm, for 3 x 32 x 32 images in ten classes."""

    def __init__(self, depth: int, widening: int) -> None:
        super().__init__()
        blocks, width = [], 16
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        for stage in range(3):
            for place in range((depth - 4) // 6):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(ResidualBlock(width, 16 * widening * 2**stage, stride))
                width = 16 * widening * 2**stage
        self.blocks, self.norm, self.head = nn.Sequential(*blocks), nn.GroupNorm(16, width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Images [batch, 3, 32, 32] to logits [batch, 10]."""
        features = functional.relu(self.norm(self.blocks(self.stem(images))))
        return self.head(features.mean((2, 3)))


class Attention(nn.Module):
    """Self-attention of four separate linear maps."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, positions, width] to the same shape."""
        batch, positions, width = tokens.shape

        def split(rows: Tensor) -> Tensor:
            return rows.view(batch, positions, self.heads, -1).transpose(1, 2)

        query, key, value = split(self.query(tokens)), split(self.key(tokens)), split(self.value(tokens))
        weights = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(width // self.heads), dim=3)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, positions, width))


class TransformerBlock(nn.Module):
    """Attention and a perceptron, each after LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, positions, width] to the same shape."""
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.perceptron(self.norm2(tokens))


class TextClassifier(nn.Module):
    """Two transformer blocks over the embedded tokens of a text, four classes."""

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(_VOCABULARY, width), nn.Embedding(_POSITIONS, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [batch, positions] to logits [batch, 4]. Opacus needs the positions of every record, so all get them."""
        positions = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
        tokens = self.blocks(self.token(ids) + self.position(positions))
        return self.head(self.norm(tokens).mean(1))


_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], int]] = {
    "lr": (logistic_regression, lambda batch: torch.randn(batch, 30), 2),
    "softmax": (softmax_regression, lambda batch: torch.randn(batch, 784), 10),
    "small": (small_perceptron, lambda batch: torch.randn(batch, 64), 10),
    "mlp": (perceptron, lambda batch: torch.randn(batch, 784), 10),
    "cnn": (tanh_cnn, lambda batch: torch.randn(batch, 1, 28, 28), 10),
    "resnet": (lambda: WideResNet(depth=10, widening=2), lambda batch: torch.randn(batch, 3, 32, 32), 10),
    "wrn": (lambda: WideResNet(depth=16, widening=4), lambda batch: torch.randn(batch, 3, 32, 32), 10),
    "transformer": (TextClassifier, lambda batch: torch.randint(_VOCABULARY, (batch, _POSITIONS)), 4),
}
"""For each model: how to make it, a batch of its inputs, and the number of classes."""
