"""Training code as others write it, in plain torch, with nothing wrong in it: bad ones override a line of it."""

import secrets
import time

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import fedprivacy as fp
from fedprivacy.audit.apps import App, Seen, Settings
from fedprivacy.values.events import NeighbouringRelation

RECORDS, FEATURES, CLASSES = 48, 6, 3


class Sound(App):
    """DP-SGD with Poisson samples, on a small network."""

    settings = Settings(sampling_rate=0.25, noise_multiplier=1.0, clipping_norm=1.0, steps=4, learning_rate=0.1)
    rounds = 3
    shape = (FEATURES,)

    def records(self):
        generator = torch.Generator().manual_seed(2**50)
        inputs = torch.randn(RECORDS, *self.shape, generator=generator)
        return inputs, torch.randint(CLASSES, (RECORDS,), generator=generator)

    def model(self):
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def train(self, model, records, asked):
        optimizer = self.optimizer(model, asked)
        self.begin(records, asked)
        for _ in range(asked.steps):
            inputs, targets = records[self.sample(records, asked)]
            self.gradients(model, inputs, targets, asked)
            optimizer.step()
        return self.left(model, records)

    def epsilon(self, rounds):
        return self.cost(self.settings.steps * rounds)

    def cost(self, steps, rate=None):
        rate = self.settings.sampling_rate if rate is None else rate
        sigma = self.settings.noise_multiplier
        return fp.epsilon(
            sampling_rate=rate, noise_multiplier=sigma, steps=steps, delta=self.delta, relation=self.relation
        )

    def begin(self, records, asked):
        pass

    def optimizer(self, model, asked):
        return torch.optim.SGD(model.parameters(), lr=asked.learning_rate)

    def sample(self, records, asked):
        return torch.rand(len(records)) < asked.sampling_rate

    def gradients(self, model, inputs, targets, asked):
        """Leave the noisy mean in the parameters."""
        each = self.each(model, inputs, targets)
        sums = self.clipped_sum(each, asked) if len(inputs) else [torch.zeros_like(p) for p in model.parameters()]
        for parameter, sum in zip(model.parameters(), sums, strict=True):
            parameter.grad = (sum + self.noise(sum, asked)) / self.divisor(asked)

    def each(self, model, inputs, targets):
        """Gradients of each record, [records, *parameter]."""
        if not len(inputs):
            return []
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss(parameters, record, target):
            return functional.cross_entropy(functional_call(model, parameters, (record[None],)), target[None])

        return list(vmap(grad(loss), (None, 0, 0), randomness="different")(parameters, inputs, targets).values())

    def clipped_sum(self, each, asked):
        factors = (asked.clipping_norm / self.norms(each).clamp(min=1e-12)).clamp(max=1.0)
        return [torch.einsum("r,r...->...", factors, g) for g in each]

    def norms(self, each):
        """The norm of each record's gradient, which is made zero if it is no number."""
        bad = torch.stack([~g.flatten(1).isfinite().all(1) for g in each]).any(0)
        for g in each:
            g[bad] = 0.0
        return torch.stack([g.flatten(1).norm(dim=1) for g in each]).norm(dim=0)

    def noise(self, sum, asked):
        return torch.normal(0.0, asked.noise_multiplier * asked.clipping_norm, sum.shape)

    def left(self, model, records):
        return {"parameters": model.state_dict()}


class ByHand(Sound):
    """No optimiser of torch; the change of the model leaves, as a list of arrays."""

    settings = Settings(sampling_rate=0.25, noise_multiplier=2.0, clipping_norm=1.5, steps=4, learning_rate=0.5)
    seen = Seen.IN_WHAT_LEFT

    def train(self, model, records, asked):
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(asked.steps):
            inputs, targets = records[self.sample(records, asked)]
            self.gradients(model, inputs, targets, asked)
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(asked.learning_rate * p.grad)
        return {"update": [(p.detach() - old).numpy() for p, old in zip(model.parameters(), before, strict=True)]}


class SecretRandomness(Sound):
    """Noise and samples that no seed repeats."""

    def sample(self, records, asked):
        return [row for row in range(len(records)) if secrets.SystemRandom().random() < asked.sampling_rate]

    def noise(self, sum, asked):
        deviation = asked.noise_multiplier * asked.clipping_norm
        return torch.from_numpy(np.random.default_rng().normal(0.0, deviation, tuple(sum.shape))).float()


class Dropout(Sound):
    """Training that is random in itself."""

    def model(self):
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, CLASSES))


class PublicCount(Sound):
    """Where a record is replaced and never missing, the number of records is public, and may leave."""

    settings = Settings(sampling_rate=1.0, noise_multiplier=8.0, clipping_norm=1.0, steps=2, learning_rate=0.2)
    relation = NeighbouringRelation.REPLACE_ONE

    def left(self, model, records):
        return {"parameters": list(model.state_dict().values()), "num-examples": len(records)}


class Words(Sound):
    """Records of whole numbers."""

    def records(self):
        generator = torch.Generator().manual_seed(2**50)
        words = torch.randint(20, (RECORDS, 5), generator=generator)
        return words, torch.randint(CLASSES, (RECORDS,), generator=generator)

    def model(self):
        return nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, CLASSES))


class Stamped(SecretRandomness):
    """Times and a harmless seed: a start, a duration, a wait, and layers that always begin alike."""

    def begin(self, records, asked):
        torch.manual_seed(0)
        self.started, end = time.time(), time.monotonic() + 1e-3
        while time.monotonic() < end:
            pass

    def sample(self, records, asked):
        return np.random.default_rng().random(len(records)) < asked.sampling_rate

    def left(self, model, records):
        return {"parameters": model.state_dict(), "started": self.started, "seconds": time.time() - self.started}


GOOD = (Stamped, ByHand, Dropout, PublicCount, Words)
