"""A run's settings as keywords of a function: `noise_multiplier=1.2` for what is `noise-multiplier` elsewhere."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TypeVar

from fedprivacy._support.settings import kind_of
from fedprivacy.runs.settings.configuration import FIELDS, TRAINING_KEYS, ConfigError, Value, words_of
from fedprivacy.tasks import Task
from fedprivacy.values.numbers import number_of

Given = Value | os.PathLike[str] | Mapping[str, Mapping[str, Real | None]] | None
"""Types of a keyword's value; a path stands for its text, and a mapping (for `client_terms`) for its JSON."""

GivenTask = Task | type[Task] | str | None
"""A task, its class, or its name; None: left open."""

Function = TypeVar("Function", bound=Callable[..., object])

_KEY = re.compile(rf"(?<![\w/.'-])({'|'.join(key for key in FIELDS if '-' in key)})(?![\w/'-]|\.\w)")


def takes_settings(function: Function, keys: Iterable[str] = TRAINING_KEYS) -> Function:
    """Give a function with `**settings` the settings of a run as keywords, and tell of each in its docstring."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {parameter.name for parameter in own}
    fields = [field for key in keys if (field := FIELDS[key]).name not in taken]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    keywords = [
        inspect.Parameter(field.name, keyword_only, default=None, annotation=f"{kind_of(field)} | None")
        for field in fields
    ]
    function.__signature__ = signature.replace(parameters=own + keywords)  # type: ignore[attr-defined]
    words = "\n".join(f"        {field.name}: {as_keywords(words_of(field))}" for field in fields)
    function.__doc__ = f"{function.__doc__}\n    Settings (None: left open):\n{words}\n"
    return function


def by_key(task: GivenTask, settings: Mapping[str, Given]) -> tuple[dict[str, Value | None], Task | None]:
    """Settings by hyphenated key, the task's name among them; and the task, where it is an object.

    Raises:
        ConfigError: the task is a class that cannot be made without arguments.
    """
    keys = {name: name.replace("_", "-") for name in settings}
    given = {key if key in FIELDS else name: _plain_value(settings[name]) for name, key in keys.items()}
    if task is None or isinstance(task, str):
        return given | {"task": task}, None
    if not isinstance(task, type):
        return given, task
    try:
        return given, task()
    except TypeError as error:
        raise ConfigError(f"task is the class {task.__name__}, which makes none ({error}); give an object.") from error


@contextmanager
def spelt_as_keywords() -> Iterator[None]:
    """Let the errors of a configuration name keywords."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([*map(as_keywords, error.problems)]) from None


def as_keywords(text: str) -> str:
    """A text that speaks of settings, with each as it is spelt as a keyword.

    >>> as_keywords("batch-size and sampling-rate both say how many records join a step; give one of them.")
    'batch_size and sampling_rate both say how many records join a step; give one of them.'
    """
    return _KEY.sub(lambda found: found[0].replace("-", "_"), text)


def _plain_value(value: Given) -> Value | None:
    """The value as the configuration knows it: numpy's numbers and paths become Python's, a mapping JSON."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return json.dumps(value, default=lambda one: float(one) if isinstance(one, Real) else str(one))
    if isinstance(value, bool) or (number := number_of(value)) is None:
        return value
    return int(number) if isinstance(number, Integral) else float(number)
