"""Certificates: signed statements of what one dataset has spent, as a verified ledger proves it.

A certificate holds only facts that the server knows: names, budgets, public events, counts of charges. A machine reads
the JSON, a person the page (`fedprivacy.commands.certificate_page`), which shows the same fields and nothing else.
"""

from __future__ import annotations

import datetime
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedprivacy._support import signing
from fedprivacy._support.software import Software, software
from fedprivacy.accounting import more_runs, pld
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import ROWS, person_history
from fedprivacy.accounting.risk import RATES, Risk
from fedprivacy.accounting.spend import shortage
from fedprivacy.ledger.charges import BudgetChange, budget_changes
from fedprivacy.ledger.errors import no_dataset
from fedprivacy.ledger.journal import canonical, now, read_entries
from fedprivacy.ledger.replay import (
    AnswerKey,
    Charge,
    ChargeKey,
    Evidence,
    QuestionKey,
    Replay,
    WrittenAllowance,
)
from fedprivacy.ledger.schema import ChargeState
from fedprivacy.ledger.store import Ledger
from fedprivacy.ledger.verify import Verified, verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.events import (
    UNNAMED,
    Event,
    History,
    NeighbouringRelation,
    PoissonSampledGaussian,
    as_fields,
    as_list,
    from_fields,
    from_list,
)
from fedprivacy.values.numbers import finite_or_none, or_infinite
from fedprivacy.values.runs import AuditResult
from fedprivacy.values.unit import RECORD, Unit
from fedprivacy.values.wording import plural

_VERSION = 7
_NONE = "this is no certificate of fedprivacy."
_UNKNOWN = Software("", "")
_TOLERANCE = 1e-9  # relative difference of an epsilon that another machine computed


