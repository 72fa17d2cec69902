"""Events: data that state what a mechanism did.

An event holds the parameters of a mechanism *as executed* and nothing else. The object that adds the noise states its
event (`fedprivacy.mechanisms.gaussian_sum`), accountants compose events (`fedprivacy.accounting`), the ledger stores
them, and grants and receipts carry them. There is no second place where the sampling rate or the noise multiplier is
written.

Ledgers and certificates outlive programs, so an event is stable: it is never removed, and no parameter ever changes its
meaning. A mechanism with another parameter, or another guarantee, is another event. Every later version reads what an
earlier one wrote.

>>> event = PoissonSampledGaussian(sampling_rate=0.1, noise_multiplier=1.2)
>>> history = {event: 400}  # 400 local steps
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args

from fedprivacy.values.unit import MOST_ROWS


class NeighbouringRelation(enum.StrEnum):
    """The pairs of shards that the guarantee compares.

    `ADD_OR_REMOVE_ONE`: one shard has one record more than the other; the number of records is private.
    `ZERO_OUT`: one record is replaced by a null record that contributes nothing; the number of records is public.
    `REPLACE_ONE`: one record is replaced by another; the number of records is public.

    >>> import fedprivacy as fp
    >>> fp.tasks.relation_of(fp.tasks.Cancer()) is fp.NeighbouringRelation.ZERO_OUT
    True
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


CLIPPING_NORMS = (1e-6, 1e6)  # smallest and largest: beyond them float32 gradients cannot be clipped exactly


class _Sum:
    """A release of a sum over records."""

    __slots__ = ()
    relation: NeighbouringRelation

    @property
    def sensitivity(self) -> float:
        """Largest change of the sum by one record, in units of the clipping norm, or of the bound on a number."""
        return 2.0 if self.relation is NeighbouringRelation.REPLACE_ONE else 1.0


@dataclass(frozen=True, slots=True, order=True)
class PoissonSampledGaussian(_Sum):
    """One release of a Gaussian sum over a Poisson sample of the records.

    Every record joins independently with probability `sampling_rate` q; the joined records' vectors, each of Euclidean
    norm at most C, are summed; every coordinate receives Gaussian noise of standard deviation `noise_multiplier` * C.

    >>> import fedprivacy as fp
    >>> step = {"sampling_rate": 0.1, "noise_multiplier": 1.2}
    >>> before = {fp.PoissonSampledGaussian(**step): 400}  # 400 local steps
    >>> both = fp.epsilon(**step, steps=100, delta=1e-5, past=before)
    >>> abs(both - fp.epsilon(**step, steps=500, delta=1e-5)) < 1e-6
    True

    Formal guarantee (Mironov, Talwar, Zhang 2019; Zhu, Dong, Wang 2022). Let s = `noise_multiplier`. Under the first
    two relations the release is dominated in each direction by the pair (N(0, s^2), (1 - q) N(0, s^2) + q N(1, s^2)).
    Both relations therefore cost the same; they are kept apart because they promise different things. Replacing a
    record moves the sum by up to 2 C: without sampling, the pair is (N(0, s^2), N(2, s^2)).

    Attributes:
        sampling_rate: q, in (0, 1]; 1 under `REPLACE_ONE`.
        noise_multiplier: sigma, standard deviation of the noise in units of the clipping norm, > 0 and finite.
        relation: the neighbouring relation that the guarantee is stated for.
    """

    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _check_poisson_sampled(self, "FixedSizeSampledGaussian, sampling_rate 1, or zero-out")

    def __str__(self) -> str:
        return f"sampling rate {self.sampling_rate!r}, noise multiplier {self.noise_multiplier!r} ({self.relation})"


