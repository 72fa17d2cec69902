"""The parts of a reproduction: rows with a goal, and a function that measures them with one seed.

A reproduction is any object with the attributes of `Reproduction`; a class of one's own, or a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class ReproductionError(ValueError):
    """A reproduction cannot be run as it was asked for; its text names what is wrong, and the remedy."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure that is measured: a line of the table.

    >>> Row("FedAvg", "mean squared error at epsilon 6", goal=0.0254, published=0.02564, at_least=False).name
    'FedAvg'

    Attributes:
        name: short, and no other row's of the reproduction.
        what: which figure it is, and its unit; after a comma, more of it.
        goal: what the mean over seeds must reach; None: it is recorded, beside the others.
        published: what the paper reports; None: it reports no such figure.
        at_least: whether more is better (accuracy, C-index), so that the goal is a lower bound; of an error, it is not.
        line: of the figure over budgets, the line that this is a point of: such as the way of training. "": of none.
        budget: epsilon at which the line has that point; None: without privacy.
        metric: the figure's name among the metrics of its run; "": it is none of them.
    """

    name: str
    what: str
    goal: float | None = None
    published: float | None = None
    at_least: bool = True
    line: str = ""
    budget: float | None = None
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of a row with one seed.

    Attributes:
        value: the figure.
        epsilon: the largest privacy loss of a client that it cost, in nats, at the reproduction's delta, by the PLD
            accountant; None: without privacy.
        metrics: everything that the run measured (`run.metrics`), for a table of another metric.
    """

    value: float
    epsilon: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workplace:
    """The folders that the measurements of one seed are given.

    Attributes:
        data: the folder of --data, in which the reproduction's files are; the present folder, where it needs none.
        runs: a folder of this seed alone, for the folders of its runs: `fp.simulate(..., out=place.runs / "a")`.
        tell: shows in a few words what is under way.
    """

    data: Path
    runs: Path
    tell: Callable[[str], None]


class Reproduction(Protocol):
    """A paper's experiment, as the command runs it. Attributes will do where there are properties here."""

    @property
    def name(self) -> str:
        """The name, as it is typed."""
        ...

    @property
    def title(self) -> str:
        """A title for people, a few words."""
        ...

    @property
    def source(self) -> str:
        """The paper: authors, year, title."""
        ...

    @property
    def delta(self) -> float:
        """The delta of every epsilon in it."""
        ...

    @property
    def data(self) -> Mapping[str, str]:
        """The source of each file that must be in the folder of --data, by its path there; empty: it needs none."""
        ...

    @property
    def settings(self) -> Mapping[str, object]:
        """Hyper-parameters, as JSON takes them: every constant that the figures depend on."""
        ...

    @property
    def rows(self) -> tuple[Row, ...]:
        """The measured rows, in the order of the table."""
        ...

    @property
    def seeds(self) -> int:
        """Number of seeds unless the caller gives another."""
        ...

    def measure(self, seed: int, place: Workplace) -> Iterator[tuple[str, Measured]]:
        """Every row's name and figure, in the order of `rows`, each as soon as it is known: the time is taken between.

        The seed decides everything random: the same seed gives the same figures.
        """
        ...


def lacking(value: object) -> list[str]:
    """The attributes that an object lacks to be a reproduction."""
    parts = (part for part in vars(Reproduction) if not part.startswith("_"))
    return sorted(part for part in parts if not hasattr(value, part))
