"""Nobody changes an answer unseen, in the table or in the journal."""

import re

import pytest

from fedprivacy.ledger import LedgerError
from fedprivacy.ledger.replay import BrokenJournalError
from fedprivacy.ledger.verify import verify_ledger
from tests.ledger.acts import (
    ASKED,
    MEAN,
    answers_of,
    copied,
    fill_and_ask,
    found_when,
    journal_of,
    rewrite,
    tamper,
    undamaged_by,
)

undamaged = undamaged_by(fill_and_ask)

SPRING = "run_id = 'questions-spring' AND number = 0"
MINE = f"{SPRING} AND dataset_id = 'a'"
MINE_IS = r"the answer of a, questions-spring, 1, 1, 0 is not what the journal says; .*put back a copy"
ONE_MORE = (
    "INSERT INTO answers SELECT '{run}', round, {attempt}, number, '{dataset}', entry, noise_multiplier, totals "
    "FROM answers WHERE run_id = 'questions-autumn' AND number = 0"
)
DAMAGE = {
    "totals": (
        f"UPDATE answers SET totals = (SELECT totals FROM answers WHERE number = 1 LIMIT 1) WHERE {MINE}",
        MINE_IS,
    ),
    "an answer": (f"DELETE FROM answers WHERE {MINE}", "the answer of a, questions-spring, 1, 1, 0 is missing"),
    "one answer more": (
        ONE_MORE.format(run="questions-autumn", attempt=1, dataset="b"),
        "the answer of b, questions-autumn, 1, 1, 0 is not what the journal says",
    ),
    "one to a charge that was never made": (
        ONE_MORE.format(run="questions-never", attempt=1, dataset="a"),
        "the answer of a, questions-never, 1, 1, 0 is not what the journal says",
    ),
    "a question": (
        "UPDATE questions SET question = '{}' WHERE run_id = 'questions-spring' AND number = 1",
        "the question of questions-spring, 1, 1, 1 is not what the journal says; .*export",
    ),
    "no question": ("DELETE FROM questions WHERE number = 1", "the question of questions-spring, 1, 1, 1 is missing"),
    "one question more": (
        "INSERT INTO questions SELECT run_id, round, attempt, 9, entry, at, question FROM questions WHERE number = 1",
        "the question of questions-(spring|autumn), 1, 1, 9 is not",
    ),
    "answers that were swapped between datasets": (
        (
            f"UPDATE answers SET dataset_id = 'x' WHERE {MINE}",
            f"UPDATE answers SET dataset_id = 'a' WHERE {SPRING} AND dataset_id = 'b'",
            "UPDATE answers SET dataset_id = 'b' WHERE dataset_id = 'x'",
        ),
        "the answer of [ab], questions-spring, 1, 1, 0 is not what the journal says",
    ),
}


@pytest.mark.parametrize(("damage", "match"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_named(undamaged, damage, match):
    found_when(undamaged, *([damage] if isinstance(damage, str) else damage), match=match)


@pytest.mark.parametrize("other", ["totals = 'a text'", "totals = x''", "noise_multiplier = 99"])
def test_an_answer_that_was_changed_behind_the_ledger_s_back_is_neither_proved_nor_read_nor_kept_again(tmp_path, other):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = copied(fill_and_ask, url)
    tamper(url, f"UPDATE answers SET {other} WHERE {MINE}")
    with pytest.raises(BrokenJournalError, match=MINE_IS):
        verify_ledger(ledger)
    with pytest.raises(LedgerError, match="is not what entry 15 of the journal says"):
        ledger.answers(MEAN, ["a"])
    with pytest.raises(LedgerError, match=r"has answered question 0 of .* otherwise"):
        ledger.keep_answers(ASKED, answers_of("a"))


def test_a_journal_that_was_rewritten_for_another_answer_contradicts_the_table(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = copied(fill_and_ask, url)
    before = re.search(r'"a":\[\[0,"([0-9a-f]{64})"', journal_of(ledger)[14][1])[1]
    rewrite(url, 15, before, "00" * 32)
    with pytest.raises(BrokenJournalError, match=MINE_IS):
        verify_ledger(ledger)
