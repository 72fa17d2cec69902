"""Nobody changes an answer unseen: not in the table, not in the journal, not in an export or a certificate of it."""

import dataclasses
import hashlib
import json
import re

import pytest

from fedprivacy._support import signing
from fedprivacy._support.signing import server_public_key
from fedprivacy.accounting import pld
from fedprivacy.ledger import Answer, ChargeState, Ledger, LedgerError
from fedprivacy.ledger.certificate import Certificate, CertificateError, certify
from fedprivacy.ledger.certificate_page import certificate_html
from fedprivacy.ledger.export import check_export, import_ledger
from fedprivacy.ledger.journal import canonical
from fedprivacy.ledger.replay import BrokenJournalError, Replay
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import PoissonSampledGaussian
from tests.ledger.acts import (
    ALLOWANCE,
    ASKED,
    COUNT,
    EVENT,
    KEY,
    MEAN,
    OTHER,
    QUESTION,
    answers_of,
    ask,
    exported,
    fill,
    found_when,
    journal_of,
    problem,
    query,
    rewrite,
    tamper,
    undamaged_by,
    unlimited,
)

PUBLIC = server_public_key(KEY)
NOISE = answers_of("a")[0].noise_multiplier
LATER = Attempt("questions-autumn", 1)


def fill_and_ask(url):
    """A ledger with entries of every kind: questions to both datasets, and once more to one of them."""
    ledger = fill(url)
    ask(ledger)
    ask(ledger, LATER, "a", shift=7)
    return ledger


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def undamaged(request, tmp_path_factory):
    """A ledger whose damage is undone after each test."""
    yield from undamaged_by(fill_and_ask, request, tmp_path_factory)


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
    "a noise": (f"UPDATE answers SET noise_multiplier = 99 WHERE {MINE}", MINE_IS),
    "an entry's number": (f"UPDATE answers SET entry = 1 WHERE {MINE}", MINE_IS),
    "an answer": (f"DELETE FROM answers WHERE {MINE}", "the answer of a, questions-spring, 1, 1, 0 is missing"),
    "all answers": ("DELETE FROM answers", "the answer of a, questions-spring, 1, 1, 0 is missing"),
    "one answer more": (
        ONE_MORE.format(run="questions-autumn", attempt=1, dataset="b"),
        "the answer of b, questions-autumn, 1, 1, 0 is not what the journal says",
    ),
    "one to a charge that was never made": (
        ONE_MORE.format(run="questions-never", attempt=1, dataset="a"),
        "the answer of a, questions-never, 1, 1, 0 is not what the journal says",
    ),
    "one to a void charge": (
        ONE_MORE.format(run="one", attempt=1, dataset="b"),
        "the answer of b, one, 1, 1, 0 is not what the journal says",
    ),
    "its charge, which became void": (
        "UPDATE charges SET state = 'void' WHERE run_id = 'questions-spring' AND dataset_id = 'a'",
        "the charge of a, questions-spring, 1, 1 is not what the journal says",
    ),
    "a question": (
        "UPDATE questions SET question = '{}' WHERE run_id = 'questions-spring' AND number = 1",
        "the question of questions-spring, 1, 1, 1 is not what the journal says; .*export",
    ),
    "a question's time": (
        "UPDATE questions SET at = '2020-01-01' WHERE run_id = 'questions-autumn' AND number = 0",
        "the question of questions-autumn, 1, 1, 0 is not",
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


def test_answers_that_were_swapped_between_datasets_are_found(undamaged):
    found_when(
        undamaged,
        f"UPDATE answers SET dataset_id = 'x' WHERE {MINE}",
        f"UPDATE answers SET dataset_id = 'a' WHERE {SPRING} AND dataset_id = 'b'",
        "UPDATE answers SET dataset_id = 'b' WHERE dataset_id = 'x'",
        match="the answer of [ab], questions-spring, 1, 1, 0 is not what the journal says",
    )


def test_answers_that_were_swapped_between_questions_are_found(undamaged):
    spring = "run_id = 'questions-spring' AND dataset_id = 'a'"
    found_when(
        undamaged,
        f"UPDATE answers SET number = 9 WHERE {spring} AND number = 0",
        f"UPDATE answers SET number = 0 WHERE {spring} AND number = 1",
        f"UPDATE answers SET number = 1 WHERE {spring} AND number = 9",
        match="the answer of a, questions-spring, 1, 1, [01] is not what the journal says",
    )


@pytest.mark.parametrize("value", ["'a text'", "8", "x''"])
def test_what_is_no_total_is_found_whatever_sqlite_lets_stand_there(tmp_path, value):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = fill_and_ask(url)
    tamper(url, f"UPDATE answers SET totals = {value} WHERE {MINE}")
    with pytest.raises(BrokenJournalError, match=MINE_IS):
        verify_ledger(ledger)
    with pytest.raises(LedgerError, match="is not what entry 15 of the journal says"):
        ledger.answers(MEAN, ["a"])
    with pytest.raises(LedgerError, match=r"has answered question 0 of .* otherwise"):
        ledger.keep_answers(ASKED, answers_of("a"))


ANSWER = {"kind": "answer", "at": "2026-11-22T08:00:00+00:00", "run_id": "questions-1", "round": 1, "attempt": 1}
ANSWER |= {"questions": [[0, COUNT, 20.0]], "answers": {"a": [[0, "00" * 32]]}}


@pytest.fixture
def replay():
    """A run of questions, which two datasets were charged; one charge is committed, the other void."""
    replay, key = Replay(), {"run_id": "questions-1", "round": 1, "attempt": 1}
    replay.enter(1, {"kind": "budget", "budgets": {d: [3.0, 1e-5, "adaptive", None] for d in "abc"}})
    row = [1.0, 20.0, "add-or-remove-one"]
    charges = {"a": [0, 1], "b": [0, 1], "c": [0, 1]}
    replay.enter(2, {"kind": "charge", **key, "view": "server", "events": [row], "charges": charges})
    replay.enter(3, {"kind": "settlement", **key, "state": "committed", "receipts": {"a": None}})
    replay.enter(4, {"kind": "settlement", **key, "state": "void", "receipts": {"b": None}})
    return replay


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (ANSWER | {"answers": {"b": [[0, "00"]]}}, "a void charge of b cannot have an answer"),
        (ANSWER | {"answers": {"c": [[0, "00"]]}}, "a reserved charge of c cannot have an answer"),
        (ANSWER | {"answers": {"d": [[0, "00"]]}}, "lacks ChargeKey(dataset_id='d'"),
        (ANSWER | {"attempt": 2}, "lacks ChargeKey(dataset_id='a', run_id='questions-1', round=1, attempt=2)"),
        (ANSWER | {"answers": {"a": [[1, "00"]]}}, "index out of range"),
        (ANSWER | {"answers": {"a": [[0, "00"], [0, "01"]]}}, "a answered question 0 before"),
        (
            ANSWER | {"questions": [[0, COUNT, 2.0], [0, MEAN, 2.0]], "answers": {"a": [[0, ""], [1, ""]]}},
            "was another",
        ),
        (ANSWER | {"questions": [[0, COUNT]]}, "not enough values"),
        ({name: value for name, value in ANSWER.items() if name != "at"}, "lacks 'at'"),
    ],
)
def test_an_entry_that_contradicts_those_before_is_named(replay, entry, problem):
    with pytest.raises(BrokenJournalError, match=f"entry 5 .*{re.escape(problem)}"):
        replay.enter(5, entry)


