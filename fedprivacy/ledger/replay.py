"""Replay of a journal: its entries, applied in memory, with the rules that every entry must keep.

| kind | meaning |
|---|---|
| `run` | a run began |
| `key` | a client was bound to a public key |
| `budget` | datasets were given their budgets, by their first run or, with a reason, by somebody's act |
| `charge` | steps were reserved for the clients of a round |
| `settlement` | receipts came (committed), or clients refused before they read a record (void) |
| `reconciliation` | a client's own figure, beside the ledger's; what it has more is charged |
| `answer` | clients answered questions that they were charged for: the questions, and digests of the answers |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedprivacy._support.software import Software
from fedprivacy.ledger.schema import ChargeState
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian, from_row


class BrokenJournalError(ValueError):
    """An entry contradicts the entries before it; the error names it and the reason."""


class ChargeKey(NamedTuple):
    """Key of a charge: its dataset, and the fields of its `Attempt`."""

    dataset_id: str
    run_id: str
    round: int
    attempt: int

    @property
    def of(self) -> Attempt:
        """The attempt."""
        return Attempt(self.run_id, self.round, self.attempt)


class Charge(NamedTuple):
    """Steps of an event, charged by an entry of the journal for one view, with their state."""

    entry: int
    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation
    view: str
    steps: int
    state: ChargeState

    @classmethod
    def of(cls, entry: int, event: PoissonSampledGaussian, view: str, steps: int, state: ChargeState) -> Charge:
        """Make the charge of an entry for an event."""
        return cls(entry, event.sampling_rate, event.noise_multiplier, event.relation, view, steps, state)


class Evidence(NamedTuple):
    """A receipt that its client signed; every reader of the journal can check it.

    Attributes:
        receipt: signed text, JSON.
        signature: signature in hexadecimal.
        public_key: public key of the client, in PEM; the journal holds its hash.
    """

    receipt: str
    signature: str
    public_key: str


class BegunRun(NamedTuple):
    """A run that an entry began: its records, their split, and its unit of privacy."""

    entry: int
    dataset: str
    partition: str
    unit: str


class WrittenAllowance(NamedTuple):
    """An `Allowance` as the journal writes it: epsilon None means no bound, and the date is in ISO 8601."""

    epsilon: float | None
    delta: float
    filter: str
    expires: str | None
    deliberate: bool


class Mechanism(NamedTuple):
    """Key of a balance: a dataset and an event."""

    dataset_id: str
    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation


class QuestionKey(NamedTuple):
    """Key of a question: the fields of its `Attempt`, and its place among the questions asked together."""

    run_id: str
    round: int
    attempt: int
    number: int


class WrittenQuestion(NamedTuple):
    """A question as the entry with its first answer states it, with the time of that entry, in ISO 8601."""

    entry: int
    at: str
    question: str


class AnswerKey(NamedTuple):
    """Key of an answer: its dataset, and the key of its question."""

    dataset_id: str
    run_id: str
    round: int
    attempt: int
    number: int


class WrittenAnswer(NamedTuple):
    """An answer as an entry holds it: the noise multiplier of the question alone, and the digest of the totals."""

    entry: int
    noise_multiplier: float
    digest: str


class Given(NamedTuple):
    """An answer with its question, as its entry holds them."""

    number: int
    question: str
    noise_multiplier: float
    digest: str


def given_by(dataset_id: str, entry: Mapping[str, Any]) -> Iterator[Given]:
    """Yield the answers of a dataset in an entry of the kind `answer`.

    Raises:
        KeyError: the entry holds none.
        ValueError, TypeError, IndexError: the entry is invalid.
    """
    for which, digest in entry["answers"][dataset_id]:
        number, question, noise_multiplier = entry["questions"][which]
        yield Given(number, question, noise_multiplier, digest)


@dataclass(slots=True)
class Replay:
    """The state after the entries so far: runs by run_id, and the program with which the server began each; the hash of
    each client's key; budgets by dataset_id.
    """

    runs: dict[str, BegunRun] = field(default_factory=dict)
    software: dict[str, Software] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    budgets: dict[str, WrittenAllowance] = field(default_factory=dict)
    charges: dict[ChargeKey, Charge] = field(default_factory=dict)
    questions: dict[QuestionKey, WrittenQuestion] = field(default_factory=dict)
    answers: dict[AnswerKey, WrittenAnswer] = field(default_factory=dict)

    def enter(self, number: int, entry: dict[str, Any]) -> None:
        """Replay one entry.

        Raises:
            BrokenJournalError: its kind is unknown, a field is missing, or it contradicts the entries before it.
        """
        kind = entry.get("kind")
        try:
            _KINDS[str(kind)](self, number, entry)
        except KeyError as problem:
            raise BrokenJournalError(f"entry {number} ({kind}) lacks {problem}") from problem
        except (TypeError, ValueError, AttributeError, IndexError) as problem:
            raise BrokenJournalError(f"entry {number} ({kind}): {problem}") from problem

    def balances(self) -> dict[Mechanism, tuple[int, int]]:
        """Return steps and number of charges that are not void, by mechanism."""
        sums: dict[Mechanism, tuple[int, int]] = {}
        for key, charge in self.charges.items():
            if charge.state is not ChargeState.VOID:
                mechanism = Mechanism(key.dataset_id, charge.sampling_rate, charge.noise_multiplier, charge.relation)
                steps, count = sums.get(mechanism, (0, 0))
                sums[mechanism] = (steps + charge.steps, count + 1)
        return sums

    def _run(self, number: int, entry: dict[str, Any]) -> None:
        if entry["run_id"] in self.runs:
            raise ValueError(f"run {entry['run_id']} began before")
        self.runs[entry["run_id"]] = BegunRun(number, entry["dataset"], entry["partition"], entry["unit"])
        self.software[entry["run_id"]] = Software(*entry["software"])

    def _key(self, _: int, entry: dict[str, Any]) -> None:
        self.keys[entry["client_id"]] = entry["key_hash"]

    def _budget(self, _: int, entry: dict[str, Any]) -> None:
        deliberate = "reason" in entry
        for dataset, (epsilon, delta, filter, expires) in entry["budgets"].items():
            self.budgets[dataset] = WrittenAllowance(epsilon, delta, filter, expires, deliberate)

    def _charge(self, number: int, entry: dict[str, Any]) -> None:
        attempt, view = Attempt.named_in(entry), entry["view"]
        events = [from_row(row) for row in entry["events"]]
        alike: dict[tuple[int, int], Charge] = {}  # most datasets of a round have the same charge
        for dataset, (event, steps) in entry["charges"].items():
            if (event, steps) not in alike:
                alike[event, steps] = Charge.of(number, events[event], view, steps, ChargeState.RESERVED)
            self._add(ChargeKey(dataset, *attempt), alike[event, steps])

    def _settlement(self, _: int, entry: dict[str, Any]) -> None:
        state, attempt = ChargeState(entry["state"]), Attempt.named_in(entry)
        before: Charge | None = None
        for dataset in entry["receipts"]:
            key = ChargeKey(dataset, *attempt)
            charge = self.charges[key]
            if charge is not before:  # mostly it is the same: see `_charge`
                if charge.state not in SETTLES[state]:
                    raise ValueError(f"a {charge.state} charge of {dataset} cannot become {state}")
                before, settled = charge, charge._replace(state=state)
            self.charges[key] = settled

    def _reconciliation(self, number: int, entry: dict[str, Any]) -> None:
        more = entry["client_steps"] - entry["server_steps"]
        if more > 0:
            charge = Charge.of(number, from_row(entry["event"]), entry["view"], more, ChargeState.COMMITTED)
            self._add(ChargeKey(entry["dataset_id"], entry["run_id"], 0, entry["attempt"]), charge)

    def _answer(self, number: int, entry: dict[str, Any]) -> None:
        attempt, at = Attempt.named_in(entry), entry["at"]
        for dataset in entry["answers"]:
            charge = self.charges[ChargeKey(dataset, *attempt)]
            if charge.state is not ChargeState.COMMITTED:
                raise ValueError(f"a {charge.state} charge of {dataset} cannot have an answer")
            for given in given_by(dataset, entry):
                asked = WrittenQuestion(number, at, given.question)
                if self.questions.setdefault(QuestionKey(*attempt, given.number), asked).question != given.question:
                    raise ValueError(f"question {given.number} was another before")
                key = AnswerKey(dataset, *attempt, given.number)
                if key in self.answers:
                    raise ValueError(f"{dataset} answered question {given.number} before")
                self.answers[key] = WrittenAnswer(number, given.noise_multiplier, given.digest)

    def _add(self, key: ChargeKey, charge: Charge) -> None:
        if key in self.charges:
            raise ValueError(f"{key.dataset_id} was charged before for round {key.round}, attempt {key.attempt}")
        if key.dataset_id not in self.budgets:
            raise ValueError(f"{key.dataset_id} has no budget")
        if charge.steps < 1:
            raise ValueError(f"{key.dataset_id} is charged {charge.steps} steps")
        self.charges[key] = charge


_KINDS: dict[str, Callable[[Replay, int, dict[str, Any]], None]] = {
    "run": Replay._run,
    "key": Replay._key,
    "budget": Replay._budget,
    "charge": Replay._charge,
    "settlement": Replay._settlement,
    "reconciliation": Replay._reconciliation,
    "answer": Replay._answer,
}

SETTLES = {
    ChargeState.RESERVED: (),
    ChargeState.COMMITTED: (ChargeState.RESERVED, ChargeState.VOID),
    ChargeState.VOID: (ChargeState.RESERVED,),
}
"""States from which a settlement may change a charge to each state.

A receipt that arrives after a refusal counts: no release may be left out, even if the steps were granted again
meanwhile.
A committed charge never changes; an answer, which only a committed charge has, is paid for.
"""
