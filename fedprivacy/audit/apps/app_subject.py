"""An app as a subject: how each claim is tried on other people's training code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from fedprivacy.audit.apps import app_changes, app_leaks, app_noise, app_samples
from fedprivacy.audit.apps.audited_app import AuditedApp
from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.subject import Change, Neighbours, Noise, Said, Samples


class TheirApp(AuditedApp):
    """An app, some of its records, and the model that it is sent."""

    said: ClassVar[Mapping[str, Said]] = {
        "release": Said(
            proves="Nothing leaves the client that depends on a record, but for arrays that carry noise.",
            assumes="The neighbouring shards that were tried stand for all others. How long a training takes is not "
            "judged.",
        ),
        "replay": Said(
            proves="One record changes the sum of a step by at most one clipping norm.",
            assumes="Crafted records and the first model stand for all others; sums are divided by what `divisor` "
            "says.",
        ),
        "noise": Said(
            proves="Every sum carries Gaussian noise of at least the claimed size in every layer, drawn "
            "anew each time.",
            assumes="What is random beside the noise, such as dropout, counts as noise. Noise in floating point can be "
            "told from its last bits by who sees them (Mironov 2012); this is not judged.",
        ),
        "sampling": Said(
            proves="Each record joins each step with the claimed sampling rate, independently.",
            assumes="Whoever is fetched for a step joins it, and nobody else does.",
        ),
    }

    def neighbours(self, alarms: Alarms) -> Iterator[Neighbours]:
        """What leaves of shards that differ in one record."""
        return app_leaks.neighbours(self, alarms)

    def changes(self, alarms: Alarms) -> Iterator[Change]:
        """By how much one record changes what leaves."""
        return app_changes.changes(self)

    def why(self, changes: Sequence[Change]) -> Iterator[str]:
        """What the largest of them looks like."""
        return app_changes.why(self, changes)

    def noise(self, alarms: Alarms) -> Iterator[Noise]:
        """What is added to sums."""
        return app_noise.noise(self, alarms)

    def samples(self, alarms: Alarms) -> Iterator[Samples]:
        """Who joins each step."""
        return app_samples.samples(self)
