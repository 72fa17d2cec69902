"""The user-level account of a run: on the disk before a release, and whole after a crash."""

import pytest

from fedprivacy.accounting.views import UserLevelAccount
from fedprivacy.runs.plans.noise import UserLevelNoise
from fedprivacy.runs.records.folder import RunFolderError
from fedprivacy.runs.user_level_book import BOOK, UserLevelBook
from fedprivacy.training.user_level import ClippedClientSum
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

FIRST, SECOND = Attempt("run", 1), Attempt("run", 2)


def book(folder, *, repeatable=False, epsilon=float("inf"), run_id="run"):
    mechanism = ClippedClientSum(PoissonSampledGaussian(0.1, 1.0), clients=100)
    return UserLevelBook(
        folder, run_id, UserLevelNoise(mechanism, 1.0, PrivacyBudget(epsilon, 1e-5)), repeatable=repeatable
    )


def cost(rounds):
    account = UserLevelAccount()
    account.record(0.1, 1.0, rounds)
    return account.epsilon(1e-5).value


def rounds(told):
    return told.spent(1.0).rounds


@pytest.mark.parametrize("repeatable", [False, True], ids=["secret noise", "seeded"])
def test_a_release_that_is_made_again_after_a_crash_is_charged_again_unless_it_has_the_same_bits(repeatable, tmp_path):
    book(tmp_path).charge(FIRST)
    again = book(tmp_path, repeatable=repeatable)
    assert rounds(again) == 1
    again.charge(FIRST)
    assert rounds(again) == rounds(book(tmp_path)) == (1 if repeatable else 2)
    assert again.spent(1.0).epsilon == cost(rounds(again))


def test_the_budget_holds_over_the_lives_of_a_run(tmp_path):
    for attempt in (FIRST, SECOND):
        told = book(tmp_path, epsilon=cost(2) + 1e-9)
        assert told.allows(attempt)
        told.charge(attempt)
    third = Attempt("run", 3)
    for full in (told, book(tmp_path, epsilon=cost(2) + 1e-9)):
        assert not full.allows(third)
        with pytest.raises(ValueError, match="does not fit the user-level budget"):
            full.charge(third)
    assert (tmp_path / BOOK).read_text().count("\n") == 2


def test_half_a_line_was_followed_by_no_release_and_one_process_releases_an_attempt_once(tmp_path):
    book(tmp_path).charge(FIRST)
    with (tmp_path / BOOK).open("a") as file:
        file.write('{"run_id": "run", "rou')
    told = book(tmp_path)
    assert rounds(told) == 1
    told.charge(SECOND)
    assert rounds(book(tmp_path)) == 2
    with pytest.raises(ValueError, match="round 2 was released already"):
        told.charge(SECOND)
    told.charge(SECOND.again)
    assert rounds(told) == 3


def test_another_run_has_an_account_of_its_own_and_what_cannot_be_written_may_not_be_released(tmp_path):
    book(tmp_path).charge(FIRST)
    other = book(tmp_path, run_id="other")
    other.charge(Attempt("other", 1))
    assert rounds(other) == rounds(book(tmp_path)) == 1
    (tmp_path / BOOK).unlink()
    (tmp_path / BOOK).mkdir()
    with pytest.raises(RunFolderError, match="cannot be written"):
        other.charge(Attempt("other", 2))
    assert rounds(other) == 1
