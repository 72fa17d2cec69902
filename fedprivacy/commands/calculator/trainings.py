"""Trainings that a calculation composes: typed, or read from a history file.

A history file is a JSON list with one object for each training:

    [{"sampling_rate": 0.01, "noise_multiplier": 1.1, "steps": 1000},
     {"mechanism": "poisson-sampled-gaussian", "sampling_rate": 0.02, "noise_multiplier": 1.5, "steps": 200}]

`mechanism` is the hyphenated name of an event's class (`fedprivacy.values.events`), the other keys are the class's
fields, and `steps` is how often the event was executed. Keys that have a default may be left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from fedprivacy.accounting import UNLIMITED
from fedprivacy.accounting.histories import executed_events
from fedprivacy.values.events import MECHANISMS, Event, NeighbouringRelation, PoissonSampledGaussian, mechanism_name

STDIN = "-"
DEFAULT_MECHANISM = mechanism_name(PoissonSampledGaussian)

_EXAMPLES = {"epsilon": "1", "delta": "1e-5", "sampling-rate": "0.01", "noise-multiplier": "1", "steps": "1000"}


class AskingError(ValueError):
    """Everything that is wrong with the options of a calculation, one line each."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def missing(**settings: object) -> AskingError:
    """The error to raise when settings that are needed are None: one line for each."""
    names = [name.replace("_", "-") for name, value in settings.items() if value is None]
    return AskingError(*(f"{name} is not set; add it, for example --{name} {_EXAMPLES[name]}." for name in names))


def check_steps(steps: int) -> None:
    """Refuse what is no number of steps that accountants can compose, with an AskingError."""
    if not 1 <= steps <= UNLIMITED:
        raise AskingError(f"steps is {steps}; choose an integer from 1 to {UNLIMITED:,}.")


@dataclass(frozen=True, slots=True)
class TrainingSteps:
    """An event and how often it was executed: at least once, and no more often than accountants can compose."""

    event: Event
    steps: int

    def __post_init__(self) -> None:
        check_steps(self.steps)


def training_text(training: TrainingSteps) -> str:
    """A training for people, without its relation; its mechanism, unless it is the usual one.

    >>> training_text(TrainingSteps(PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0), 1000))
    '1,000 steps at sampling rate 0.01, noise multiplier 1'
    """
    event = training.event
    names = [field.name for field in dataclasses.fields(event) if field.name != "relation"]
    settings = ", ".join(f"{name.replace('_', ' ')} {getattr(event, name):.10g}" for name in names)
    mechanism = mechanism_name(type(event))
    of = "" if mechanism == DEFAULT_MECHANISM else f"of {mechanism} "
    return f"{steps_text(training.steps)} {of}at {settings}"


def steps_text(steps: int) -> str:
    """'1 step', '1,000 steps'."""
    return f"{steps:,} step" if steps == 1 else f"{steps:,} steps"


def history_of(trainings: Sequence[TrainingSteps]) -> dict[Event, int]:
    """Number of executions of each event.

    Raises:
        ValueError: the trainings mix neighbouring relations, or have too many steps together.
    """
    history: Counter[Event] = Counter()
    for training in trainings:
        history[training.event] += training.steps
    if history:
        check_steps(history.total())
    return executed_events(history)


def relation_of(trainings: Sequence[TrainingSteps]) -> NeighbouringRelation:
    """The relation that trainings share; the usual one where nothing was executed."""
    return trainings[0].event.relation if trainings else NeighbouringRelation.ADD_OR_REMOVE_ONE


def given(
    *,
    sampling_rate: float | None,
    noise_multiplier: float | None,
    steps: int | None,
    history: str,
    relation: NeighbouringRelation | None,
    delta: float | None,
) -> list[TrainingSteps]:
    """The trainings that a command's options name: one by its rate, noise and steps, or those of a history file.

    Raises:
        AskingError: an option is missing, `delta` among them, or both ways are used, or the file cannot be read.
        ValueError: a number is out of range.
    """
    typed = {"sampling_rate": sampling_rate, "noise_multiplier": noise_multiplier, "steps": steps}
    if history:
        if beside := ", ".join(name.replace("_", "-") for name, value in typed.items() if value is not None):
            raise AskingError(f"history is '{history}', and {beside} beside it; leave out the one or the other.")
        trainings = read(history, relation)
        if delta is None:
            raise missing(delta=delta)
        return trainings
    if sampling_rate is None or noise_multiplier is None or steps is None or delta is None:
        raise missing(**typed, delta=delta)
    event = PoissonSampledGaussian(sampling_rate, noise_multiplier, relation or relation_of([]))
    return [TrainingSteps(event, steps)]


