"""Our client as a subject: how each claim is tried on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.our_client import blank_releases, compared_replies, joined_steps, replayed_steps
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.subject import Change, Neighbours, Noise, Said, Samples


class OurClient(Audited):
    """A task with the settings of its run, and the client that trains it."""

    said: ClassVar[Mapping[str, Said]] = {}

    def neighbours(self, alarms: Alarms) -> Iterator[Neighbours]:
        """What leaves of shards that differ in one record."""
        return compared_replies.neighbours(self, alarms)

    def changes(self, alarms: Alarms) -> Iterator[Change]:
        """By how much one record changes what leaves."""
        return replayed_steps.changes(self, alarms)

    def why(self, changes: Sequence[Change]) -> Iterator[str]:
        """What is wrong with those that are too large, one by one."""
        return (change.in_words for change in changes if not change.holds)

    def noise(self, alarms: Alarms) -> Iterator[Noise]:
        """What is added to sums."""
        return blank_releases.noise(self, alarms)

    def samples(self, alarms: Alarms) -> Iterator[Samples]:
        """Who joins each step."""
        return joined_steps.samples(self, alarms)
