"""MNIST within epsilon 3: two published recipes of central DP-SGD, and what is left when ten clients have the records.

- "from scratch": a convolutional network with tanh (Papernot, Thakurta, Song, Chien, Erlingsson 2021, "Tempered Sigmoid
  Activations for Deep Learning with Differential Privacy": 98.1 % at epsilon 2.93).
- "scattering": a linear classifier of wavelet features (Tramer, Boneh 2021, "Differentially Private Learning Needs
  Better Features": 98.7 % at epsilon 3).
- "ten clients" and "100 clients": the same classifier, on clients of 6,000 or of 600 records, each with epsilon 3 of
  its own.

**The test digits are harder than those of the papers.** The data file has 3,000 test digits, which are the first of the
10,000 that the papers report: the nearest neighbour in Euclidean distance errs on 4.27 % of them, and on 3.09 % of all
10,000 (LeCun's table of results). So each recipe is measured a second time, "held out": trained on the first 50,000
training digits and tested on the other 10,000 (of their first 2,000, the nearest of 50,000 errs on 3.45 %).

The batch size of "from scratch" was chosen on seed 100 and those 10,000 digits, among 512, 1,024, 2,048 and 4,096 for
the published 40 epochs, with learning rates in proportion. "Scattering" is as published but for the normalisation. The
federations have what `fedprivacy recommend` says. The noise is the least of the PLD accountant, for Poisson samples;
the papers shuffled, and used Renyi bounds. No statistic of several records is used: features are normalised by each
record's own numbers (the papers' noisy means cost a part of the budget).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedprivacy as fp
from fedprivacy.tasks.scattering import group_normalised, scattering
from simulations.reproduce.experiment import Measured, Row, Workplace

DATA = "mnist.npz"
WHENCE = "arrays X (uint8 [63000, 784], the first 60,000 for training) and y, made of http://yann.lecun.com/exdb/mnist"

DELTA = 1e-5
TRAINING, HELD_OUT = 60_000, 10_000
CLASSES = 10


@dataclass(frozen=True)
class CentralRecipe:
    """Hyper-parameters of DP-SGD in one place.

    Attributes:
        epsilon: budget.
        batch_size: expected number of records of a step.
        steps: how many.
        learning_rate: step size.
        clipping_norm: C.
        momentum: of the steps.
    """

    epsilon: float
    batch_size: int
    steps: int
    learning_rate: float
    clipping_norm: float = 0.1
    momentum: float = 0.9


FROM_SCRATCH = CentralRecipe(epsilon=2.93, batch_size=2048, steps=1172, learning_rate=4.0)
"""40 epochs, C and momentum as in Tramer and Boneh's code, whose network for MNIST is Papernot's; they take batches of
512 with a rate of 0.5. (Epochs are of 60,000 records.)"""

SCATTERING = CentralRecipe(epsilon=3.0, batch_size=4096, steps=590, learning_rate=8.0)
"""All as in Tramer and Boneh's code: 40 epochs."""

SCALES, GROUPS = 2, 27
"""81 channels of 7 x 7 squares, normalised three at a time."""

FEATURES = 81 * 7 * 7

FEDERATIONS = {10: "ten clients, scattering", 100: "100 clients, scattering"}
"""The row of each number of clients."""


