"""What crosses between server and client: enrolment and the request for it, grant, receipt, refusal."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fedprivacy.accounting.calibration import MOST_NOISE
from fedprivacy.flower.wire.crossing import SignedMessage, WireMessage
from fedprivacy.guard import names_a_run
from fedprivacy.training.adaptive import ADAPTIVE, CLIPPINGS, QuantileClipping
from fedprivacy.training.mechanisms import SampledGaussianSum
from fedprivacy.training.optimizers import (
    LARGEST_LEARNING_RATE,
    LARGEST_WEIGHT_DECAY,
    OPTIMIZERS,
    Optimizer,
    build_optimizer,
)
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.event_codec import ROW
from fedprivacy.values.events import CLIPPING_NORMS, NeighbouringRelation, PoissonSampledGaussian

GRANT = "fedprivacy.grant"
RECEIPT = "fedprivacy.receipt"
ENROLMENT_REQUEST = "fedprivacy.enrolment-request"
ENROLMENT = "fedprivacy.enrolment"
REFUSAL = "fedprivacy.refusal"
ENROL = "query.enrol"
"""Names of the records in a message, and the message type that asks a client who it is."""


class RefusalCode(enum.StrEnum):
    """Why a client sends no update: one of these constants crosses, never a text."""

    BUDGET_EXHAUSTED = "budget-exhausted"
    GRANT_INVALID = "grant-invalid"
    SEED_IN_DEPLOYMENT = "seed-in-deployment"
    NO_GUARD = "no-guard"
    GUARD_UNUSABLE = "guard-unusable"
    NO_KEY = "no-key"
    NODE_CONFIG_INVALID = "node-config-invalid"
    TASK_NOT_ALLOWED = "task-not-allowed"
    ENROLMENT_INVALID = "enrolment-invalid"
    ALREADY_CHARGED = "already-charged"
    CLIENT_FAILED = "client-failed"

    @property
    def before_any_record(self) -> bool:
        """Whether the client refused before it touched a record, so that nothing was spent."""
        return self not in (RefusalCode.ALREADY_CHARGED, RefusalCode.CLIENT_FAILED)


EXPECTED_BATCH_SIZES = (1e-9, 1e19)
"""Smallest and largest divisor of a noisy sum: the smallest sampling rate of one record, and all of very many."""

LONGEST_CLIENT_ID = 1024
"""Characters of a client's name."""


@dataclass(frozen=True, slots=True)
class EnrolmentRequest(SignedMessage):
    """The server asks a deployed client who it is. In a simulation nobody signs, and the record is missing.

    Attributes:
        run_id: Flower's number of the run, in decimal: a request is of no use in another run.
        client_key: hash of the key under which the client is registered: a request is of no use at another client.
        signature: with the server's key.
    """

    run_id: str
    client_key: str
    signature: str


