"""Records in messages between server and clients: enrolment and the request for it, grants, receipt, refusal.

Each travels as one Flower `ConfigRecord`: flat, typed, versioned, strictly parsed. A record with a missing, unknown or
ill-typed field, or another version, is refused as a whole.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self, cast, get_origin, get_type_hints

from flwr.app import ConfigRecord, Message

from fedprivacy._support import signing
from fedprivacy._support.software import Software
from fedprivacy.accounting.calibration import MOST_NOISE
from fedprivacy.guard import names_a_run
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.lattice_noise import LARGEST_SUM
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.tasks.augmentation import LARGEST_MULTIPLICITY
from fedprivacy.training.adaptive import ADAPTIVE, CLIPPINGS, QuantileClipping
from fedprivacy.training.algorithms import Algorithm, algorithm_of
from fedprivacy.training.optimizers import (
    LARGEST_LEARNING_RATE,
    LARGEST_WEIGHT_DECAY,
    OPTIMIZERS,
    Optimizer,
    build_optimizer,
)
from fedprivacy.values.attempt import QUESTIONS, Attempt
from fedprivacy.values.events import CLIPPING_NORMS, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.metrics import MOST_SCORES
from fedprivacy.values.spent import REASONS

GRANT = "fedprivacy.grant"
QUESTION_GRANT = "fedprivacy.question-grant"
RECEIPT = "fedprivacy.receipt"
ENROLMENT_REQUEST = "fedprivacy.enrolment-request"
ENROLMENT = "fedprivacy.enrolment"
REFUSAL = "fedprivacy.refusal"
ENROL = "query.enrol"
ASK = "query.ask"
"""Names of the records in a message; the message types that ask a client who it is, and about its records."""

VERSION = 9
"""Version of every record: server and clients must use the same."""


class RefusalCode(enum.StrEnum):
    """The reason why a client sends no update: one of these constants is sent, never a text.

    `REASONS` has the words, the remedy and the charge of each.
    """

    BUDGET_EXHAUSTED = "budget-exhausted"
    GRANT_INVALID = "grant-invalid"
    SEED_IN_DEPLOYMENT = "seed-in-deployment"
    NO_GUARD = "no-guard"
    GUARD_UNUSABLE = "guard-unusable"
    NO_ROOM = "no-room"
    NO_MEMORY = "no-memory"
    NO_KEY = "no-key"
    NODE_CONFIG_INVALID = "node-config-invalid"
    TASK_NOT_ALLOWED = "task-not-allowed"
    QUESTION_NOT_ALLOWED = "question-not-allowed"
    QUESTIONS_EXHAUSTED = "questions-exhausted"
    ENROLMENT_INVALID = "enrolment-invalid"
    ALREADY_CHARGED = "already-charged"
    CLIENT_FAILED = "client-failed"

    @property
    def before_any_record(self) -> bool:
        """Tell whether the client refused before it touched a record, so that nothing was spent."""
        return REASONS[self].refused


_EXPECTED_BATCH_SIZES = (1e-9, 1e19)
"""Smallest and largest divisor of a noisy sum: the smallest sampling rate of one record, and all of very many."""

LONGEST_CLIENT_ID = 1024
"""Maximum number of characters of a client's name."""

_MOST_SUMS = 1 + MOST_SCORES
"""Maximum number of noisy sums of a local evaluation: a count, and scores."""


