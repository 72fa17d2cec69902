"""A tally adds up what the entries of a log say."""

import errno
import os

import pytest

from fedprivacy.guard import Guard, LogWriteError
from fedprivacy.guard.tally import TallyFile
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.05, 1.2)
FIRST, LAST = PrivacyBudget(3.0, 1e-5), PrivacyBudget(5.0, 1e-6)


def test_the_allowance_that_is_shown_is_that_of_the_last_charge(tmp_path):
    file = tmp_path / "guard.log"
    for round, budget in enumerate((FIRST, FIRST, LAST), start=1):
        Guard(file, budget).charge(Attempt("run", round, 1), EVENT, 1)
    kept = TallyFile(file)
    assert kept.tally.allowance is None
    with kept.transaction():
        assert kept.tally.allowance.budget == LAST


def test_a_tally_that_the_disk_does_not_give_back_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    file = tmp_path / "guard.log"
    Guard(file, FIRST).charge(Attempt("run", 1, 1), EVENT, 1)

    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "pread", refuse)
        with pytest.raises(LogWriteError, match="Nothing more was recorded or charged") as raised:
            Guard(file, FIRST).charge(Attempt("run", 2, 1), EVENT, 1)
    assert raised.value.undone
    assert Guard(file, FIRST).history() == {EVENT: 1}
