"""Every gate notices a bug that it is for. `make mutants` asks about all; `benchmarks.audit_power` twenty times."""

import pytest

from tests.privacy.audited_tasks import engines_believed, judged
from tests.privacy.bugs.swapped import planted

NOTICED = {
    "release": "clients evaluate on their own records",
    "replay": "micro-batches of four are clipped, not records",
    "noise": "a tenth too little noise is added",
    "sampling": "batches have a fixed size",
    "invariance": "batches have any size: rounding depends on who else is there, and a server amplifies it",
    "evaluation": "scores are not clipped",
    "ledger": "an evaluation is not on the receipt",
}


@pytest.mark.parametrize(
    "gate",
    [pytest.param(gate, marks=pytest.mark.soak if gate in ("replay", "evaluation") else ()) for gate in NOTICED],
)
def test_a_bug_is_noticed(gate):
    with planted(NOTICED[gate]) as bug, engines_believed():
        (found,) = judged([gate], 0, bug.task, bug.settings)
    assert bug.gates[0] == gate and not found.passed
    assert all(reason.endswith(".") for reason in found.reasons)


ALONE = {
    "a score may move its sum by a twentieth more than is accounted": "changed a local evaluation by more than its",
    "an evaluation tells in its last digits how many records there are": "that did not join changed a local evaluation",
    "a record's part of a sum is a twentieth of C less in company": "Who else is in a batch changed what a record adds",
    "an evaluation is not on the receipt": "A client's receipt says something else than it was granted",
}
"""Faults that one alarm of their gate sees, and no other."""


@pytest.mark.parametrize(
    "meaning",
    [
        pytest.param(m, marks=() if m == "an evaluation is not on the receipt" else pytest.mark.exhaustive)
        for m in ALONE
    ],
)
def test_a_fault_is_named_by_the_alarm_that_is_for_it(meaning):
    with planted(meaning) as bug, engines_believed():
        (found,) = judged(bug.gates[:1], 0, bug.task, bug.settings)
    assert not found.passed
    assert [reason for reason in found.reasons if ALONE[meaning] not in reason] == []