class MessageError(ValueError):
    """A record on the wire is invalid."""


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A flat dataclass of scalars that travels as a ConfigRecord."""

    name = ""  # of the record in a message
    optional: ClassVar[frozenset[str]] = frozenset()  # texts that are left out where they are empty

    def to_record(self) -> ConfigRecord:
        """The record to put in a message."""
        record = ConfigRecord({"version": VERSION})
        for name in _kinds(cast(type, type(self))):
            value = getattr(self, name)
            if name in self.optional and not value:
                continue
            record[name] = str(value) if isinstance(value, enum.Enum) else value
        return record

    @classmethod
    def of(cls, message: Message) -> Self:
        """Parse strictly the record in a message; raises a `MessageError` if there is none."""
        record = message.content.get(cls.name) if message.has_content() else None
        return cls.from_record(record if isinstance(record, ConfigRecord) else ConfigRecord())

    @classmethod
    def from_record(cls, record: ConfigRecord) -> Self:
        """Parse strictly.

        Raises:
            MessageError: another version, a missing or unknown field, a wrong type or an impossible value.
        """
        fields = _kinds(cast(type, cls))
        values = dict(record)
        if values.pop("version", None) != VERSION:
            raise MessageError(f"{cls.__name__} is not of version {VERSION}; update server and clients together.")
        lacking, more = sorted(fields.keys() - values.keys() - cls.optional), len(values.keys() - fields.keys())
        if lacking or more:
            raise MessageError(f"{cls.__name__} lacks {', '.join(lacking) or 'nothing'} and has {more} unknown fields.")
        try:
            return cls(**{name: _parse_field(values[name], kind) for name, kind in fields.items() if name in values})
        except ValueError as error:
            raise MessageError(f"{cls.__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class SignedMessage(WireMessage):
    """A wire record with a field `signature`, in hexadecimal; empty in a simulation."""

    purpose = ""  # of the signature, in the words of `signing`

    def signed_bytes(self) -> bytes:
        """The bytes that the signature covers: every other field, by name."""
        fields = dict(self.to_record())
        del fields["signature"]
        return json.dumps(fields, sort_keys=True).encode()

    def sign(self, key: signing.PrivateKey) -> Self:
        """The same, with the signature of this key's holder."""
        return dataclasses.replace(self, **{"signature": signing.sign(key, self.purpose, self.signed_bytes())})


@cache
def _kinds(record: type) -> dict[str, type]:
    """The type of every field of a wire record's class."""
    return {name: kind for name, kind in get_type_hints(record).items() if get_origin(kind) is not ClassVar}


def _parse_field(value: object, kind: type) -> object:
    """The value as a field of type `kind`; nothing is converted but a string into its enum."""
    crosses = str if issubclass(kind, enum.Enum) else kind
    if type(value) is not crosses:
        raise ValueError(f"a value is a {type(value).__name__}; expected {crosses.__name__}.")
    return value if crosses is kind else kind(value)


@dataclass(frozen=True, slots=True)
class EnrolmentRequest(SignedMessage):
    """The server asks a deployed client who it is. In a simulation nobody signs, and the record is missing.

    Attributes:
        run_id: Flower's number of the run, in decimal: a request is of no use in another run.
        client_key: hash of the client's registered key: a request is of no use at another client.
        signature: with the server's key.
    """

    name, purpose = ENROLMENT_REQUEST, signing.ENROLMENT
    run_id: str
    client_key: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class SpendingMessage(SignedMessage):
    """The spending that a grant allows and its receipt confirms.

    Attributes:
        run_id: the run's name in the server's ledger.
        round: round of the run, counted from 1.
        client_id: the client that may spend.
        attempt: attempt at this round, counted from 1: a client trains once for each, and can send its sealed update
            again.
        steps: local steps, >= 1.
        sampling_rate: q of each step.
        noise_multiplier: sigma of each step.
        relation: neighbouring relation of the guarantee.
        unit: unit of privacy of the guarantee, as `str(Unit)` writes it.
        clipping_norm: C. In a receipt, the norm that the next step would have: it differs from the grant's only with
            adaptive clipping, and then it came out of the mechanism, too.
    """

    run_id: str
    client_id: str
    round: int
    attempt: int
    steps: int
    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation
    unit: str
    clipping_norm: float

    @property
    def charged_as(self) -> Attempt:
        """The attempt that the steps are charged for."""
        return Attempt(self.run_id, self.round, self.attempt)

    @property
    def event(self) -> PoissonSampledGaussian:
        """The event that each step costs."""
        return PoissonSampledGaussian(self.sampling_rate, self.noise_multiplier, self.relation)

    @property
    def evaluates(self) -> bool:
        """Tell whether one of the steps releases a local evaluation."""
        return False

    def _check_names(self) -> None:
        """Refuse names and numbers that no account book can hold."""
        if min(self.steps, self.round, self.attempt) < 1:
            raise ValueError("round, attempt and steps count from 1.")
        if not names_a_run(self.run_id) or len(self.client_id) > LONGEST_CLIENT_ID:
            raise ValueError("run_id or client_id is too long, or run_id is not printable.")
        if not self.noise_multiplier <= MOST_NOISE:
            raise ValueError(f"noise_multiplier is {self.noise_multiplier}; it must be at most {MOST_NOISE:g}.")