@dataclass(frozen=True, slots=True)
class RowSampledGaussian(_Sum):
    """One release of a `PoissonSampledGaussian`, as it concerns a person with several rows.

    A row is a record: each of the person's k = `rows_per_person` rows joins independently of the others.

    Formal guarantee: under the first two relations, for a person with at most k rows instead of a record, the release
    is dominated in each direction by the pair (N(0, s^2), sum_j b_j N(j, s^2)) with b = Binomial(k, q) and s =
    `noise_multiplier`. Let S be the rows that join and v_S the sum of their vectors, in units of C: given the other
    records' sample, the release with the person is the mixture of N(v_S, s^2 I), the one without is N(0, s^2 I), and
    |v_S| <= |S|. Such a mixture is dominated by that of N(|S|, s^2) (Choquette-Choo, Ganesh, Steinke, Thakurta 2023,
    arXiv 2310.15526; Schuchardt et al. 2024, arXiv 2403.04867), and |S| is binomial. The worst rows reach the bound:
    every vector is C times one and the same unit vector. This is the example-level sampling of arXiv 2407.07737. Fewer
    rows cost no more: some of the k may be zero.

    Attributes:
        sampling_rate: q, in (0, 1]; 1 under `REPLACE_ONE`.
        noise_multiplier: sigma, standard deviation of the noise in units of the clipping norm, > 0 and finite.
        rows_per_person: k, the most rows of a person in the shard, 1 to `MOST_ROWS`; 1: a person is a record.
        relation: the neighbouring relation that the guarantee is stated for, between shards that differ in a person.
    """

    sampling_rate: float
    noise_multiplier: float
    rows_per_person: int
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _check_poisson_sampled(self, "sampling_rate 1, or zero-out")
        _check_integer("rows_per_person", self.rows_per_person, 1, MOST_ROWS)

    def __str__(self) -> str:
        return (
            f"{self.rows_per_person} rows of a person, sampling rate {self.sampling_rate!r}, noise multiplier "
            f"{self.noise_multiplier!r} ({self.relation})"
        )


@dataclass(frozen=True, slots=True)
class PoissonSampledLaplace(_Sum):
    """One release of a sum of numbers over a Poisson sample of the records, with Laplace noise.

    Every record joins independently with probability `sampling_rate` q; the joined records' numbers, each of absolute
    value at most C, are summed; the sum receives Laplace noise of scale `noise_multiplier` * C. With q = 1 this is the
    Laplace mechanism (Dwork, McSherry, Nissim, Smith 2006).

    >>> from fedprivacy.accounting import pld
    >>> from fedprivacy.values.events import PoissonSampledLaplace
    >>> released = PoissonSampledLaplace(sampling_rate=1.0, noise_multiplier=2.0)
    >>> round(pld.epsilon({released: 1}, delta=1e-9), 3)  # 1 / b, for one release of all records
    0.5

    Formal guarantee (Zhu, Dong, Wang 2022, arXiv 2106.08567). Let b = `noise_multiplier`. Under the first two relations
    the release is dominated in each direction by the pair (Lap(0, b), (1 - q) Lap(0, b) + q Lap(1, b)). Replacing a
    record moves the sum by up to 2 C: without sampling, the pair is (Lap(0, b), Lap(2, b)).

    Attributes:
        sampling_rate: q, in (0, 1]; 1 under `REPLACE_ONE`.
        noise_multiplier: b, scale of the noise in units of the bound C, > 0 and finite; its deviation is sqrt(2) b.
        relation: the neighbouring relation that the guarantee is stated for.
    """

    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _check_poisson_sampled(self, "sampling_rate 1, or zero-out")

    def __str__(self) -> str:
        return (
            f"Laplace, sampling rate {self.sampling_rate!r}, noise multiplier {self.noise_multiplier!r} "
            f"({self.relation})"
        )


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """One answer about one record: its category, or one drawn uniformly from all of them.

    With probability `uniform_probability` f the answer is drawn uniformly from the k categories (the true one among
    them), otherwise it is true (Warner 1965; Kairouz, Bonawitz, Ramage 2016, arXiv 1602.07387). The truth is told with
    probability 1 - f + f / k altogether, and every other category with f / k.

    Formal guarantee: the release itself is the pair. For two records of different categories, P puts 1 - f + f / k, f /
    k, f / k ... on the categories. Q has the same with the first two exchanged. The release is log(1 + k (1 - f) /
    f)-differentially private.

    Attributes:
        categories: k, at least 2.
        uniform_probability: f, in (0, 1] (at least 1e-300); dp_accounting's `noise_parameter`.
        relation: `REPLACE_ONE`: with the others, a record might not answer at all.
    """

    categories: int
    uniform_probability: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE_ONE

    def __post_init__(self) -> None:
        _check_integer("categories", self.categories, 2)
        if not 1e-300 <= self.uniform_probability <= 1.0:
            raise ValueError(f"uniform_probability is {self.uniform_probability}; choose a probability in (0, 1].")
        _check_relation(self, NeighbouringRelation.REPLACE_ONE)

    def __str__(self) -> str:
        return (
            f"randomised response, {self.categories} categories, uniform probability {self.uniform_probability!r} "
            f"({self.relation})"
        )


