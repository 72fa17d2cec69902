"""Training code in which nothing is wrong raises no alarm, whatever its optimiser, model, clipping or sampling."""

import pytest

from fedprivacy.audit.apps import audit_app
from tests.audit.apps.sound import GOOD
from tests.audit.apps.turns import in_turn


@pytest.mark.parametrize(("app", "seed"), in_turn(GOOD))
def test_sound_code_raises_no_alarm(app, seed):
    found = audit_app(app, app.__name__, seed=seed)
    assert [f"{gate.name}: {reason}" for gate in found.failed for reason in gate.reasons] == []
