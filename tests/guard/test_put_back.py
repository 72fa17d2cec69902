"""An older copy of the log, put back beside the updates that were sealed since, allows nothing more."""

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from fedprivacy.accounting import FILTERS
from fedprivacy.guard import KEPT_UPDATES, AlreadyChargedError, BudgetExhaustedError, Guard, LogDamagedError
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.guard.account import BUDGET, EVENT, key

COSTLY = PoissonSampledGaussian(1.0, 5.0, NeighbouringRelation.ZERO_OUT)
SMALL = PrivacyBudget(2.0, 1e-5)
QUOTA = FILTERS["fixed-mechanism"](SMALL).quota({}, COSTLY)


def copy_of(file):
    """A copy, beside the log, of what it holds now."""
    return Path(shutil.copy(file, file.with_name(f"copy-{file.stat().st_size}")))


def put_back(copy, file):
    """As a backup program does: another file under the old name."""
    shutil.copy(copy, file.with_name("new"))
    file.with_name("new").replace(file)


def release(guard, key, event=EVENT):
    guard.charge(key, event, 1)
    guard.seal(key, repr(key).encode())


def test_restored_generations_release_no_more_than_the_budget(file):
    """Three times an empty log is put back, and each time a server asks for all that it can get."""
    Guard(file, SMALL)
    empty, released = copy_of(file), 0
    for generation in range(3):
        put_back(empty, file)
        with suppress(BudgetExhaustedError, LogDamagedError):
            guard = Guard(file, SMALL)
            while True:
                release(guard, key(released, run_id=f"run {generation}"), COSTLY)
                released += 1
    assert 2 <= released == QUOTA
    with pytest.raises(LogDamagedError, match="An older copy, or another log, was put back"):
        Guard(file, SMALL)


def test_whatever_is_done_with_an_older_copy_finds_it(file, guard):
    """One is opened before the copy is put back, and one after; neither charges, seals, sends or tells anything."""
    release(guard, key(1))
    copy = copy_of(file)
    release(guard, key(2))
    put_back(copy, file)
    acts = [
        lambda: Guard(file, BUDGET),
        lambda: guard.charge(key(3), EVENT, 1),
        lambda: guard.seal(key(1), repr(key(1)).encode()),
        lambda: guard.sealed_update(key(1)),
        guard.history,
        guard.by_run,
    ]
    for act in acts:
        with pytest.raises(LogDamagedError, match=r"guard\.log is damaged at byte \d+"):
            act()
    assert file.read_bytes() == copy.read_bytes()


def test_a_charge_that_was_overtaken_by_slower_ones_still_bears_witness(file, guard):
    """Several clients share a file: what was charged before the copy is sealed after what was charged since."""
    slow = [key(round) for round in range(1, 2 + KEPT_UPDATES)]
    for each in slow:
        guard.charge(each, EVENT, 1)
    copy = copy_of(file)
    release(guard, key(100))
    for each in slow:
        guard.seal(each, b"late")
    put_back(copy, file)
    with pytest.raises(LogDamagedError, match="never charged"):
        Guard(file, BUDGET)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
def test_no_order_of_charges_seals_copies_and_restorations_forgets_what_has_left(file, guard, seed, monkeypatch):
    """Whatever copy lies there: it is refused, or it counts at least every update that was ever sealed.

    Where it is refused, the newest one helps.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody dies here
    draw, copies, released = random.Random(seed), [copy_of(file)], set()
    newest = file.with_name("newest")
    for _ in range(60):
        name = key(draw.randint(1, 12), attempt=draw.randint(0, 1))
        try:
            reader = Guard(file, BUDGET)
            assert sum(reader.history().values()) >= len(released)
            act = draw.choice(["charge", "charge", "seal", "seal", "copy", "put back"])
            if act == "charge":
                reader.charge(name, EVENT, 1)
            elif act == "seal" and reader.charges():
                name = draw.choice(reader.charges()).attempt
                reader.seal(name, repr(name).encode())
                released.add(name)
            elif act == "copy":
                copies.append(Path(shutil.copy(file, file.with_name(f"copy {len(copies)}"))))
            shutil.copy(file, newest)
            if act == "put back":
                put_back(draw.choice(copies), file)
        except LogDamagedError:
            put_back(newest, file)
            assert sum(Guard(file, BUDGET).history().values()) >= len(released)
        except AlreadyChargedError:
            pass
    assert released