def tanh_network() -> nn.Module:
    """Papernot's convolutional network, 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, CLASSES),
    )


def linear_classifier() -> nn.Module:
    """A matrix of zeros, and a bias."""
    model = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


@cache
def images(folder: Path) -> fp.Shard:
    """Brightness from 0 to 1, shape [63000, 1, 28, 28], and the digits."""
    with np.load(folder / DATA) as archive:
        pixels, digits = archive["X"], archive["y"]
    return fp.Shard(torch.as_tensor(pixels).reshape(-1, 1, 28, 28).float() / 255.0, torch.as_tensor(digits).long())


@cache
def features(folder: Path) -> fp.Shard:
    """Scattering features of all digits, shape [63000, 3969]: one gigabyte, computed once for all seeds."""
    drawn = images(folder)
    parts = [
        group_normalised(scattering(some, scales=SCALES), GROUPS).flatten(1) for some in drawn.inputs[:, 0].split(1000)
    ]
    return fp.Shard(torch.cat(parts), drawn.targets)


def accuracy(model: nn.Module, inputs: Tensor, digits: Tensor) -> float:
    """Share of digits that the model reads right."""
    with torch.no_grad():
        right = [
            (model(some).argmax(1) == true) for some, true in zip(inputs.split(500), digits.split(500), strict=True)
        ]
    return torch.cat(right).double().mean().item()


def central(model: nn.Module, recipe: CentralRecipe, data: fp.Shard, *, records: int, seed: int) -> Measured:
    """Train on the first records in one place; accuracy on the next, at most 10,000, which are not trained on."""
    inputs, digits = data.inputs, data.targets
    trained = fp.train(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        (inputs[:records], digits[:records]),
        epsilon=recipe.epsilon,
        delta=DELTA,
        steps=recipe.steps,
        sampling_rate=recipe.batch_size / records,
        batch_size=recipe.batch_size,
        clipping_norm=recipe.clipping_norm,
        learning_rate=recipe.learning_rate,
        momentum=recipe.momentum,
        progress=False,
        seed=seed,
    )
    tested = slice(records, records + HELD_OUT)
    return Measured(accuracy(trained.model, inputs[tested], digits[tested]), trained.epsilon)


class ScatteredMnist(fp.Task):
    """The features, dealt out to clients in turn: everybody has the same kind of digits."""

    name = "scattered-mnist"
    dataset = "mnist"
    recipe = fp.Recipe(
        clients=min(FEDERATIONS),
        rounds=100,
        local_steps=1,
        sampling_rate=0.5,
        clipping_norm=0.3,
        learning_rate=13.0,
        ema_decay=0.9,
        epsilon=SCATTERING.epsilon,
        delta=DELTA,
    )

    def __init__(self, data: fp.Shard) -> None:
        self._data = data

    def model(self) -> nn.Module:
        """The linear classifier."""
        return linear_classifier()

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        """Every n-th training digit."""
        own = slice(source.partition_id, TRAINING, source.num_partitions)
        return fp.Shard(self._data.inputs[own], self._data.targets[own])

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Accuracy on the 3,000 test digits."""
        return {"accuracy": accuracy(model, self._data.inputs[TRAINING:], self._data.targets[TRAINING:])}

    def partition(self, num_partitions: int) -> str:
        """The split's name."""
        return f"{num_partitions} parts, dealt in turn"


@dataclass(frozen=True)
class MnistReproduction:
    """Two central recipes, each measured twice, and two federations."""

    name: str = "mnist"
    title: str = "MNIST"
    source: str = "Papernot et al. 2021, Tempered Sigmoid Activations; Tramer, Boneh 2021, Better Features"
    delta: float = DELTA
    seeds: int = 5
    rows: tuple[Row, ...] = (
        Row("from scratch", "accuracy on 3,000 test digits", goal=0.981, published=0.981, metric="accuracy"),
        Row("from scratch, held out", "on 10,000 digits, 50,000 trained on", published=0.981, metric="accuracy"),
        Row("scattering", "accuracy on 3,000 test digits", goal=0.987, published=0.987, metric="accuracy"),
        Row("scattering, held out", "on 10,000 digits, 50,000 trained on", published=0.987, metric="accuracy"),
        *(Row(row, "on 3,000 test digits; epsilon of each client", metric="accuracy") for row in FEDERATIONS.values()),
    )

    @property
    def data(self) -> Mapping[str, str]:
        """MNIST."""
        return {DATA: WHENCE}

    @property
    def settings(self) -> Mapping[str, object]:
        """Every constant above."""
        return {
            "from scratch": asdict(FROM_SCRATCH),
            "scattering": asdict(SCATTERING) | {"scales": SCALES, "groups": GROUPS},
            "federations": asdict(ScatteredMnist.recipe) | {"clients": list(FEDERATIONS)},
        }

    def measure(self, seed: int, place: Workplace) -> Iterator[tuple[str, Measured]]:
        """The rows in turn, with the held-out twins beside their recipes."""
        drawn = images(place.data)
        parts = {"": TRAINING, ", held out": TRAINING - HELD_OUT}
        for twin, records in parts.items():
            place.tell(f"from scratch{twin}: {FROM_SCRATCH.steps} steps")
            torch.manual_seed(seed)
            network = tanh_network()
            yield f"from scratch{twin}", central(network, FROM_SCRATCH, drawn, records=records, seed=seed)
        place.tell("scattering features, once for all seeds")
        found = features(place.data)
        for twin, records in parts.items():
            place.tell(f"scattering{twin}: {SCATTERING.steps} steps")
            yield f"scattering{twin}", central(linear_classifier(), SCATTERING, found, records=records, seed=seed)
        for clients, row in FEDERATIONS.items():
            place.tell(row)
            out = place.runs / f"{clients}-clients"
            run = fp.simulate(ScatteredMnist(found), clients=clients, seed=seed, out=out, progress=False)
            spent = max(client["epsilon"] for client in run.clients)
            yield row, Measured(run.metrics["accuracy"], spent, run.metrics)


MNIST = MnistReproduction()
