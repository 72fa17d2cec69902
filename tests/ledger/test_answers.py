"""An answer that was paid for is kept whole, once, and read back by whoever asks the same on the ledger."""

import json
import math

import pytest

from fedprivacy.ledger import Answer, ChargeState, Ledger, LedgerError, StoredAnswer
from fedprivacy.ledger.journal import canonical
from fedprivacy.ledger.replay import BrokenJournalError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.events import PoissonSampledGaussian
from tests.ledger.acts import (
    ALLOWANCE,
    ASKED,
    COUNT,
    LATER,
    MEAN,
    QUESTION,
    answers_of,
    copied,
    fill_and_ask,
    found_when,
    journal_of,
    tamper,
    undamaged_by,
    unlimited,
)
from tests.processes import in_child

NOISE = QUESTION.noise_multiplier * math.sqrt(2.0)
COMMITTED, VOID = ChargeState.COMMITTED, ChargeState.VOID


def charged(url):
    """Three datasets; a and b were charged for questions, and their receipts came."""
    opened = Ledger(url)
    opened.open_budgets(dict.fromkeys("abc", ALLOWANCE))
    opened.reserve(ASKED, QUESTION, {"a": 1, "b": 1}, unlimited)
    opened.settle(ASKED, ["a", "b"], COMMITTED)
    return opened


@pytest.fixture
def ledger(url):
    opened = charged(url)
    yield opened
    opened.close()


def kept(ledger):
    """Answers kept of every dataset, without times: totals by question, in their order."""
    return {
        (dataset, question): [(each.attempt, each.totals) for each in found]
        for question in (MEAN, COUNT)
        for dataset, found in ledger.answers(question, "abc").items()
    }


def of(attempt, *datasets, **options):
    return {(a.dataset_id, a.question): [(attempt, a.totals)] for a in answers_of(*datasets, **options)}


def test_an_answer_is_read_back_to_the_last_digit_by_another_process(url, ledger):
    assert in_child(lambda: Ledger(url).keep_answers(ASKED, answers_of("a", "b"))) == 0
    (stored,) = ledger.answers(MEAN, ["a", "c"])["a"]
    given = answers_of("a")[0]
    assert stored == StoredAnswer("a", ASKED, 0, MEAN, NOISE, given.totals, stored.at)
    assert stored.totals[1:] == (-(2**60), 2**60)
    assert stored.at == json.loads(journal_of(ledger)[-1][1])["at"]
    assert kept(ledger) == of(ASKED, "a", "b")
    assert ledger.answers(canonical({"kind": "sum"}), ["a"]) == {}


def test_the_same_answer_is_kept_once_however_often_and_by_whatever_parts(ledger):
    ledger.keep_answers(ASKED, answers_of("a"))
    ledger.keep_answers(ASKED, answers_of("b")[:1])
    entries = len(journal_of(ledger))
    ledger.keep_answers(ASKED, [*answers_of("a"), *answers_of("b")[:1], *answers_of("a")])
    ledger.keep_answers(ASKED, [])
    assert len(journal_of(ledger)) == entries
    ledger.keep_answers(ASKED, iter(answers_of("a", "b")))
    assert len(journal_of(ledger)) == entries + 1
    assert kept(ledger) == of(ASKED, "a", "b")
    verify_ledger(ledger)


def changed(**fields):
    return answers_of("a")[0]._replace(**fields)