@dataclass(frozen=True, slots=True)
class FixedSizeSampledGaussian(_Sum):
    """One release of a Gaussian sum over a sample of fixed size, drawn without replacement.

    A subset of `sample_size` of the `records` records is drawn uniformly; its vectors, each of Euclidean norm at most
    C, are summed; every coordinate receives Gaussian noise of standard deviation `noise_multiplier` * C.

    Formal guarantee (Zhu, Dong, Wang 2022, arXiv 2106.08567, Theorem 11; Balle, Barthe, Gaboardi 2018). Let P = N(2,
    s^2), Q = N(0, s^2), s = `noise_multiplier` and g = `sample_size` / `records`. Between shards that differ in one
    record, the hockey-stick divergence of order a >= 1 is at most that of ((1 - g) Q + g P, Q). For a < 1 it is at most
    that of (P, (1 - g) P + g Q). Both directions have the same bound.

    Attributes:
        sample_size: records in a sample, at least 1.
        records: records of the shard, at least `sample_size`.
        noise_multiplier: sigma, standard deviation of the noise in units of the clipping norm, > 0 and finite.
        relation: `REPLACE_ONE`: under the others, the number of records would not be public.
    """

    sample_size: int
    records: int
    noise_multiplier: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE_ONE

    def __post_init__(self) -> None:
        _check_integer("sample_size", self.sample_size, 1)
        _check_integer("records", self.records, self.sample_size)
        _check_noise(self.noise_multiplier)
        _check_relation(self, NeighbouringRelation.REPLACE_ONE)

    @property
    def sampling_rate(self) -> float:
        """g, the share of the records that is sampled."""
        return self.sample_size / self.records

    def __str__(self) -> str:
        return (
            f"samples of {self.sample_size} out of {self.records} records, noise multiplier {self.noise_multiplier!r} "
            f"({self.relation})"
        )


@dataclass(frozen=True, slots=True)
class TruncatedPoissonSampledGaussian:
    """One release of a Gaussian sum over a Poisson sample that is cut down to a largest size.

    As `PoissonSampledGaussian`, but a sample of more than `largest_sample` records is cut down to that many. It
    does not matter how they are chosen. Accelerators need such static shapes.

    Formal guarantee (Chua et al. 2024, arXiv 2411.04205): let psi = Pr[Binomial(records, q) > `largest_sample`]. The
    release is within total variation psi of the one that is not cut down, whose pair is that of
    `PoissonSampledGaussian`. Where T such releases without the cut are (epsilon, delta)-differentially private, T with
    it are (epsilon, delta + (1 + e^epsilon) T psi)-differentially private.

    Attributes:
        sampling_rate: q, in (0, 1].
        noise_multiplier: sigma, standard deviation of the noise in units of the clipping norm, > 0 and finite.
        records: records of the shard, at least 1.
        largest_sample: most records in a sample, at least 1.
        relation: `ZERO_OUT`: under the others, the number of records and psi would differ, or the cost would double.
    """

    sampling_rate: float
    noise_multiplier: float
    records: int
    largest_sample: int
    relation: NeighbouringRelation = NeighbouringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_noise(self.noise_multiplier)
        _check_integer("records", self.records, 1)
        _check_integer("largest_sample", self.largest_sample, 1)
        _check_relation(self, NeighbouringRelation.ZERO_OUT)

    @property
    def untruncated(self) -> PoissonSampledGaussian:
        """The release whose samples are not cut down."""
        return PoissonSampledGaussian(self.sampling_rate, self.noise_multiplier, self.relation)

    def __str__(self) -> str:
        return (
            f"sampling rate {self.sampling_rate!r} of {self.records} records, at most {self.largest_sample}, noise "
            f"multiplier {self.noise_multiplier!r} ({self.relation})"
        )


Event = (
    PoissonSampledGaussian
    | RowSampledGaussian
    | PoissonSampledLaplace
    | RandomizedResponse
    | FixedSizeSampledGaussian
    | TruncatedPoissonSampledGaussian
)
"""Any event that an accountant may meet."""

History = (
    Mapping[Event, int]
    | Mapping[PoissonSampledGaussian, int]
    | Mapping[RowSampledGaussian, int]
    | Mapping[PoissonSampledLaplace, int]
    | Mapping[RandomizedResponse, int]
    | Mapping[FixedSizeSampledGaussian, int]
    | Mapping[TruncatedPoissonSampledGaussian, int]
)
"""Number of executions of each event. Order does not matter to composition, so none is kept."""


def is_unsampled_gaussian(event: Event) -> TypeGuard[PoissonSampledGaussian]:
    """Return whether an event is the Gaussian mechanism itself: every record joins, and nothing amplifies."""
    return isinstance(event, PoissonSampledGaussian) and event.sampling_rate == 1.0


Claims = Mapping[tuple[str, PoissonSampledGaussian], int]  # number of steps by run and event, as somebody states it

UNNAMED = ""
"""Run of steps whose own run is not known, in claims and in a ledger. No run has this name."""


