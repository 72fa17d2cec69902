"""Grant and receipt on the wire: typed, versioned, strictly parsed.

Each travels as one Flower `ConfigRecord`. A record with a missing, unknown or ill-typed field, or another version, is
refused as a whole.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass
from typing import Self

from flwr.app import ConfigRecord

from fedprivacy.config import CLIPPINGS
from fedprivacy.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.mechanisms import SampledGaussianSum
from fedprivacy.optimizers import Optimizer, build_optimizer

VERSION = 2

GRANT = "fedprivacy.grant"
RECEIPT = "fedprivacy.receipt"
ENROLMENT = "fedprivacy.enrolment"
REFUSAL = "fedprivacy.refusal"
ENROL = "query.enrol"
"""Names of the records in a message, and the message type that asks a client who it is."""


class RecordError(ValueError):
    """A record on the wire that is not what it should be."""


class RefusalCode(enum.StrEnum):
    """Why a client sends no update: one of these constants crosses, never a text."""

    BUDGET_EXHAUSTED = "budget-exhausted"
    GRANT_INVALID = "grant-invalid"
    SEED_IN_DEPLOYMENT = "seed-in-deployment"
    NO_ODOMETER = "no-odometer"
    CLIENT_FAILED = "client-failed"

    @property
    def before_any_record(self) -> bool:
        """Whether the client refused before it touched a record, so that nothing was spent."""
        return self is not RefusalCode.CLIENT_FAILED


@dataclass(frozen=True, slots=True)
class _WireRecord:
    """A flat dataclass of scalars that travels as a ConfigRecord."""

    def to_record(self) -> ConfigRecord:
        """The record to put in a message."""
        record = ConfigRecord({"version": VERSION})
        for name, value in dataclasses.asdict(self).items():
            record[name] = str(value) if isinstance(value, enum.Enum) else value
        return record

    @classmethod
    def from_record(cls, record: ConfigRecord) -> Self:
        """Parse strictly.

        Raises:
            RecordError: another version, a missing or unknown field, a wrong type or an impossible value.
        """
        fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        values = dict(record)
        if values.pop("version", None) != VERSION:
            raise RecordError(f"{cls.__name__} has another version than {VERSION}; update server and clients together.")
        if values.keys() != fields.keys():
            raise RecordError(f"{cls.__name__} has fields {sorted(values)}; expected {sorted(fields)}.")
        try:
            return cls(**{name: _parsed(values[name], kind) for name, kind in fields.items()})
        except ValueError as error:
            raise RecordError(f"{cls.__name__}: {error}") from error


def _parsed(value: object, kind: str) -> object:
    """The value as a field of type `kind`; nothing is converted but a string into its enum."""
    expected = "str" if kind in _ENUMS else kind
    if type(value).__name__ != expected:
        raise ValueError(f"a value is a {type(value).__name__}; expected {expected}.")
    return _ENUMS[kind](str(value)) if kind in _ENUMS else value


_ENUMS: dict[str, type[enum.StrEnum]] = {"NeighbouringRelation": NeighbouringRelation, "RefusalCode": RefusalCode}
"""Types that cross as their string."""


@dataclass(frozen=True, slots=True)
class Grant(_WireRecord):
    """What the server allows a client to spend in a round, with everything that local training needs to know.

    Attributes:
        run_id: the run.
        client_id: who the grant is for.
        round: the round.
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
    """

    run_id: str
    client_id: str
    round: int
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

    def __post_init__(self) -> None:
        if self.steps < 1 or self.round < 1 or self.earlier_runs < 0:
            raise ValueError("round and steps count from 1, earlier_runs from 0.")
        if not (0.0 < self.expected_batch_size < math.inf and 0.0 < self.learning_rate < math.inf):
            raise ValueError("expected_batch_size and learning_rate must be positive and finite.")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum is {self.momentum}; it must be in [0, 1).")
        if self.clipping not in CLIPPINGS:
            raise ValueError(f"clipping is '{self.clipping}'; it must be one of {', '.join(CLIPPINGS)}.")
        if not 0.0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay is {self.weight_decay}; it must be finite and not negative.")
        _ = self.mechanism, self.local_optimizer

    @property
    def event(self) -> PoissonSampledGaussian:
        """What each step costs."""
        return PoissonSampledGaussian(self.sampling_rate, self.noise_multiplier, self.relation)

    @property
    def mechanism(self) -> SampledGaussianSum:
        """What each step runs."""
        return SampledGaussianSum(self.event, self.clipping_norm)

    @property
    def local_optimizer(self) -> Optimizer:
        """What moves the parameters in each step."""
        return build_optimizer(
            self.optimizer, self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )

    def receipt(self) -> Receipt:
        """The receipt that matches this grant."""
        return Receipt(
            self.run_id,
            self.client_id,
            self.round,
            self.steps,
            self.sampling_rate,
            self.noise_multiplier,
            self.relation,
        )


@dataclass(frozen=True, slots=True)
class Receipt(_WireRecord):
    """What a client says that it spent: the steps and events that its mechanism executed."""

    run_id: str
    client_id: str
    round: int
    steps: int
    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation


@dataclass(frozen=True, slots=True)
class Enrolment(_WireRecord):
    """What a client says of itself before its first round.

    Attributes:
        client_id: its name in a simulation; in a deployment the registered name or key counts instead.
        shard_size: number of records if the task declares it public, else 0.
        num_partitions: into how many parts a simulation splits the records; 0 in a deployment.
    """

    client_id: str
    shard_size: int
    num_partitions: int

    def __post_init__(self) -> None:
        if self.shard_size < 0 or self.num_partitions < 0:
            raise ValueError(
                f"shard_size is {self.shard_size} and num_partitions {self.num_partitions}; none is negative."
            )


@dataclass(frozen=True, slots=True)
class Refusal(_WireRecord):
    """A client's no: a constant code."""

    code: RefusalCode
