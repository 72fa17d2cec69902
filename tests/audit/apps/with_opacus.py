"""Training code with the real Opacus, which takes a second to import: published, sound, and with a fault each."""

import itertools

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fedprivacy.audit.apps import App, Settings
from fedprivacy.values.events import NeighbouringRelation
from tests.audit.apps.sound import CLASSES, FEATURES, RECORDS


class Private(App):
    """One engine for all rounds."""

    settings = Settings(sampling_rate=0.25, noise_multiplier=1.0, clipping_norm=1.0, steps=4, learning_rate=0.1)
    relation = NeighbouringRelation.ZERO_OUT
    only_numbers = True
    shape = (FEATURES,)
    accountant = "prv"
    mode = "hooks"
    generator = None

    def __init__(self):
        self.engine = PrivacyEngine(accountant=self.accountant)

    def records(self):
        return torch.randn(RECORDS, *self.shape), torch.randint(CLASSES, (RECORDS,))

    def model(self):
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def train(self, model, records, asked):
        private, optimizer, *criterion, loader = self.engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=asked.learning_rate, momentum=0.9),
            criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(records, batch_size=round(asked.expected_batch_size), shuffle=True),
            noise_multiplier=asked.noise_multiplier,
            max_grad_norm=asked.clipping_norm,
            grad_sample_mode=self.mode,
            noise_generator=self.generator and self.generator(),
        )
        loss_of = criterion[0] if criterion else functional.cross_entropy
        for inputs, targets in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), asked.steps):
            optimizer.zero_grad()
            loss_of(private(inputs), targets).backward()
            optimizer.step()
        return self.left(private, records)

    def left(self, private, records):
        return {"parameters": private.state_dict(), "num-examples": len(records)}

    def epsilon(self, rounds):
        return self.engine.get_epsilon(self.delta)


class Published(Private):
    """Flower's example with Opacus: a new engine in each round, and the exact number of records as the weight."""

    relation = NeighbouringRelation.ADD_OR_REMOVE_ONE
    only_numbers = False

    def train(self, model, records, asked):
        self.engine = PrivacyEngine()
        return super().train(model, records, asked)


class CentralLimit(Private):
    """An accountant that estimates: it shows two thirds of what is spent."""

    accountant = "gdp"


class SameForEverybody(Private):
    """A generator that nobody seeds begins with the same number everywhere."""

    generator = torch.Generator


class BehindItsBack(nn.Module):
    """A weight that is used a second time past its layer: its hook sees half of its gradient."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(FEATURES, FEATURES, bias=False), nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(functional.linear(torch.tanh(self.layer(x)), self.layer.weight)))


class SharedGhost(Private):
    """Opacus sums what autograd sees, and measures what its hooks saw."""

    mode = "ghost"

    def model(self):
        return BehindItsBack()
