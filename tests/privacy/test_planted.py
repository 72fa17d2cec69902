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
