"""Our client as a subject of audits: what it is asked, with records that the auditor chose, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedprivacy.audit.our_client import draws, replies
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.subject import Change


class OurClient(Audited):
    """A task with the settings of its run, and the client that trains it: a `Subject`."""

    neighbours = replies.neighbours
    changes = replies.changes
    noise = draws.noise
    samples = draws.samples

    def why(self, changes: Sequence[Change]) -> Iterator[str]:
        """Explain each change that is too large, one by one."""
        return (change.in_words for change in changes if not change.holds)
