"""An app as a subject: how each claim is tried on other people's training code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from fedprivacy.audit.apps import app_samples
from fedprivacy.audit.apps.audited_app import AuditedApp
from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.subject import Said, Samples


class TheirApp(AuditedApp):
    """An app, some of its records, and the model that it is sent."""

    said: ClassVar[Mapping[str, Said]] = {
        "sampling": Said(
            proves="Each record joins each step with the claimed sampling rate, independently.",
            assumes="Whoever is fetched for a step joins it, and nobody else does.",
        ),
    }

    def samples(self, alarms: Alarms) -> Iterator[Samples]:
        """Who joins each step."""
        return app_samples.samples(self)
