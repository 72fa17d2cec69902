"""Replay: two shards that differ in one record, the same randomness, and by how much what left differs.

With samples and noise frozen, everything else is the same. So the released sums may differ by the one record's clipped
gradient where it joined, and by nothing, not one bit, where it did not.
"""

from __future__ import annotations

from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.subject import Subject


@gate(
    "replay",
    proves="One record changes what leaves in a step by at most one clipping norm, and by nothing if it did not join.",
    assumes="The pairs of shards and the parameters that were tried stand for all others; the randomness was frozen.",
)
def check(subject: Subject) -> Judged:
    """Check that one record changes a released sum by at most the clipping norm, and by nothing if it did not join."""
    alarms = Alarms()
    changes = [*subject.changes(alarms)]
    largest = max((change.size for change in changes if change.may_be_told), default=0.0)
    why = [] if all(change.holds for change in changes) else subject.why(changes)
    return Judged(largest, [*why, *alarms.reasons])
