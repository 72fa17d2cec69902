"""Stored answers to questions: an answer that was paid for can be reread by any later run on the same ledger.

A client answers a question with noisy totals, whole numbers of lattice steps. An entry of the journal holds each
question once, and for each dataset SHA-256 digests of its totals; the table `answers` holds the totals. An answer that
is read here is checked against the digest in its entry.

Functions that write need a transaction with exclusive access to the ledger.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, Table, and_, func, select, type_coerce
from sqlalchemy.types import NULLTYPE

from fedprivacy._support.failpoints import reach
from fedprivacy.ledger import journal
from fedprivacy.ledger.charges import charged_for
from fedprivacy.ledger.database import among, insert_rows
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.replay import Given, QuestionKey, given_by
from fedprivacy.ledger.schema import ChargeState, answers, charges, questions
from fedprivacy.ledger.schema import journal as entries
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import ROW, PoissonSampledGaussian


class Answer(NamedTuple):
    """One client's answer to one question, to be stored.

    Attributes:
        dataset_id: dataset whose records were asked.
        number: place of the question among those asked together.
        question: canonical text of this question's fields, see `fedprivacy.ledger.journal.canonical`.
        noise_multiplier: standard deviation of this question's noise over its sensitivity.
        totals: noisy totals in whole lattice steps; each fits into 64 bits.
    """

    dataset_id: str
    number: int
    question: str
    noise_multiplier: float
    totals: tuple[int, ...]


class StoredAnswer(NamedTuple):
    """An `Answer` as the ledger stores it, with its attempt and the time of storing, in ISO 8601."""

    dataset_id: str
    attempt: Attempt
    number: int
    question: str
    noise_multiplier: float
    totals: tuple[int, ...]
    at: str


class AskedQuestion(NamedTuple):
    """A question that was asked, regardless of the client that answered.

    Attributes:
        attempt: attempt that was charged for it, together with other questions.
        number: its place among them.
        question: canonical JSON.
        at: time when its first answer was stored, ISO 8601.
        noise_multiplier: smallest noise multiplier of its answers, for this question alone; None: there is no answer.
        charged: number of datasets that were charged each event for all questions of the attempt.
        answered: number of datasets whose answer is stored.
    """

    attempt: Attempt
    number: int
    question: str
    at: str
    noise_multiplier: float | None
    charged: Mapping[PoissonSampledGaussian, int]
    answered: int


def pack_totals(totals: Sequence[int]) -> bytes:
    """Pack totals for storage, the same on every database and machine: int64, little-endian.

    >>> pack_totals((1, -2)).hex()
    '0100000000000000feffffffffffffff'

    Raises:
        ValueError: a total is no whole number, or does not fit.
    """
    try:
        return struct.pack(f"<{len(totals)}q", *totals)
    except struct.error as problem:
        raise ValueError("a total is no whole number of 64 bits") from problem


def unpack_totals(stored: bytes) -> tuple[int, ...]:
    """Return the totals that `pack_totals` stored."""
    return struct.unpack_from(f"<{len(stored) // 8}q", stored)


def digest(stored: object) -> str:
    """Return SHA-256 of packed totals, in hexadecimal; for an object that is no bytes, a text that equals no digest."""
    return hashlib.sha256(stored).hexdigest() if isinstance(stored, bytes) else ""


def keep(connection: Connection, attempt: Attempt, given: Iterable[Answer]) -> None:
    """Store answers to an attempt's questions, unless they are stored already.

    Only a committed charge has answers: its receipt matched, so that the answer is the client's own, and a committed
    charge is never voided, so that a stored answer stays paid for.

    Raises:
        LedgerError: a dataset has no committed charge for the attempt, a question or an answer differs from the stored
            one, or an answer is invalid.
    """
    wanted = _check_answers(given)
    datasets = {dataset_id for dataset_id, _ in wanted}
    _check_charged(connection, attempt, datasets)
    mine = (questions.c[name] == value for name, value in attempt._asdict().items())
    rows = connection.execute(select(questions.c.number, questions.c.question).where(*mine))
    known = {row.number: row.question for row in rows}
    asked = dict(known)
    for answer in wanted.values():
        if asked.setdefault(answer.number, answer.question) != answer.question:
            raise LedgerError(f"question {answer.number} of {attempt} is {asked[answer.number]}; number others apart.")
    held = _kept_of(connection, attempt, datasets)
    if changed := [key for key in wanted.keys() & held.keys() if _as_kept(wanted[key]) != held[key]]:
        dataset_id, number = min(changed)
        raise LedgerError(
            f"dataset {dataset_id} has answered question {number} of {attempt} otherwise; what was kept stays."
        )
    if new := [answer for key, answer in wanted.items() if key not in held]:
        _enter(connection, attempt, new, known)


def _check_answers(given: Iterable[Answer]) -> dict[tuple[str, int], Answer]:
    """Check answers and index them by dataset and number, each once."""
    found: dict[tuple[str, int], Answer] = {}
    for answer in given:
        which = f"the answer of dataset {answer.dataset_id} to question {answer.number}"
        try:
            if journal.canonical(json.loads(answer.question)) != answer.question:
                raise ValueError(f"its question is not in canonical JSON: {answer.question}")
            noise_multiplier = float(answer.noise_multiplier)
            if not (math.isfinite(noise_multiplier) and noise_multiplier > 0.0):
                raise ValueError(f"its noise multiplier is {noise_multiplier}, and no positive, finite number")
            kept = answer._replace(noise_multiplier=noise_multiplier, totals=unpack_totals(pack_totals(answer.totals)))
        except ValueError as problem:
            raise LedgerError(f"{which} cannot be kept: {problem}.") from problem
        if found.setdefault((answer.dataset_id, answer.number), kept) != kept:
            raise LedgerError(f"{which} is given twice, and not the same; nothing was kept.")
    return found


def _check_charged(connection: Connection, attempt: Attempt, datasets: Collection[str]) -> None:
    """Refuse answers without a committed charge."""
    mine = *charged_for(attempt), among(connection.dialect, charges.c.dataset_id, datasets)
    rows = connection.execute(select(charges.c.dataset_id, charges.c.state).where(*mine))
    states = {row.dataset_id: row.state for row in rows}
    for dataset_id in sorted(datasets):
        if (state := states.get(dataset_id)) is not ChargeState.COMMITTED:
            raise LedgerError(
                f"dataset {dataset_id} has {f'a {state}' if state else 'no'} charge for {attempt}; an answer is kept "
                "once its charge is committed."
            )


_AsKept = tuple[str, float, bytes]  # question, noise multiplier, packed totals


def _as_kept(answer: Answer) -> _AsKept:
    return answer.question, answer.noise_multiplier, pack_totals(answer.totals)


def _kept_of(connection: Connection, attempt: Attempt, datasets: Collection[str]) -> dict[tuple[str, int], _AsKept]:
    """Read the answers of datasets in an attempt, by dataset and number."""
    mine = (answers.c[name] == value for name, value in attempt._asdict().items())
    rows = connection.execute(_KEPT.where(*mine, among(connection.dialect, answers.c.dataset_id, datasets)))
    return {(row.dataset_id, row.number): (row.question, row.noise_multiplier, row.totals) for row in rows}


def _enter(connection: Connection, attempt: Attempt, new: Sequence[Answer], known: Collection[int]) -> None:
    """Store new answers, and the questions whose numbers are not known."""
    asked = sorted({(answer.number, answer.question, answer.noise_multiplier) for answer in new})
    places = {question: place for place, question in enumerate(asked)}
    digests: dict[str, list[tuple[int, str]]] = {}
    for answer in new:
        which = places[answer.number, answer.question, answer.noise_multiplier]
        digests.setdefault(answer.dataset_id, []).append((which, digest(pack_totals(answer.totals))))
    at = journal.now().isoformat()
    entry = journal.append(connection, "answer", **attempt._asdict(), at=at, questions=asked, answers=digests)
    reach("ledger.answers-entered")
    common = {**attempt._asdict(), "entry": entry}
    texts = {number: question for number, question, _ in asked if number not in known}
    if texts:
        rows = [{**common, "number": number, "at": at, "question": text} for number, text in texts.items()]
        insert_rows(connection, questions, rows)
    of_answer = ("dataset_id", "number", "noise_multiplier")
    named = (
        {name: getattr(answer, name) for name in of_answer} | {"totals": pack_totals(answer.totals)} for answer in new
    )
    insert_rows(connection, answers, [common | each for each in named])


def _select_answers() -> Select[Any]:
    """Select every answer with its question; the totals as the stored bytes, even if somebody has changed them."""
    columns = [column for column in answers.c if column is not answers.c.totals]
    totals = type_coerce(answers.c.totals, NULLTYPE).label("totals")
    together = and_(*(answers.c[name] == questions.c[name] for name in QuestionKey._fields))
    return select(*columns, totals, questions.c.question).join(questions, together)


_KEPT = _select_answers()


def answers_to(connection: Connection, question: str, dataset_ids: Collection[str]) -> dict[str, list[StoredAnswer]]:
    """Read every answer of datasets to a question, oldest first; datasets without one are missing.

    Raises:
        LedgerError: an answer contradicts its entry in the journal.
    """
    mine = questions.c.question == question, among(connection.dialect, answers.c.dataset_id, dataset_ids)
    wanted = _KEPT.where(*mine)
    proofs = select(entries.c.number, entries.c.entry).where(
        entries.c.number.in_(wanted.with_only_columns(answers.c.entry))
    )
    said = {number: json.loads(text) for number, text in connection.execute(proofs)}
    found: dict[str, list[StoredAnswer]] = {}
    for row in connection.execute(wanted.order_by(answers.c.entry, answers.c.number)):
        attempt, entry = Attempt(row.run_id, row.round, row.attempt), said[row.entry]
        if not _says(entry, attempt, row):
            raise LedgerError(
                f"the answer of dataset {row.dataset_id} to question {row.number} of {attempt} is not what entry "
                f"{row.entry} of the journal says: it was changed since. 'fedprivacy ledger verify' looks at all."
            )
        given = row.number, row.question, row.noise_multiplier, unpack_totals(row.totals)
        found.setdefault(row.dataset_id, []).append(StoredAnswer(row.dataset_id, attempt, *given, at=entry["at"]))
    return found


def _says(entry: Mapping[str, Any], attempt: Attempt, row: Row[Any]) -> bool:
    """Return whether an entry of the journal holds the answer of a row."""
    read = Given(row.number, row.question, row.noise_multiplier, digest(row.totals))
    try:
        return Attempt.named_in(entry) == attempt and read in given_by(row.dataset_id, entry)
    except (KeyError, ValueError, TypeError, IndexError):  # the entry is of another kind
        return False


def asked_questions(connection: Connection, dataset_id: str = "") -> list[AskedQuestion]:
    """List every question that datasets (or one dataset) were charged for, in the order of their first answers."""
    charged, answered = _charged_for_questions(connection, dataset_id), _count_answers(connection, dataset_id)
    found = []
    for row in connection.execute(select(questions).order_by(questions.c.entry, questions.c.number)):
        attempt = Attempt(row.run_id, row.round, row.attempt)
        if events := charged.get(attempt):
            times, noise = answered.get(QuestionKey(*attempt, row.number), (0, None))
            found.append(AskedQuestion(attempt, row.number, row.question, row.at, noise, events, times))
    return found


def _charged_for_questions(connection: Connection, dataset_id: str) -> dict[Attempt, dict[PoissonSampledGaussian, int]]:
    """Count the datasets that were charged each event, by attempts with questions."""
    attempts = select(*(questions.c[name] for name in Attempt._fields)).distinct().subquery()
    asking = and_(*(charges.c[name] == attempts.c[name] for name in Attempt._fields))
    alike = [charges.c[name] for name in (*Attempt._fields, *ROW)]
    counted = select(*alike, func.count()).join(attempts, asking).where(charges.c.state != ChargeState.VOID)
    found: dict[Attempt, dict[PoissonSampledGaussian, int]] = {}
    for run_id, round, attempt, *event, count in connection.execute(_of(counted, charges, dataset_id).group_by(*alike)):
        found.setdefault(Attempt(run_id, round, attempt), {})[PoissonSampledGaussian(*event)] = count
    return found


def _count_answers(connection: Connection, dataset_id: str) -> dict[QuestionKey, tuple[int, float]]:
    """Return the number of answers to each question, and their smallest noise multiplier."""
    key = [answers.c[name] for name in QuestionKey._fields]
    counted = select(*key, func.count(), func.min(answers.c.noise_multiplier)).group_by(*key)
    rows = connection.execute(_of(counted, answers, dataset_id))
    return {QuestionKey(*named): (count, noise) for *named, count, noise in rows}


def _of(rows: Select[Any], table: Table, dataset_id: str) -> Select[Any]:
    """Restrict a query to one dataset, if one is named."""
    return rows.where(table.c.dataset_id == dataset_id) if dataset_id else rows