def read(path: str, relation: NeighbouringRelation | None = None) -> list[TrainingSteps]:
    """The trainings in a file, in its order.

    Args:
        path: of the file; "-": standard input.
        relation: of all of them; None: what each states, or its mechanism's default.

    Raises:
        AskingError: the file cannot be read, or what is wrong with each entry.
    """
    name = "standard input" if path == STDIN else path
    try:
        text = sys.stdin.read() if path == STDIN else Path(path).read_text("utf-8")
        entries = json.loads(text)
    except OSError as error:
        raise AskingError(f"{name} cannot be read ({error.strerror}); name a file that can.") from error
    except json.JSONDecodeError as error:
        place = f"{name}, line {error.lineno}, column {error.colno}"
        raise AskingError(f"{place}: this is no JSON ({error.msg}); write a list of objects.") from error
    except UnicodeDecodeError as error:
        raise AskingError(f"{name}, byte {error.start}: this is no UTF-8 text; write JSON.") from error
    if not isinstance(entries, list):
        raise AskingError(f"{name} holds {_shorten(entries)}; write a list, [...], with an object for each training.")
    trainings, problems = [], []
    for number, entry in enumerate(entries, start=1):
        try:
            trainings.append(_training(entry, relation))
        except ValueError as error:
            problems.append(f"{name}, entry {number}: {error}")
    if problems:
        raise AskingError(*problems)
    return trainings


def _training(entry: object, relation: NeighbouringRelation | None) -> TrainingSteps:
    if not isinstance(entry, dict):
        raise ValueError(f'this is {_shorten(entry)}; write an object, such as {{"sampling_rate": 0.01, ...}}.')
    mechanism = entry.get("mechanism", DEFAULT_MECHANISM)
    kind = MECHANISMS.get(mechanism) if isinstance(mechanism, str) else None
    if kind is None:
        raise ValueError(f"mechanism is {_shorten(mechanism)}; choose one of {', '.join(MECHANISMS)}.")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {key: value for key, value in entry.items() if key != "mechanism"}
    if relation is not None and "relation" in fields:
        values.setdefault("relation", relation.value)
    _check_keys(str(mechanism), values, fields)
    steps = _whole("steps", values.pop("steps"))
    hints = get_type_hints(kind)
    event = kind(**{key: _READERS[hints[key]](key, value) for key, value in values.items()})
    if relation not in (None, event.relation):
        raise ValueError(
            f"relation is {event.relation}, and --relation {relation}; keep one account for each relation."
        )
    return TrainingSteps(event, steps)


def _check_keys(mechanism: str, values: Mapping[str, Any], fields: Mapping[str, dataclasses.Field[Any]]) -> None:
    known = [*fields, "steps"]
    for key in values:
        if key not in known:
            raise ValueError(f"{_shorten(key)} is no setting of {mechanism}; its settings are {', '.join(known)}.")
    for key in known:
        optional = key in fields and fields[key].default is not dataclasses.MISSING
        if key not in values and not optional:
            raise ValueError(f"{key} is not set; a {mechanism} has {', '.join(known)}.")


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is {_shorten(value)}; write a number.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _whole(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} is {_shorten(value)}; write an integer.")
    return value


def _relation(key: str, value: object) -> NeighbouringRelation:
    if value not in list(NeighbouringRelation):
        raise ValueError(f"{key} is {_shorten(value)}; choose one of {', '.join(NeighbouringRelation)}.")
    return NeighbouringRelation(str(value))


_READERS: Mapping[Any, Callable[[str, object], Any]] = {float: _number, int: _whole, NeighbouringRelation: _relation}


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
