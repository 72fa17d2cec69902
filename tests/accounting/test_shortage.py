"""Why a filter allows no step: its name, its bound, the noise, and a remedy that is true."""

import re
from dataclasses import replace

import pytest

from fedprivacy.accounting.filters import FILTERS
from fedprivacy.accounting.spend import shortage
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

BUDGET, STEPS = PrivacyBudget(5.0, 1e-5), 40
EVENT = PoissonSampledGaussian(0.1, 1.0, NeighbouringRelation.ZERO_OUT)
LESS = replace(EVENT, noise_multiplier=0.8)

CASES = {  # a filter, the share of its quota that was executed, the next step; the bound, and the remedy
    "all of it": ("fixed-then-adaptive", 1.0, EVENT, "further ones would exceed the budget", "No noise helps"),
    "another noise": (
        "fixed-then-adaptive",
        0.7,
        LESS,
        "2% of delta and an RDP bound",
        "noise multiplier, 1, allows",
    ),
    "one mechanism": (
        "fixed-mechanism",
        0.7,
        LESS,
        "for one mechanism alone",
        "noise multiplier, 1, allows",
    ),
    "an RDP bound": ("adaptive", 1.0, EVENT, "lies above the epsilon that is read", "A noise-multiplier of"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reason_names_filter_and_noise_and_what_helps_does_help(case):
    name, share, event, bound, remedy = CASES[case]
    kept = FILTERS[name](BUDGET)
    past = {EVENT: int(share * kept.quota({}, EVENT))}
    words = shortage(kept, past, event, STEPS)
    assert words.startswith(f"With noise multiplier {event.noise_multiplier:g} the {name} filter allows no step more: ")
    assert bound in words and remedy in words
    if found := re.search(r"A noise-multiplier of ([\d.]+) allows 40 steps", words):
        enough = float(found[1])
        assert kept.quota(past, replace(event, noise_multiplier=enough)) >= STEPS
        assert kept.quota(past, replace(event, noise_multiplier=enough - 0.02)) < STEPS
    elif found := re.search(r"allows (\d+) more steps\.$", words):
        assert kept.quota(past, EVENT) == int(found[1]) > 0