REFUSED = {
    "other totals": (changed(totals=(1, 2, 3)), "dataset a has answered question 0 of run 'questions-spring', round 1"),
    "fewer totals": (changed(totals=changed().totals[:2]), "has answered question 0"),
    "other noise": (changed(noise_multiplier=NOISE / 2), "has answered question 0"),
    "another question": (changed(question=canonical({"kind": "sum"})), 'question 0 of run .* is {"column":"age"'),
    "another question of another": (
        changed(dataset_id="b", question=canonical({"kind": "sum"})),
        'question 0 of run .* is {"column":"age"',
    ),
    "no charge": (changed(dataset_id="c"), "dataset c has no charge for run 'questions-spring', round 1, attempt 1"),
    "no such dataset": (changed(dataset_id="d"), "dataset d has no charge"),
    "spaces": (changed(number=2, question='{"kind": "sum"}'), "its question is not in canonical JSON"),
    "no JSON": (changed(number=2, question="sum"), "answer of dataset a to question 2 cannot be kept"),
    "no noise": (changed(number=2, noise_multiplier=0.0), "its noise multiplier is 0.0"),
    "noise without a value": (changed(number=2, noise_multiplier=math.nan), "its noise multiplier is nan"),
    "given twice": (changed(dataset_id="b", number=1, question=COUNT), "question 1 is given twice, and not the same"),
    "65 bits": (changed(number=2, totals=(2**63,)), "a total is no whole number of 64 bits"),
    "a fraction": (changed(number=2, totals=(0.5,)), "a total is no whole number of 64 bits"),
}


def test_what_cannot_be_kept_is_refused_with_all_that_came_with_it(ledger):
    ledger.keep_answers(ASKED, answers_of("a"))
    entries = len(journal_of(ledger))
    for answer, problem in REFUSED.values():
        with pytest.raises(LedgerError, match=problem):
            ledger.keep_answers(ASKED, [*answers_of("b")[1:], answer])
        assert kept(ledger) == of(ASKED, "a")
        assert len(journal_of(ledger)) == entries


def test_what_was_asked_says_of_whom_at_what_cost_and_how_many_answered(ledger):
    quieter = PoissonSampledGaussian(1.0, 40.0)
    ledger.keep_answers(ASKED, answers_of("a", "b")[:3])
    ledger.reserve(LATER, {"a": QUESTION, "b": quieter, "c": quieter}, dict.fromkeys("abc", 1), unlimited)
    ledger.settle(LATER, ["a", "b"], COMMITTED)
    ledger.settle(LATER, ["c"], VOID)
    ledger.keep_answers(LATER, [Answer("b", 0, COUNT, 40.0, (5,)), Answer("a", 0, COUNT, 20.0, (6,))])
    asked = ledger.asked()
    assert [(each.attempt, each.number, each.question) for each in asked] == [
        (ASKED, 0, MEAN),
        (ASKED, 1, COUNT),
        (LATER, 0, COUNT),
    ]
    assert [each.charged for each in asked] == [{QUESTION: 2}, {QUESTION: 2}, {QUESTION: 1, quieter: 1}]
    assert [each.answered for each in asked] == [2, 1, 2]
    assert [each.noise_multiplier for each in asked] == [NOISE, NOISE, 20.0]
    mine = ledger.asked("b")
    assert [(each.charged, each.answered) for each in mine] == [
        ({QUESTION: 1}, 1),
        ({QUESTION: 1}, 0),
        ({quieter: 1}, 1),
    ]
    assert mine[1].noise_multiplier is None
    assert ledger.asked("c") == []


# --- nobody changes one unseen, in the table or in the journal ---

undamaged = undamaged_by(fill_and_ask)

MINE = "run_id = 'questions-spring' AND number = 0 AND dataset_id = 'a'"
MINE_IS = r"the answer of a, questions-spring, 1, 1, 0 is not what the journal says; .*put back a copy"
DAMAGE = {
    "totals": (
        f"UPDATE answers SET totals = (SELECT totals FROM answers WHERE number = 1 LIMIT 1) WHERE {MINE}",
        MINE_IS,
    ),
    "an answer": (f"DELETE FROM answers WHERE {MINE}", "the answer of a, questions-spring, 1, 1, 0 is missing"),
    "one to a charge that was never made": (
        "INSERT INTO answers SELECT 'questions-never', round, attempt, number, dataset_id, entry, noise_multiplier, "
        "totals FROM answers WHERE run_id = 'questions-autumn' AND number = 0",
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
}


@pytest.mark.parametrize(("damage", "match"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_named(undamaged, damage, match):
    found_when(undamaged, damage, match=match)


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
    tamper(url, f"UPDATE answers SET entry = 1 WHERE {MINE}")  # an entry of another kind
    with pytest.raises(LedgerError, match="is not what entry 1 of the journal says"):
        ledger.answers(MEAN, ["a"])
