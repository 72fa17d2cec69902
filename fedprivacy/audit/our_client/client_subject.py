"""Our client as a subject: how each claim is tried on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.our_client import blank_releases, joined_steps
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.subject import Noise, Said, Samples


class OurClient(Audited):
    """A task with the settings of its run, and the client that trains it."""

    said: ClassVar[Mapping[str, Said]] = {}

    def noise(self, alarms: Alarms) -> Iterator[Noise]:
        """What is added to sums."""
        return blank_releases.noise(self, alarms)

    def samples(self, alarms: Alarms) -> Iterator[Samples]:
        """Who joins each step."""
        return joined_steps.samples(self, alarms)
