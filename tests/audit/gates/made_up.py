"""Subjects of an audit that are made up: gates judge what these say was seen, so a fault has any size that we like."""

from dataclasses import dataclass, field

import numpy as np

from fedprivacy.audit.subject import Pairs, Samples


@dataclass(frozen=True)
class Seen:
    """A subject that showed this, and nothing else."""

    replies: list = field(default_factory=list)
    moved: list = field(default_factory=list)
    added: list = field(default_factory=list)
    joined: list = field(default_factory=list)

    def neighbours(self, alarms):
        return iter(self.replies)

    def changes(self, alarms):
        return iter(self.moved)

    def why(self, changes):
        return (change.in_words for change in changes if not change.holds)

    def noise(self, alarms):
        return iter(self.added)

    def samples(self, alarms):
        return iter(self.joined)


def drawn(seed, *shape):
    """Independent standard Gaussian numbers."""
    return np.random.default_rng(seed).standard_normal(shape)


def poisson(seed, rate, steps=60, records=100):
    """Independent samples, [steps, records]."""
    return (np.random.default_rng(seed).random((steps, records)) < rate).astype(int)


def sampled(*rounds, rate=0.25, **more):
    """Samples of rounds at a claimed rate; two by two they are compared."""
    pairs = [Pairs("Two rounds", list(zip(rounds[::2], rounds[1::2], strict=False)))]
    return Seen(joined=[Samples(rate=rate, rounds=rounds, pairs=pairs, **more)])
