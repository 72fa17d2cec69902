"""Every case once before a change lands, some of them at once, and more seeds for whoever soaks."""

import re

import pytest

from fedprivacy.audit.apps.app_audit import GATES, TheirApp

SEEDS = range(1, 6)
"""Seeds to soak with. Each case gets two of them, and each seed two fifths of the cases."""


def in_turn(cases, *quick):
    """(case, seed): with seed 0, which `make test` tries of the quick apps alone, and with two more to soak."""
    turns = []
    for place, case in enumerate(cases):
        app = getattr(case, "app", case)
        name = getattr(app, "__name__", app)
        soaked = (SEEDS[(2 * place + more) % len(SEEDS)] for more in (0, 1))
        marked = {0: [] if app in quick else [pytest.mark.exhaustive]} | {seed: [pytest.mark.soak] for seed in soaked}
        turns += [pytest.param(case, seed, id=f"{name}-{seed}", marks=marks) for seed, marks in marked.items()]
    return turns


def check_named(bad, seed):
    """The gate that looks for a fault fails, and says in words what is wrong."""
    audited = TheirApp(bad.app, bad.app.__name__, seed=seed)
    audited.check()
    gate = GATES[bad.gate](audited)
    assert not gate.passed
    assert re.search(bad.words, " ".join(gate.reasons)), gate.reasons
