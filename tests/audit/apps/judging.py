"""The gate that looks for a fault, and the words in which it says what is wrong."""

import re

from fedprivacy.audit.apps.app_audit import GATES, TheirApp


def judged(app, gate, seed=0):
    audited = TheirApp(app, app.__name__, seed=seed)
    audited.check()
    return GATES[gate](audited)


def check_named(bad, seed):
    gate = judged(bad.app, bad.gate, seed)
    assert not gate.passed
    assert re.search(bad.words, " ".join(gate.reasons)), gate.reasons
