"""Training code with one thing wrong in it each, as it is found in the field; imitations, in a line or a few."""

import hashlib
import platform
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import perf_counter_ns

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fedprivacy.values.events import NeighbouringRelation
from tests.audit.apps.sound import CLASSES, FEATURES, RECORDS, ByHand, Sound


class StepsOfOneEpoch(Sound):
    """Steps are counted as rounds."""

    def epsilon(self, rounds):
        return self.cost(rounds)


class Shuffled(Sound):
    """Shuffled batches, accounted as Poisson samples."""

    def train(self, model, records, asked):
        optimizer = self.optimizer(model, asked)
        size = max(round(asked.sampling_rate * RECORDS), 1)
        loader, steps = DataLoader(records, batch_size=size, shuffle=len(records) > 0), 0
        while steps < asked.steps:
            for inputs, targets in loader if len(records) else [(torch.zeros(0, FEATURES), torch.zeros(0).long())]:
                if steps < asked.steps:
                    self.gradients(model, inputs, targets, asked)
                    optimizer.step()
                    steps += 1
        return self.left(model, records)


class PerBatchClipping(Sound):
    """The gradient of the batch is clipped, and gets the noise of a mean."""

    def gradients(self, model, inputs, targets, asked):
        each = self.each(model, inputs, targets)
        means = [torch.nan_to_num(g).mean(0) for g in each] or [torch.zeros_like(p) for p in model.parameters()]
        norm = torch.stack([mean.norm() for mean in means]).norm()
        for parameter, mean in zip(model.parameters(), means, strict=True):
            clipped = mean * min(1.0, asked.clipping_norm / max(float(norm), 1e-12))
            parameter.grad = clipped + self.noise(mean, asked) / self.divisor(asked)


class PerBatchClippingOfAPublicCount(PerBatchClipping):
    """The same, where the number of records is public."""

    relation = NeighbouringRelation.ZERO_OUT


class OtherDivisor(Sound):
    """Sums are divided by half of what the adapter says: no fault but of the adapter."""

    def gradients(self, model, inputs, targets, asked):
        super().gradients(model, inputs, targets, asked)
        for parameter in model.parameters():
            parameter.grad *= 2


class NoNoise(Sound):
    """The optimiser that adds it is made, and another one takes the steps."""

    def noise(self, sum, asked):
        return torch.zeros_like(sum)


class NoClippingByHand(ByHand):
    """No clipping, where no optimiser of torch is seen."""

    def clipped_sum(self, each, asked):
        self.norms(each)
        return [g.sum(0) for g in each]


class SameNoiseEveryStep(Sound):
    """The noise of all steps is drawn from one state of the generator."""

    def begin(self, records, asked):
        self.drawn = secrets.randbits(63)

    def noise(self, sum, asked):
        generator = torch.Generator().manual_seed(self.drawn + sum.numel())
        return torch.normal(0.0, asked.noise_multiplier * asked.clipping_norm, sum.shape, generator=generator)


class NoiseFrom32Bits(Sound):
    """A generator that is seeded anew, by 32 bits of the operating system."""

    def begin(self, records, asked):
        self.generator = np.random.default_rng(secrets.randbits(32))

    def noise(self, sum, asked):
        deviation = asked.noise_multiplier * asked.clipping_norm
        return torch.from_numpy(self.generator.normal(0.0, deviation, tuple(sum.shape))).float()


class InTurn(Sound):
    """A round that counts its steps, of which the later ones are faulty; steps look at the loss of their batch."""

    settings = replace(Sound.settings, steps=6)

    def begin(self, records, asked):
        self.step, self.losses = 0, []

    def each(self, model, inputs, targets):
        loss = functional.cross_entropy(model(inputs), targets) if len(inputs) else torch.zeros(())
        self.losses.append(float(torch.nan_to_num(loss.detach(), posinf=50.0).clamp(max=50.0)))
        self.step += 1
        return super().each(model, inputs, targets)


class LateWithoutClipping(InTurn):
    """From the third step on, gradients are not clipped."""

    def clipped_sum(self, each, asked):
        return super().clipped_sum(each, asked if self.step <= 2 else replace(asked, clipping_norm=1e6))


class Plateau(InTurn):
    """From the third step on, the learning rate halves where the client's own training loss rose."""

    def optimizer(self, model, asked):
        app, sgd = self, super().optimizer(model, asked)

        class Halving:
            def step(self):
                if app.step > 2 and app.losses[-1] > app.losses[-2]:
                    sgd.param_groups[0]["lr"] *= 0.5
                sgd.step()

        return Halving()


class StopsEarly(InTurn):
    """Training ends where the client's own training loss rose."""

    def train(self, model, records, asked):
        optimizer = self.optimizer(model, asked)
        self.begin(records, asked)
        for _ in range(asked.steps):
            inputs, targets = records[self.sample(records, asked)]
            self.gradients(model, inputs, targets, asked)
            optimizer.step()
            if self.step > 2 and self.losses[-1] > self.losses[-2]:
                break
        return self.left(model, records)


