"""An app as a subject: how each claim is tried on other people's training code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fedprivacy.audit.apps import app_changes, app_leaks, app_noise, app_samples
from fedprivacy.audit.apps.audited_app import AuditedApp
from fedprivacy.audit.subject import Said


class TheirApp(AuditedApp):
    """An app, some of its records, and the model that it is sent: a `Subject`."""

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

    neighbours = app_leaks.neighbours
    changes = app_changes.changes
    why = app_changes.why
    noise = app_noise.noise
    samples = app_samples.samples