def _check_poisson_sampled(
    event: PoissonSampledGaussian | RowSampledGaussian | PoissonSampledLaplace, remedy: str
) -> None:
    _check_rate(event.sampling_rate)
    _check_noise(event.noise_multiplier)
    if event.relation is NeighbouringRelation.REPLACE_ONE and event.sampling_rate < 1.0:
        raise ValueError(
            f"the relation is {event.relation} and sampling_rate is {event.sampling_rate}; no tight guarantee is known "
            f"for Poisson samples under it: use {remedy}."
        )


def _check_rate(sampling_rate: float) -> None:
    if not 0.0 < sampling_rate <= 1.0:
        raise ValueError(f"sampling_rate is {sampling_rate}; choose a probability in (0, 1].")


def _check_noise(noise_multiplier: float) -> None:
    if not (noise_multiplier > 0.0 and math.isfinite(noise_multiplier)):
        raise ValueError(f"noise_multiplier is {noise_multiplier}; choose a positive, finite number.")


def _check_integer(name: str, value: int, least: int, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        extent = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"
        raise ValueError(f"{name} is {value!r}; choose an integer {extent}.")


def _check_relation(event: Event, relation: NeighbouringRelation) -> None:
    if event.relation is not relation:
        raise ValueError(f"the relation of {type(event).__name__} is {event.relation}; it holds for {relation} alone.")


# Ledgers, files and messages hold events in two forms, and no other module converts between events and data. *Fields*
# name any mechanism and its parameters: a guard's log, a history file, an accountant's state. A *row* is what a run
# charges, a Poisson-sampled Gaussian, and nothing else: the journal, its tables, the wire.
ROW = ("sampling_rate", "noise_multiplier", "relation")  # the values of a row, in their order: a table's columns


def mechanism_name(kind: type[Any]) -> str:
    """The name of an event's class in a file.

    >>> mechanism_name(PoissonSampledGaussian)
    'poisson-sampled-gaussian'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


MECHANISMS: Mapping[str, type[Any]] = {
    mechanism_name(kind): kind for kind in get_args(Event) if kind is not RowSampledGaussian
}
"""Every event that may have been executed, by its name in a file; `RowSampledGaussian` is one as a person sees it."""


def as_fields(event: Event) -> dict[str, Any]:
    """Return an event as JSON fields: its mechanism's name and its parameters."""
    return {"mechanism": mechanism_name(type(event))} | dataclasses.asdict(event)


def from_fields(fields: Mapping[str, Any]) -> Event:
    """Return the event that `as_fields` wrote.

    Raises:
        ValueError: a field has a value that the event refuses.
        KeyError: there is no such mechanism.
    """
    given = dict(fields)
    kind = MECHANISMS[given.pop("mechanism")]
    event: Event = kind(**given | {"relation": NeighbouringRelation(given["relation"])})
    return event


def as_list(history: History) -> list[dict[str, Any]]:
    """Return a history as JSON: the fields of each event, with the number of its `steps`."""
    return [as_fields(event) | {"steps": steps} for event, steps in history.items()]


def from_list(listed: Iterable[Mapping[str, Any]]) -> dict[Event, int]:
    """Return the history that `as_list` wrote.

    Raises:
        ValueError: a field has a value that the event refuses.
        KeyError: there is no such mechanism, or it has no steps.
    """
    return {
        from_fields({name: value for name, value in event.items() if name != "steps"}): int(event["steps"])
        for event in listed
    }


def as_row(event: Event) -> list[float | str]:
    """Return a chargeable event as a row.

    >>> as_row(PoissonSampledGaussian(0.5, 1.0))
    [0.5, 1.0, <NeighbouringRelation.ADD_OR_REMOVE_ONE: 'add-or-remove-one'>]

    Raises:
        TypeError: the event is not a Poisson-sampled Gaussian, the only kind that a run charges.
    """
    if not isinstance(event, PoissonSampledGaussian):
        raise TypeError(f"a {type(event).__name__} has no row; a run charges Poisson-sampled Gaussians alone.")
    return [event.sampling_rate, event.noise_multiplier, event.relation]


def from_row(row: Iterable[object]) -> PoissonSampledGaussian:
    """Return the event that `as_row` wrote; the row may come from anybody and is checked.

    Raises:
        ValueError: there are not three values, one is of another type, or one that the event refuses.
    """
    sampling_rate, noise_multiplier, relation = row
    if not isinstance(relation, str):
        raise ValueError(f"relation is a {type(relation).__name__}; expected str")
    return PoissonSampledGaussian(_number(sampling_rate), _number(noise_multiplier), NeighbouringRelation(relation))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a number is a {type(value).__name__}; expected float")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError("a number is too large") from error