class NoiseFromToday(NoiseFrom32Bits):
    """A generator that is seeded by a date that was imported by name, through a hash."""

    def begin(self, records, asked):
        digest = hashlib.sha256(str(datetime.now(tz=UTC)).encode()).digest()
        self.generator = np.random.default_rng(list(digest))


class SampleFromTheClock(Sound):
    """A clock that was imported by name decides who joins."""

    def begin(self, records, asked):
        self.generator = np.random.default_rng(perf_counter_ns())

    def sample(self, records, asked):
        return self.generator.random(len(records)) < asked.sampling_rate


class NoiseFromThisHost(NoiseFrom32Bits):
    """A generator that is seeded by a digest of what this host is called."""

    def begin(self, records, asked):
        self.generator = np.random.default_rng(list(hashlib.sha256(platform.node().encode()).digest()))


class MaskFrom32Bits(Sound):
    """A secure sum, whose pairwise mask is drawn from an agreed secret that is folded to 32 bits."""

    def left(self, model, records):
        secret = secrets.token_bytes(32)
        folded = int(np.bitwise_xor.reduce(np.frombuffer(secret, dtype=np.uint32)))
        whole = [np.round(p.detach().numpy() * 2**16).astype(np.int64) for p in model.parameters()]
        mask = np.random.RandomState(folded)
        return {"masked": [(p + mask.randint(0, 2**32, p.shape, dtype=np.int64)) % 2**32 for p in whole]}


class TrainingLoss(Sound):
    """The loss on the client's own records, after training."""

    def left(self, model, records):
        inputs, targets = records[:]
        loss = functional.cross_entropy(model(inputs), targets) if len(inputs) else torch.zeros(())
        return {"parameters": model.state_dict(), "metrics": {"train_loss": float(loss.detach())}}


class BatchStatistics(Sound):
    """Running statistics of batch normalisation leave with the parameters."""

    def model(self):
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))

    def each(self, model, inputs, targets):
        if len(inputs) > 1:
            model(inputs)
        found = super().each(model.eval(), inputs, targets)
        model.train()
        return found


class Predictions(Sound):
    """Predictions of the private model for the client's own records leave, as for distillation."""

    def left(self, model, records):
        inputs, _ = records[-8:]
        return {"parameters": model.state_dict(), "predictions": model(inputs)}


class PlainMomentum(Sound):
    """Momentum is gathered before the noise is added."""

    def begin(self, records, asked):
        self.before = None

    def clipped_sum(self, each, asked):
        sums = super().clipped_sum(each, asked)
        if self.before is not None:
            sums = [s + 0.9 * before for s, before in zip(sums, self.before, strict=True)]
        self.before = sums
        return sums


class ClosedFile(Sound):
    """A client that tells which record it could not use."""

    def each(self, model, inputs, targets):
        if not inputs.isfinite().all():
            raise ValueError(f"cannot use {inputs[~inputs.isfinite()][0]}")
        return super().each(model, inputs, targets)


@dataclass(frozen=True)
class Bad:
    """An app with a fault, the gate that finds it, and the words in which it says so."""

    app: type
    gate: str
    words: str


BAD = (
    Bad(StepsOfOneEpoch, "accounting", "it is the cost of 1 step "),
    Bad(Shuffled, "sampling", r"shuffled, every record once an epoch.*an epsilon of 4\.38 is guaranteed"),
    Bad(PerBatchClipping, "replay", "Gradients are clipped together and not record by record"),
    Bad(PerBatchClippingOfAPublicCount, "replay", "as where gradients are clipped together and not record by record"),
    Bad(OtherDivisor, "replay", "divided by something else than the expected batch size, and `divisor` does"),
    Bad(NoNoise, "noise", "Sums leave without noise, or next to none"),
    Bad(NoClippingByHand, "replay", "Nothing clips a record's gradient"),
    Bad(SameNoiseEveryStep, "noise", "Two steps of a round add the same noise"),
    Bad(NoiseFrom32Bits, "randomness", "comes from a seed of at most 48 bits"),
    Bad(MaskFrom32Bits, "randomness", "a mask in what leaves comes from a seed of at most 48 bits"),
    Bad(LateWithoutClipping, "replay", "or later steps clip less than the first: .* in step [3-6] after others"),
    Bad(Plateau, "release", "with every noisy sum held as it was, it is another with"),
    Bad(StopsEarly, "release", "How many steps are taken is other"),
    Bad(NoiseFromToday, "randomness", "Noise or a mask in what leaves comes from the time of a clock"),
    Bad(SampleFromTheClock, "randomness", "Who joins a step comes from the time of a clock"),
    Bad(NoiseFromThisHost, "noise", "Two trainings add the same noise"),
    Bad(TrainingLoss, "release", "A training loss or metric left without noise: 'metrics.train_loss'"),
    Bad(BatchStatistics, "release", "with something without noise.*as with what batch normalisation remembers"),
    Bad(Predictions, "release", "The array 'predictions' left with something without noise"),
    Bad(PlainMomentum, "replay", "Something is carried from step to step without noise"),
    Bad(ClosedFile, "release", "with a record that is not a number in the place of another: training fails there"),
)