def test_what_was_answered_stays_answered_and_its_charge_committed(replay):
    replay.enter(5, ANSWER)
    with pytest.raises(BrokenJournalError, match=r"entry 6 .*a answered question 0 before"):
        replay.enter(6, ANSWER | {"answers": {"a": [[0, "11" * 32]]}})
    with pytest.raises(BrokenJournalError, match=r"entry 6 .*was another before"):
        replay.enter(6, ANSWER | {"questions": [[0, MEAN, 20.0]]})
    with pytest.raises(BrokenJournalError, match="a committed charge of a cannot become void"):
        replay.enter(6, {**ANSWER, "kind": "settlement", "state": "void", "receipts": {"a": None}})


def test_a_journal_that_was_rewritten_for_another_answer_contradicts_the_table(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = fill_and_ask(url)
    before = re.search(r'"a":\[\[0,"([0-9a-f]{64})"', journal_of(ledger)[14][1])[1]
    rewrite(url, 15, before, "00" * 32)
    with pytest.raises(BrokenJournalError, match=MINE_IS):
        verify_ledger(ledger)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of an export with answers: 18 entries, a signed head, 6 answers."""
    return exported(fill_and_ask(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"))


def test_an_export_holds_every_answer_in_an_order_of_its_own_and_says_that_it_is_of_a_newer_version(small):
    lines = [json.loads(line) for line in small.splitlines()]
    assert lines[0]["version"] == 2
    held = [line["answer"] for line in lines[20:26]]
    assert [(each["run_id"], each["number"], each["dataset_id"]) for each in held] == [
        *[("questions-spring", number, dataset) for number in (0, 1) for dataset in "ab"],
        *[("questions-autumn", number, "a") for number in (0, 1)],
    ]
    assert held[0]["totals"] == list(answers_of("a")[0].totals)
    assert lines[26]["entries"] == 18


def test_an_export_of_a_ledger_without_answers_is_what_it_was_before_there_were_any(tmp_path):
    ledger = fill(f"sqlite:///{tmp_path / 'ledger.db'}")
    first = exported(ledger).splitlines()[0]
    assert first == b'{"format":"fedprivacy-ledger","version":1}'
    ledger.close()


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
def test_what_is_brought_into_another_database_is_reread_and_exported_the_same(request, small, tmp_path, to):
    url = f"sqlite:///{tmp_path / 'other.db'}" if to == "sqlite" else request.getfixturevalue("postgres_url")
    file, other = tmp_path / "export.jsonl", Ledger(url)
    file.write_bytes(small)
    check_export(file)
    assert len(import_ledger(file, other).replay.answers) == 6
    assert exported(other) == small
    verify_ledger(other)
    given = [answers_of("a", shift=shift)[0].totals for shift in (0, 7)]
    assert [each.totals for each in other.answers(MEAN, ["a", "b"])["a"]] == given
    other.keep_answers(LATER, answers_of("a", shift=7))
    with pytest.raises(LedgerError, match="has answered question 0"):
        other.keep_answers(LATER, answers_of("a"))
    assert len(journal_of(other)) == 18
    ask(other, LATER.again, "b")
    assert verify_ledger(other).head.number == 21
    other.close()


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
def test_an_export_does_not_depend_on_the_order_in_which_answers_came(request, tmp_path, to):
    """Databases compare names each in their own way."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if to == "sqlite" else request.getfixturevalue("postgres_url")
    ledger, names = Ledger(url), ["\u00e4", "B", "a", "_", "A", "b"]
    ledger.open_budgets(dict.fromkeys(names, ALLOWANCE))
    ledger.reserve(ASKED, QUESTION, dict.fromkeys(names, 1), unlimited)
    ledger.settle(ASKED, names, ChargeState.COMMITTED)
    ledger.keep_answers(ASKED, [Answer(name, 0, COUNT, 20.0, (1,)) for name in names])
    lines = [json.loads(line) for line in exported(ledger).splitlines()]
    assert [line["answer"]["dataset_id"] for line in lines if "answer" in line] == sorted(names)
    ledger.close()


def resealed(lines):
    """An export whose last line was made anew to fit, as somebody does who changed what is before it."""
    body = b"".join(lines)
    last = {"entries": 18, "sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(last, separators=(",", ":")).encode() + b"\n"


def test_an_export_with_other_answers_is_refused_even_where_its_last_line_fits(small):
    *lines, _ = small.splitlines(keepends=True)
    spring = lines[20].replace(b'"dataset_id":"a"', b'"dataset_id":"b"')
    other = {
        "changed": [*lines[:20], lines[20].replace(b"[97", b"[96"), *lines[21:]],
        "gone": [*lines[:20], *lines[21:]],
        "twice": [*lines, lines[20]],
        "of another": [*lines[:20], spring, *lines[21:]],
        "none at all": [lines[0].replace(b"2", b"1"), *lines[1:20]],
    }
    named = r"the answer of [ab], questions-spring, 1, 1, 0 is (not what the journal says|missing)"
    for name, changed in other.items():
        assert re.search(named, problem(resealed(changed))), name
    assert lines[20] != other["changed"][20]
    assert "line 1 is not the first line of what follows" in problem(
        resealed([lines[0].replace(b"2", b"1"), *lines[1:]])
    )


FORMS = {
    "a fraction": (b'"number":0', b'"number":0.0'),
    "a truth": (b'"attempt":1', b'"attempt":true'),
    "a list": (b'"dataset_id":"a"', b'"dataset_id":["a"]'),
    "one field more": (b'{"answer":{', b'{"answer":{"Z":1,'),
    "one field less": (b'"number":0,', b""),
    "a truth among totals": (b"[9700,", b"[true,"),
    "65 bits": (b"[9700,", b"[18446744073709551616,"),
    "a text": (b"[9700,", b'["9700",'),
    "a space": (b"[9700,", b"[ 9700,"),
}


@pytest.mark.parametrize(("old", "new"), FORMS.values(), ids=FORMS)
def test_an_answer_that_is_not_as_it_was_written_is_damage(small, old, new):
    *lines, _ = small.splitlines(keepends=True)
    assert old in lines[20]
    changed = lines[20].replace(old, new, 1)
    assert re.search(
        r"^line 21, after entry 18, is|\(line 21\) is", problem(resealed([*lines[:20], changed, *lines[21:]]))
    )


@pytest.mark.parametrize("line", [21, 24])
def test_one_flipped_bit_in_an_answer_is_found(small, line):
    lines = small.splitlines(keepends=True)
    start = sum(map(len, lines[: line - 1]))
    for place in range(start, start + len(lines[line - 1])):
        for bit in (0, 2, 5):
            flipped = bytearray(small)
            flipped[place] ^= 1 << bit
            assert problem(flipped)


def test_an_export_that_was_cut_off_between_answers_is_found(small):
    lines = small.splitlines(keepends=True)
    for count in range(19, 26):
        assert problem(b"".join(lines[:count])) == "the end is missing: there is no last line after 18 entries"


def test_a_damaged_answer_is_not_brought_into_a_ledger(small, tmp_path):
    file, ledger = tmp_path / "export.jsonl", Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    *lines, _ = small.splitlines(keepends=True)
    file.write_bytes(resealed([*lines[:20], *lines[21:]]))
    with pytest.raises(BrokenJournalError, match="is missing; the journal holds its digest alone"):
        import_ledger(file, ledger)
    assert journal_of(ledger) == query(ledger, "SELECT * FROM answers") == []
    ledger.close()


@pytest.fixture
def asked(tmp_path):
    return fill_and_ask(f"sqlite:///{tmp_path / 'ledger.db'}")


def test_a_certificate_states_every_question_and_what_it_costs_alone_beside_what_was_trained(asked):
    asked.reserve(LATER.again, QUESTION, {"a": 1, "b": 1}, unlimited)
    asked.settle(LATER.again, ["a"], ChargeState.COMMITTED)
    asked.keep_answers(LATER.again, answers_of("a", shift=9)[1:])
    first, second = certify(asked, (), PUBLIC)
    alone = pld.epsilon({PoissonSampledGaussian(1.0, NOISE): 1}, 1e-5)
    assert [(each["question"], each["epsilon"]) for each in first.questions] == [(MEAN, alone), (COUNT, alone)] * 2 + [
        (COUNT, alone)
    ]
    assert [each["event"] and each["event"]["noise_multiplier"] for each in second.questions] == [NOISE, NOISE, None]
    assert second.questions[-1]["epsilon"] is None  # asked and charged, and nobody has heard an answer
    assert first.epsilon == pld.epsilon({EVENT: 10, OTHER: 3, QUESTION: 3}, 1e-5)
    assert (first.runs, first.rounds, first.steps, first.question_steps) == (2, 3, 16, 3)
    assert (first.last_steps, first.charges) == (1, 7)  # of run two, which trained
    assert Certificate.read(first.signed_with(KEY), [PUBLIC]) == first


def test_a_certificate_of_a_dataset_that_was_only_asked_counts_no_run(asked):
    asked.open_budgets({"c": ALLOWANCE})
    ask(asked, Attempt("questions-winter", 1), "c")
    (certificate,) = certify(asked, ["c"], PUBLIC)
    assert (certificate.runs, certificate.rounds, certificate.steps, certificate.runs_left) == (0, 0, 1, None)
    page = certificate_html(certificate, "x.json")
    for words in (
        "no run has trained yet",
        "<p>1 step for questions.</p>",
        "mean of age, from 0 to 120",
        "all records",
    ):
        assert words in page, words
    (other,) = certify(asked, ["a"], PUBLIC)
    assert "13 steps in 3 rounds of 2 runs, and 2 steps for questions." in certificate_html(other, "x.json")


def test_a_certificate_whose_question_costs_more_than_it_states_is_refused(asked):
    certificate, _ = certify(asked, (), PUBLIC)
    first, *rest = certificate.questions
    lying = dataclasses.replace(certificate, questions=(first | {"epsilon": first["epsilon"] / 2}, *rest))
    with pytest.raises(CertificateError, match="a question costs more than the epsilon of"):
        Certificate.read(lying.signed_with(KEY))


def test_a_certificate_of_the_version_before_is_still_read(tmp_path):
    """It was signed without the fields of questions."""
    certificate, _ = certify(fill(f"sqlite:///{tmp_path / 'ledger.db'}"), (), PUBLIC)
    fields = dataclasses.asdict(certificate) | {"version": 1}
    del fields["questions"], fields["question_steps"]
    signature = signing.sign(KEY, signing.CERTIFICATE, canonical(fields).encode())
    read = Certificate.read(json.dumps(fields | {"signature": signature}), [PUBLIC])
    assert (read.version, read.questions, read.epsilon) == (1, (), certificate.epsilon)