class CertificateError(ValueError):
    """A certificate's signature is wrong, or its figures do not follow from its history."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Statement of what one dataset has spent over all runs, and of the verified ledger behind it.

    Attributes:
        dataset_id: the dataset.
        issued: time of issue, in ISO 8601, UTC.
        epsilon: composed over `history` by PLD, at `delta`, for the server's view, in nats; None: no bound is known.
        delta: delta of the budget.
        budget: epsilon of the budget over all runs; None: losses are only measured.
        filter: name of the filter that keeps the budget.
        expires: day on which the budget expires, in ISO 8601; None: never.
        relation: neighbouring relation; None: nothing was charged.
        history: every event with its `steps`, as `fedprivacy.values.events` writes it.
        runs, rounds: numbers of training runs and rounds of which this ledger holds the charges.
        claimed_steps, claimed_runs: number of steps that only the client's own book had counted, entered here without
            their rounds, and of the runs that they belong to, where the client names them.
        charges: number of charges that count.
        receipts: number of charges that the client confirmed with a signed receipt.
        unanswered: number of charges without any confirmation; they count.
        last_steps: number of steps of the last run that trained on it; None: no run did.
        runs_left: number of further runs like the last that the budget allows; None: unknown.
        shortage: the filter and the noise that allow no further run like the last, and what helps; None: one is left.
        entries, head: number of entries in the ledger's journal, all of them verified, and the hash of the last.
        signed: number of entries that signed heads cover.
        public_key: public key of the signer, Ed25519, in hexadecimal.
        version: version of these fields.
        questions: every `question` to the dataset, in canonical JSON, its time (`at`), and its cost alone, as an
            `event` and as `epsilon` at `delta`; without an answer, both are None.
        question_steps: number of `steps` that were charged for questions.
        unit: unit of privacy of all runs, such as "patient (at most 8 rows)"; None: nothing was charged.
        by_rows: `epsilon` at `delta` of a person with so many `rows`; empty if a row is no unit of privacy here.
        budgets: every budget that the dataset was given, in order, as `BudgetChange` has it; the last is in force.
        risks: for one unit (`rows` 1) and for persons as in `by_rows`: shares of used ones `found` at most if so many
            others are `accused` wrongly, from the whole trade-off curve of `history`; empty: nothing was charged, or
            nothing is known.
        audits: what attacks on the runs that trained on it proved, by the server's records beside the ledger, which the
            journal does not hold: `run`, time (`at`), `attack`, epsilon that is lost at least (`lower`) and that is
            stated at most (`upper`; None: no bound), and `verdict`.
        software, digest: name and version of the program that verified the ledger and issued the certificate, and the
            SHA-256 of its files; empty: unknown.
        ran: programs with which the server began the runs that charged, by the journal: `software`, `digest` and the
            number of `runs`; both are empty for runs that only a client's guard knows.
        client_ran: programs that the client says it ran, in signed receipts: `software`, `digest` and the number
            of `charges`; both are empty for receipts that say neither.
        meanings: what the numbers mean, by the field that holds them, a sentence each.
    """

    dataset_id: str
    issued: str
    epsilon: float | None
    delta: float
    budget: float | None
    filter: str
    expires: str | None
    relation: str | None
    history: tuple[Mapping[str, Any], ...]
    runs: int
    rounds: int
    charges: int
    receipts: int
    unanswered: int
    last_steps: int | None
    runs_left: int | None
    entries: int
    head: str
    signed: int
    public_key: str
    version: int = field(default=_VERSION, kw_only=True)
    questions: tuple[Mapping[str, Any], ...]
    question_steps: int
    unit: str | None
    by_rows: tuple[Mapping[str, Any], ...]
    budgets: tuple[Mapping[str, Any], ...]
    claimed_steps: int
    claimed_runs: int
    shortage: str | None
    risks: tuple[Mapping[str, Any], ...]
    audits: tuple[Mapping[str, Any], ...]
    software: str
    digest: str
    ran: tuple[Mapping[str, Any], ...]
    client_ran: tuple[Mapping[str, Any], ...]
    meanings: Mapping[str, str]

    @property
    def steps(self) -> int:
        """Number of steps of all events."""
        return sum(event["steps"] for event in self.history)

    def signed_with(self, key: Ed25519PrivateKey) -> str:
        """Write the certificate as JSON, with the signature of the key that it names."""
        fields = asdict(self)
        return json.dumps(
            fields | {"signature": signing.sign(key, signing.CERTIFICATE, _signed_bytes(fields))}, indent=2
        )

    @classmethod
    def read(cls, text: str, signers: Collection[str] = ()) -> Self:
        """Read a certificate and check its signature, and that its epsilons follow from its history and questions.

        Args:
            text: text that `signed_with` returned.
            signers: public keys, in hexadecimal, of accepted signers; empty: any.

        Raises:
            CertificateError: the certificate is invalid; the error names the problem.
        """
        try:
            fields = json.loads(text)
            signature, version = fields.pop("signature"), fields["version"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            raise CertificateError(_NONE) from problem
        if version != _VERSION:
            raise CertificateError(
                f"it is of version {version}, and this version of fedprivacy reads version {_VERSION} alone; ask the "
                "operator for a new one."
            )
        try:
            lists = "history", "questions", "by_rows", "budgets", "risks", "audits", "ran", "client_ran"
            listed = {name: tuple(fields[name]) for name in lists}
            certificate = cls(**fields | listed)
            genuine = signing.signed_by_server(
                certificate.public_key, signing.CERTIFICATE, _signed_bytes(fields), signature
            )
            history = from_list(certificate.history)
            answered = [asked for asked in certificate.questions if asked["event"] is not None]
            alone = [(from_fields(asked["event"]), or_infinite(asked["epsilon"])) for asked in answered]
            of_persons = {int(stated["rows"]): or_infinite(stated["epsilon"]) for stated in certificate.by_rows}
            tests = [
                (int(stated["rows"]), float(stated["accused"]), float(stated["found"])) for stated in certificate.risks
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            raise CertificateError(_NONE) from problem
        if not genuine:
            raise CertificateError(f"it does not bear the signature of key {certificate.public_key}: it was changed.")
        if signers and certificate.public_key not in signers:
            raise CertificateError(f"it was signed by key {certificate.public_key}, which is none of those named.")
        if certificate.epsilon is not None and _cost(history, certificate.delta) > certificate.epsilon + _TOLERANCE:
            raise CertificateError(f"its history costs more than the epsilon of {certificate.epsilon} that it states.")
        for event, stated in alone:
            if _cost({event: 1}, certificate.delta) > stated + _TOLERANCE:
                raise CertificateError(f"a question costs more than the epsilon of {stated} that it states.")
        for rows, stated in of_persons.items():
            if _cost(history, certificate.delta, rows) > stated * (1.0 + _TOLERANCE):
                raise CertificateError(
                    f"{rows} rows of a person cost more than the epsilon of {stated} that it states."
                )
        for rows, accused, found in tests:
            risk = _risk(frozenset(history.items()), certificate.delta, rows)
            if risk is None or not 0.0 <= accused <= 1.0 or float(risk.found(accused)) > found * (1.0 + _TOLERANCE):
                raise CertificateError(
                    f"an attacker finds more than the share of {found} that it states for {rows} rows of a person."
                )
        return certificate


def certify(
    ledger: Ledger,
    dataset_ids: Collection[str],
    public_key: str,
    signers: Collection[str] = (),
    audits: Mapping[str, Sequence[AuditResult]] | None = None,
) -> list[Certificate]:
    """Verify a whole ledger, and state what datasets have spent.

    Args:
        ledger: the ledger.
        dataset_ids: datasets to certify; empty: all that have a budget.
        public_key: public key of the future signer.
        signers: public keys of accepted signers of the ledger's heads; empty: any.
        audits: results of audits by run_id; None: none are known.

    Raises:
        BrokenJournalError: a part of the ledger was changed since it was written; nothing is certified.
        LedgerError: the ledger does not know a dataset.
    """
    verified = verify_ledger(ledger, signers=signers)
    budgets = verified.replay.budgets
    if unknown := sorted(set(dataset_ids) - budgets.keys()):
        raise no_dataset(ledger.name, unknown[0], budgets)
    charges: dict[str, dict[ChargeKey, Charge]] = {}
    for key, charge in verified.replay.charges.items():
        if charge.state is not ChargeState.VOID:
            charges.setdefault(key.dataset_id, {})[key] = charge
    questions: dict[Attempt, list[QuestionKey]] = {}
    for asked in sorted(verified.replay.questions):
        questions.setdefault(Attempt(asked.run_id, asked.round, asked.attempt), []).append(asked)
    receipts = _receipts(ledger, verified.head.number)
    changes = budget_changes(ledger.database, dataset_ids or budgets, last=verified.head.number)
    return [
        _state(
            dataset_id,
            charges.get(dataset_id, {}),
            verified,
            questions=questions,
            receipts=receipts.get(dataset_id, Counter()),
            changes=changes[dataset_id],
            audits=audits or {},
            public_key=public_key,
        )
        for dataset_id in sorted(dataset_ids or budgets)
    ]


def _state(
    dataset_id: str,
    charges: Mapping[ChargeKey, Charge],
    verified: Verified,
    *,
    questions: Mapping[Attempt, Sequence[QuestionKey]],
    receipts: Counter[Software],
    changes: Sequence[BudgetChange],
    audits: Mapping[str, Sequence[AuditResult]],
    public_key: str,
) -> Certificate:
    """State what the verified journal holds of a dataset, ignoring anything later."""
    allowance = _allowance(verified.replay.budgets[dataset_id])
    counted: Counter[PoissonSampledGaussian] = Counter()
    for charge in charges.values():
        counted[_step(charge)] += charge.steps
    history: History = dict(counted)
    for_questions = {key: charge for key, charge in charges.items() if key.of.asks}
    trained = {key: charge for key, charge in charges.items() if key not in for_questions}
    in_rounds = {key: charge for key, charge in trained.items() if key.round > 0}
    claimed = {key: charge for key, charge in trained.items() if key.round == 0}
    last_steps, runs_left, why = _what_is_left(allowance, history, in_rounds)
    begun = (verified.replay.runs[key.run_id].unit for key in charges if key.run_id in verified.replay.runs)
    unit = next(begun, str(RECORD) if charges else None)  # the ledger keeps it the same for all runs
    return Certificate(
        dataset_id=dataset_id,
        issued=now().isoformat(timespec="seconds"),
        epsilon=finite_or_none(_cost(history, allowance.budget.delta)),
        delta=allowance.budget.delta,
        budget=finite_or_none(allowance.budget.epsilon),
        filter=allowance.filter,
        expires=allowance.expires.date().isoformat() if allowance.expires else None,
        relation=next((event.relation.value for event in history), None),
        history=tuple(as_list(history)),
        runs=len({key.run_id for key in in_rounds}),
        rounds=len({(key.run_id, key.round) for key in in_rounds}),
        charges=len(charges),
        receipts=sum(receipts.values()),
        unanswered=sum(charge.state is ChargeState.RESERVED for charge in charges.values()),
        last_steps=last_steps,
        runs_left=runs_left,
        entries=verified.head.number,
        head=verified.head.hash,
        signed=verified.signed,
        public_key=public_key,
        questions=tuple(_asked_of(charges, questions, verified.replay, allowance.budget.delta)),
        question_steps=sum(charge.steps for charge in for_questions.values()),
        unit=unit,
        by_rows=tuple(_by_rows(history, unit, allowance.budget.delta)),
        budgets=tuple(change._asdict() for change in changes),
        claimed_steps=sum(charge.steps for charge in claimed.values()),
        claimed_runs=len({key.run_id for key in claimed} - {UNNAMED}),
        shortage=why,
        risks=tuple(_risks(history, unit, allowance.budget.delta)),
        audits=tuple(_audits(sorted({key.run_id for key in trained}), audits)),
        software=software().name,
        digest=software().digest,
        ran=tuple(_programs(_ran({key.run_id for key in charges} - {UNNAMED}, verified), "runs")),
        client_ran=tuple(_programs(receipts, "charges")),
        meanings=_meanings(Unit.of(unit).name if unit else RECORD.name, history, allowance),
    )


def _by_rows(history: History, unit: str | None, delta: float) -> Iterator[Mapping[str, Any]]:
    """Yield what a person with several rows has lost; nothing where nothing was charged, or a person is a record."""
    if unit is not None and Unit.of(unit).rows == 1:
        for rows in ROWS:
            yield {"rows": rows, "epsilon": finite_or_none(_cost(history, delta, rows))}


def _audits(run_ids: Iterable[str], audits: Mapping[str, Sequence[AuditResult]]) -> Iterator[Mapping[str, Any]]:
    """Yield what attacks on these runs proved."""
    for run_id in run_ids:
        for result in audits.get(run_id, ()):
            at = datetime.datetime.fromtimestamp(result.at, datetime.UTC).isoformat(timespec="seconds")
            bounds = {"lower": result.lower, "upper": finite_or_none(result.upper), "verdict": str(result.verdict)}
            yield {"run": run_id, "at": at, "attack": result.attack, **bounds}


def _ran(run_ids: Iterable[str], verified: Verified) -> Counter[Software]:
    """Count the runs that each program began."""
    return Counter(verified.replay.software.get(run_id, _UNKNOWN) for run_id in run_ids)


def _programs(counted: Counter[Software], of_what: str) -> Iterator[Mapping[str, Any]]:
    """Yield each program with its number of runs or charges."""
    for program, number in sorted(counted.items()):
        yield {"software": program.name, "digest": program.digest, of_what: number}


def _meanings(unit: str, history: History, allowance: Allowance) -> dict[str, str]:
    """Say in a sentence each what the numbers mean that a certificate states."""
    zero_out = any(event.relation is NeighbouringRelation.ZERO_OUT for event in history)
    without = "with one that says nothing in its place" if zero_out else "without it"
    when = "It was changed, as is listed" if allowance.deliberate else "It was promised beforehand"
    kept = (
        f"{when}; the {allowance.filter} filter grants nothing beyond it, over all runs on this ledger. What the "
        "client's own book counts more is charged even beyond it."
    )
    return {
        "epsilon": f"Whatever is computed from all releases is at most e^ε times as likely "
        f"with a {unit} as {without}, but for a probability of δ; it is read by composing all "
        "releases (PLD accountant).",
        "delta": "The probability with which that bound may fail.",
        "budget": kept if allowance.budget.enforced else "None was set: losses are measured, and nobody is stopped.",
        "sampling_rate": f"The probability with which a {unit} is used in a step.",
        "noise_multiplier": f"The standard deviation of the noise, over the most by which one {unit} changes a sum.",
        "steps": "The number of noisy sums that were released, each of which was charged.",
        "by_rows": "The epsilon of a person who has so many records in the dataset, at the same delta.",
        "risks": f"The share of the {plural(unit)} that were used which an attacker finds at most.",
        "receipts": "The charges that the client's own signature confirms; one without it counts all the same.",
        "audits": "An attack has shown that a training with a run's settings can lose at least so much; what is stated "
        "beside it is for that training. A small number proves nothing.",
        "digest": "SHA-256 of the program's files: whoever has the same program computes the same digest.",
    }


def _risks(history: History, unit: str | None, delta: float) -> Iterator[Mapping[str, Any]]:
    """Yield what an attacker finds at most: of units and, where a person is no unit, of persons with several rows."""
    if unit is None or not history:
        return
    for rows in (1, *(ROWS if Unit.of(unit).rows == 1 else ())):
        if risk := _risk(frozenset(history.items()), delta, rows):
            for accused, found in zip(RATES, risk.found(RATES).tolist(), strict=True):
                yield {"rows": rows, "accused": accused, "found": found}


@lru_cache(maxsize=1024)
def _risk(executed: frozenset[tuple[Event, int]], delta: float, rows: int) -> Risk | None:
    """Return the risk of a person with so many rows; None: no theorem composes what was executed."""
    try:
        return Risk.of_history(person_history(dict(executed), rows), delta)
    except ValueError:
        return None


def _what_is_left(
    allowance: Allowance, history: History, charges: Mapping[ChargeKey, Charge]
) -> tuple[int | None, int | None, str | None]:
    """Return the steps of the last run, the number of further runs like it that the budget allows, and why none."""
    if not charges:
        return None, None, None
    newest = max(charges, key=lambda key: charges[key].entry)
    event = _step(charges[newest])
    steps = sum(c.steps for key, c in charges.items() if key.run_id == newest.run_id and _step(c) == event)
    if not allowance.budget.enforced:
        return steps, None, None
    if allowance.expired:
        return steps, 0, "The budget has expired: nothing is granted any more."
    kept = filter_of(allowance)
    left = more_runs(kept, history, event, steps)
    return steps, left, None if left else shortage(kept, history, event, steps)


def _step(charge: Charge) -> PoissonSampledGaussian:
    """Return the event of one step of a charge."""
    relation = NeighbouringRelation(charge.relation)
    return PoissonSampledGaussian(charge.sampling_rate, charge.noise_multiplier, relation)


def _allowance(written: WrittenAllowance) -> Allowance:
    epsilon = math.inf if written.epsilon is None else written.epsilon
    expires = datetime.datetime.fromisoformat(written.expires) if written.expires else None
    return Allowance(PrivacyBudget(epsilon, written.delta), written.filter, expires, written.deliberate)


def _receipts(ledger: Ledger, last: int) -> dict[str, Counter[Software]]:
    """Count the signed receipts in the journal up to an entry, by dataset and by the program that the client ran.

    `verify_ledger` has checked each.
    """
    found: dict[str, Counter[Software]] = {}
    with ledger.database.reading() as connection:
        for entry in read_entries(connection):
            fields = json.loads(entry.text)
            if entry.number <= last and fields["kind"] == "settlement" and fields["state"] == ChargeState.COMMITTED:
                for dataset_id, evidence in fields["receipts"].items():
                    if evidence:
                        said = json.loads(Evidence(*evidence).receipt)
                        program = Software.of(said["software"]) if "software" in said else _UNKNOWN
                        found.setdefault(dataset_id, Counter())[program] += 1
    return found


def _cost(history: History, delta: float, rows: int = 1) -> float:
    try:
        return pld.epsilon(person_history(history, rows), delta)
    except ValueError:  # mechanisms that no theorem composes
        return float("inf")


def _signed_bytes(fields: Mapping[str, Any]) -> bytes:
    return canonical(fields).encode()


def _asked_of(
    charges: Mapping[ChargeKey, Charge],
    questions: Mapping[Attempt, Sequence[QuestionKey]],
    replay: Replay,
    delta: float,
) -> Iterator[dict[str, Any]]:
    """Yield the questions that a dataset's charges were for.

    Args:
        charges: charges of the dataset that count.
        questions: questions of each attempt.
        replay: state after all entries of the journal.
        delta: delta of the dataset's budget.

    Yields:
        `question`, `at`, `event` and `epsilon`. Without an answer the last two are None: the journal holds the cost of
        all questions asked together, but not this question's share.
    """
    for charged, charge in charges.items():
        for key in questions.get(charged.of, ()):
            put, answer = replay.questions[key], replay.answers.get(AnswerKey(charged.dataset_id, *key))
            relation = NeighbouringRelation(charge.relation)
            event = PoissonSampledGaussian(1.0, answer.noise_multiplier, relation) if answer else None
            epsilon = finite_or_none(_epsilon(event, delta)) if event else None
            yield {"question": put.question, "at": put.at, "event": event and as_fields(event), "epsilon": epsilon}


@lru_cache(maxsize=1024)
def _epsilon(event: PoissonSampledGaussian, delta: float) -> float:
    """Compute the epsilon of one execution, cached: most datasets are asked the same, with the same noise."""
    return pld.epsilon({event: 1}, delta)
