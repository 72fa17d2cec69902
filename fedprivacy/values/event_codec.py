"""Events as they stand in ledgers, files and messages: the only place that converts between events and data.

There are two forms. *Fields* name any mechanism and its parameters: a guard's log, a history file, an accountant's
state. A *row* is what a run charges, a Poisson-sampled Gaussian, and nothing else: the journal, its tables, the wire.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian, RowSampledGaussian

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