@dataclass(frozen=True, slots=True)
class Grant(SignedMessage):
    """What the server allows a client to spend in a round, with everything that local training needs to know.

    What a client does with each field is in `docs/explanation/server-fields.md`.

    Attributes:
        run_id: the run.
        client_id: who the grant is for.
        round: the round.
        attempt: at this round, counted from 1: a client trains once for each, and can send what it sealed again.
        steps: local steps, >= 1.
        sampling_rate: q of each step.
        noise_multiplier: sigma of each step.
        relation: neighbouring relation of the guarantee.
        clipping_norm: C.
        clipping: how a record's gradient is bounded by C, one of `CLIPPINGS`.
        expected_batch_size: public divisor of the noisy sum.
        optimizer: sgd, adam or adamw.
        learning_rate: step size.
        momentum: in [0, 1); of sgd.
        weight_decay: of sgd and adamw.
        earlier_runs: runs that the ledger held before this one. A seeded client draws other noise in each.
        charged: what the ledger holds against the client, over all runs, this grant included: see `history_text`. Empty
            in a simulation.
        server_key: public key of the server that grants, Ed25519 in hexadecimal; empty in a simulation.
        signature: with that key.
    """

    run_id: str
    client_id: str
    round: int
    attempt: int
    steps: int
    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation
    clipping_norm: float
    clipping: str
    expected_batch_size: float
    optimizer: str
    learning_rate: float
    momentum: float
    weight_decay: float
    earlier_runs: int
    charged: str
    server_key: str
    signature: str

    def __post_init__(self) -> None:
        if min(self.steps, self.round, self.attempt) < 1 or self.earlier_runs < 0:
            raise ValueError("round, attempt and steps count from 1, earlier_runs from 0.")
        if not names_a_run(self.run_id) or len(self.client_id) > LONGEST_CLIENT_ID:
            raise ValueError("run_id or client_id is too long, or run_id is not printable.")
        if not self.noise_multiplier <= MOST_NOISE:
            raise ValueError(f"noise_multiplier is {self.noise_multiplier}; it must be at most {MOST_NOISE:g}.")
        low, high = EXPECTED_BATCH_SIZES
        if not low <= self.expected_batch_size <= high:
            raise ValueError(f"expected_batch_size is {self.expected_batch_size}; it must be from {low:g} to {high:g}.")
        if not 0.0 < self.learning_rate <= LARGEST_LEARNING_RATE:
            raise ValueError(f"learning_rate is {self.learning_rate}; it must be in (0, {LARGEST_LEARNING_RATE:g}].")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum is {self.momentum}; it must be in [0, 1).")
        if self.clipping not in CLIPPINGS or self.optimizer not in OPTIMIZERS:
            raise ValueError(f"clipping must be one of {', '.join(CLIPPINGS)}, optimizer of {', '.join(OPTIMIZERS)}.")
        if not 0.0 <= self.weight_decay <= LARGEST_WEIGHT_DECAY:
            raise ValueError(f"weight_decay is {self.weight_decay}; it must be from 0 to {LARGEST_WEIGHT_DECAY:g}.")
        _ = self.mechanism, self.local_optimizer
        if self.adaptive is not None:  # the mechanism's own norm is larger than C, by the count's share
            _ = SampledGaussianSum(self.event, self.adaptive.sensitivity(self.clipping_norm))

    @property
    def charged_as(self) -> Attempt:
        """What its steps are charged for."""
        return Attempt(self.run_id, self.round, self.attempt)

    @property
    def event(self) -> PoissonSampledGaussian:
        """What each step costs."""
        return PoissonSampledGaussian(self.sampling_rate, self.noise_multiplier, self.relation)

    @property
    def mechanism(self) -> SampledGaussianSum:
        """What each step runs."""
        return SampledGaussianSum(self.event, self.clipping_norm)

    @property
    def adaptive(self) -> QuantileClipping | None:
        """What moves the clipping norm from step to step; None: it stays."""
        return ADAPTIVE[self.clipping]() if self.clipping in ADAPTIVE else None

    @property
    def local_optimizer(self) -> Optimizer:
        """What moves the parameters in each step."""
        return build_optimizer(
            self.optimizer, self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, slots=True)
class Receipt(SignedMessage):
    """What a client says that it spent: the steps and events that its mechanism executed.

    Attributes:
        run_id: the run.
        client_id: who spent, as the grant calls it.
        round: the round.
        attempt: at this round.
        steps: local steps that were executed.
        sampling_rate: q of each.
        noise_multiplier: sigma of each.
        relation: neighbouring relation of the guarantee.
        clipping_norm: that the next step would have: another one than the grant's only with adaptive clipping. It came
            out of the mechanism, too.
        update: digest of the update beside this receipt, see `release.digest`; empty in a simulation.
        signature: with the key under which the client is registered.
    """

    run_id: str
    client_id: str
    round: int
    attempt: int
    steps: int
    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation
    clipping_norm: float
    update: str
    signature: str

    def __post_init__(self) -> None:
        low, high = CLIPPING_NORMS
        if not low <= self.clipping_norm <= high:
            raise ValueError(f"clipping_norm is {self.clipping_norm}; it must be from {low:g} to {high:g}.")

    def matches(self, grant: Grant) -> bool:
        """Whether it states what was granted, field by field of those that both have."""
        return all(getattr(self, name) == getattr(grant, name) for name in _GRANTED)


_GRANTED = (*Attempt._fields, "client_id", "steps", *ROW)


@dataclass(frozen=True, slots=True)
class Enrolment(WireMessage):
    """What a client says of itself before its first round.

    Attributes:
        client_id: its name in a simulation; in a deployment the registered name or key counts instead.
        shard_size: number of records if the task declares it public, else 0.
        num_partitions: into how many parts a simulation splits the records; 0 in a deployment.
        spent: what its own guard holds, by run: see `claims_text`. Empty in a simulation.
    """

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
    """A client's no: a constant code."""

    code: RefusalCode
