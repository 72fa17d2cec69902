"""Seeds beyond the first, shared out: every case gets two of five, and every seed two fifths of the cases."""

import pytest

SEEDS = range(1, 6)


def in_turn(cases):
    """(case, seed): what shows with luck alone fails some case sooner or later, at less than half of the price."""
    turns = [(case, SEEDS[(2 * place + turn) % len(SEEDS)]) for place, case in enumerate(cases) for turn in (0, 1)]
    return [pytest.param(case, seed, id=f"{named(case)}-{seed}") for case, seed in turns]


def at_every_change(cases, *some):
    """All of them, of which `make test` tries some."""
    marked = [(case, [] if case in some else [pytest.mark.exhaustive]) for case in cases]
    return [pytest.param(case, id=named(case), marks=marks) for case, marks in marked]


def named(case):
    """What a case is called: by its app."""
    return getattr(case, "app", case).__name__
