"""The release firewall: everything that leaves a client, field by field, compared between neighbouring shards.

With the noise frozen, only noised numbers may differ. Names, order, types, shapes, sizes, settings, counts, metrics,
errors, and whether there is a reply at all, are the same whatever the records are. And where a record contributes
nothing, nothing differs.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.gates.gate import MOST_REASONS, Judged, gate
from fedprivacy.audit.subject import NOISED, Fields, Subject


@gate(
    "release",
    proves="Nothing leaves the client that depends on a record, but for numbers that carry noise.",
    assumes="The neighbouring shards that were tried stand for all others. How long an answer takes is not judged.",
)
def check(subject: Subject) -> Judged:
    """Check whether nothing but noised numbers depends on a record."""
    alarms, told = Alarms(), dict[tuple[str, bool], str]()
    for pair in subject.neighbours(alarms):
        for name in differences(pair.one, pair.other, all_of_it=pair.alike):
            if (name, pair.alike) not in told and (reason := pair.in_words(name)):
                told[name, pair.alike] = reason
        if len(told) + len(set(alarms.reasons)) >= MOST_REASONS:
            break
    reasons = [*told.values(), *alarms.reasons]
    return Judged(float(len(reasons)), reasons)


def differences(one: Fields, other: Fields, *, all_of_it: bool) -> Iterator[str]:
    """The names of fields in which two replies differ, those that are noised only if `all_of_it`."""
    if [name for name, _ in one] != [name for name, _ in other]:
        yield "which fields there are, or their order"
        return
    for (name, mine), (_, theirs) in zip(one, other, strict=True):
        if mine != theirs and (all_of_it or not name.startswith(NOISED)):
            yield name.removeprefix(f"{NOISED} ")