def spending(
    attempt: Attempt, client_id: str, steps: int, event: PoissonSampledGaussian, *, unit: str, clipping_norm: float
) -> dict[str, Any]:
    """The fields of a `SpendingMessage`, for any kind of it."""
    return {
        **attempt._asdict(),
        "client_id": client_id,
        "steps": steps,
        "sampling_rate": event.sampling_rate,
        "noise_multiplier": event.noise_multiplier,
        "relation": event.relation,
        "unit": unit,
        "clipping_norm": clipping_norm,
    }


@dataclass(frozen=True, slots=True)
class Grant(SpendingMessage):
    """The spending that the server allows a client in a round, with all numbers that local training needs.

    `docs/explanation/server-fields.md` describes the client's use of each field.

    Attributes:
        clipping: the rule that bounds a record's gradient by C, one of `CLIPPINGS`.
        expected_batch_size: public divisor of the noisy sum.
        optimizer, learning_rate, momentum, weight_decay: settings of the optimizer; see `local_optimizer`.
        algorithm: the federated algorithm with its settings, see `fedprivacy.training.algorithms.text_of`.
        augmentation_multiplicity: views of each record that the gradients are averaged over; 0: the record as it is.
        local_evaluation: whether the last of the steps evaluates the client's model instead of training it.
        earlier_runs: runs that the ledger held before this one. A seeded client draws other noise in each.
        charged: the ledger's charges to the client, over all runs, this grant included: see `history_text`. Empty in a
            simulation.
        server_key: public key of the server that grants, Ed25519 in hexadecimal; empty in a simulation.
        signature: the server's signature with that key.
    """

    name, purpose = GRANT, signing.GRANT
    clipping: str
    expected_batch_size: float
    optimizer: str
    learning_rate: float
    momentum: float
    weight_decay: float
    algorithm: str
    augmentation_multiplicity: int
    local_evaluation: bool
    earlier_runs: int
    charged: str
    server_key: str
    signature: str = ""

    def __post_init__(self) -> None:
        self._check_names()
        if self.earlier_runs < 0 or self.charged_as.asks:
            raise ValueError("earlier_runs counts from 0, and a run that trains has another name than one that asks.")
        if self.training_steps < 1:
            raise ValueError(f"steps is {self.steps} with a local evaluation, which is one; it must be at least 2.")
        low, high = _EXPECTED_BATCH_SIZES
        if not low <= self.expected_batch_size <= high:
            raise ValueError(f"expected_batch_size is {self.expected_batch_size}; it must be from {low:g} to {high:g}.")
        if not 0.0 < self.learning_rate <= LARGEST_LEARNING_RATE:
            raise ValueError(f"learning_rate is {self.learning_rate}; it must be in (0, {LARGEST_LEARNING_RATE:g}].")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum is {self.momentum}; it must be in [0, 1).")
        if self.clipping not in CLIPPINGS or self.optimizer not in OPTIMIZERS:
            raise ValueError(f"clipping must be one of {', '.join(CLIPPINGS)}, optimizer of {', '.join(OPTIMIZERS)}.")
        if not 0 <= self.augmentation_multiplicity <= LARGEST_MULTIPLICITY:
            multiplicity = self.augmentation_multiplicity
            raise ValueError(f"augmentation_multiplicity is {multiplicity}; it must be at most {LARGEST_MULTIPLICITY}.")
        if not 0.0 <= self.weight_decay <= LARGEST_WEIGHT_DECAY:
            raise ValueError(f"weight_decay is {self.weight_decay}; it must be from 0 to {LARGEST_WEIGHT_DECAY:g}.")
        _ = self.mechanism, self.local_optimizer, self.local_algorithm
        if self.adaptive is not None:  # the mechanism's own norm is larger than C, by the count's share
            _ = SampledGaussianSum(self.event, self.adaptive.sensitivity(self.clipping_norm))

    @property
    def evaluates(self) -> bool:
        """Tell whether the last step evaluates."""
        return self.local_evaluation

    @property
    def training_steps(self) -> int:
        """The number of steps that train."""
        return self.steps - self.local_evaluation

    @property
    def mechanism(self) -> SampledGaussianSum:
        """The mechanism that each training step runs."""
        return SampledGaussianSum(self.event, self.clipping_norm)

    @property
    def adaptive(self) -> QuantileClipping | None:
        """The rule that moves the clipping norm from step to step; None: the norm stays."""
        return ADAPTIVE[self.clipping]() if self.clipping in ADAPTIVE else None

    @property
    def local_algorithm(self) -> Algorithm:
        """The federated algorithm."""
        return algorithm_of(self.algorithm)

    @property
    def local_optimizer(self) -> Optimizer:
        """The optimizer that moves the parameters in each step."""
        return build_optimizer(
            self.optimizer, self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, slots=True)
