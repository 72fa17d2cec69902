"""Training code in which nothing is wrong raises no alarm, whatever its optimiser, model, clipping or sampling."""

import random

import numpy as np
import pytest
import torch

from fedprivacy.audit.apps import audit_app
from tests.audit.apps.sound import GOOD, Words
from tests.audit.apps.turns import in_turn


@pytest.mark.parametrize(("app", "seed"), in_turn(GOOD))
def test_sound_code_raises_no_alarm(app, seed):
    found = audit_app(app, app.__name__, seed=seed)
    assert [f"{gate.name}: {reason}" for gate in found.failed for reason in gate.reasons] == []


@pytest.mark.exhaustive
def test_the_same_seed_finds_the_same_and_leaves_the_process_s_randomness_as_it_was():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    one, other = (audit_app(Words, "words", seed=3) for _ in range(2))
    assert one == other and one.passed
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1]) and random.getstate() == before[2]
