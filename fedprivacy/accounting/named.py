"""Events by name: as they stand in files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, get_args

from fedprivacy.values.events import Event, NeighbouringRelation


def mechanism_name(kind: type[Any]) -> str:
    """The name of an event's class in a file.

    >>> from fedprivacy.values.events import PoissonSampledGaussian
    >>> mechanism_name(PoissonSampledGaussian)
    'poisson-sampled-gaussian'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


MECHANISMS: Mapping[str, type[Any]] = {mechanism_name(kind): kind for kind in get_args(Event)}
"""Every event that an accountant may meet, by its name in a file."""


def as_fields(event: Event) -> dict[str, Any]:
    """An event as JSON knows it: its mechanism's name, and its fields."""
    return {"mechanism": mechanism_name(type(event))} | dataclasses.asdict(event)


def from_fields(fields: Mapping[str, Any]) -> Event:
    """The event that `as_fields` wrote.

    Raises:
        ValueError: a field has a value that the event refuses.
        KeyError: there is no such mechanism.
    """
    given = dict(fields)
    kind = MECHANISMS[given.pop("mechanism")]
    event: Event = kind(**given | {"relation": NeighbouringRelation(given["relation"])})
    return event