class QuestionGrant(SpendingMessage):
    """The spending that the server allows a client for answers: one step, which releases totals over all its records.

    Its clipping norm is 1: totals are in units of their own sensitivity.

    Attributes:
        questions: the text of a `Questionnaire`.
        earlier_runs, charged, server_key, signature: as in `Grant`.
    """

    name, purpose = QUESTION_GRANT, signing.QUESTIONS
    questions: str
    earlier_runs: int
    charged: str
    server_key: str
    signature: str = ""

    def __post_init__(self) -> None:
        self._check_names()
        if (self.steps, self.sampling_rate, self.clipping_norm) != (1, 1.0, 1.0) or self.earlier_runs < 0:
            raise ValueError("questions are one step of sampling rate 1 and clipping norm 1; earlier_runs is from 0.")
        if not self.charged_as.asks:
            raise ValueError(f"run_id is '{self.run_id[:40]}'; a run that asks begins with {QUESTIONS}.")
        _ = self.questionnaire, self.event

    @property
    def questionnaire(self) -> Questionnaire:
        return Questionnaire.from_text(self.questions)


@dataclass(frozen=True, slots=True)
class Receipt(SpendingMessage):
    """A client's statement of its spending: the steps and events that its mechanism executed.

    Attributes:
        update: digest of the update beside this receipt, see `release.digest`; empty in a simulation.
        evaluation: the noisy sums of the local evaluation, as JSON; empty if none was granted.
        signature: the client's signature with its registered key.
        software: the program that the client ran, as `str(Software)` writes it; empty in a simulation.
    """

    name, purpose = RECEIPT, signing.RECEIPT
    optional = frozenset({"software"})
    update: str
    evaluation: str = ""
    signature: str = ""
    software: str = ""

    def __post_init__(self) -> None:
        if self.software:
            _ = Software.of(self.software)
        low, high = CLIPPING_NORMS
        if not low <= self.clipping_norm <= high:
            raise ValueError(f"clipping_norm is {self.clipping_norm}; it must be from {low:g} to {high:g}.")
        if not len(self.noisy_sums) <= _MOST_SUMS or not all(abs(value) <= LARGEST_SUM for value in self.noisy_sums):
            raise ValueError(f"evaluation must be at most {_MOST_SUMS} numbers, none beyond {LARGEST_SUM:g}.")

    @property
    def noisy_sums(self) -> tuple[float, ...]:
        """The noisy sums that the local evaluation released; empty: there was none."""
        try:
            sums = json.loads(self.evaluation or "[]")
        except RecursionError as error:
            raise ValueError("evaluation is lists in lists.") from error
        if not isinstance(sums, list) or not all(type(value) is float for value in sums):
            raise ValueError("evaluation must be a list of numbers.")
        return tuple(sums)

    def matches(self, grant: SpendingMessage) -> bool:
        """Tell whether the receipt states the grant, except for the clipping norm, which may have moved."""
        granted = (field.name for field in dataclasses.fields(SpendingMessage) if field.name != "clipping_norm")
        evaluated = bool(self.noisy_sums) == grant.evaluates
        return evaluated and all(getattr(self, name) == getattr(grant, name) for name in granted)


@dataclass(frozen=True, slots=True)
class Enrolment(WireMessage):
    """The facts that a client states about itself before its first round.

    Attributes:
        client_id: its name in a simulation; in a deployment the registered name or key counts instead.
        shard_size: number of records if the task declares it public, else 0.
        num_partitions: number of parts into which a simulation splits the records; 0 in a deployment.
        spent: the charges and corrections in its own guard, by run: see `claims_text`. Empty in a simulation.
    """

    name = ENROLMENT
    client_id: str
    shard_size: int
    num_partitions: int
    spent: str

    def __post_init__(self) -> None:
        if self.shard_size < 0 or self.num_partitions < 0:
            raise ValueError(
                f"shard_size is {self.shard_size} and num_partitions {self.num_partitions}; none is negative."
            )


@dataclass(frozen=True, slots=True)
class Refusal(WireMessage):
    """A client's refusal: a constant code."""

    name = REFUSAL
    code: RefusalCode
