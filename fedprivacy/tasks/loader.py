"""From what a user names, a built-in task or `path/to/file.py:name`, to a task; and what a task is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from functools import cache

from fedprivacy._support import sources
from fedprivacy.tasks.built_in import BUILT_IN, DEFAULT_TASK
from fedprivacy.tasks.protocol import Task

OBJECT = "object:"
"""Begins the name of a task that was given as an object; the name of its class follows."""

_WORDS: dict[int, set[str]] = {}
"""By which names each task was loaded; by `id`, since what was loaded stays for the life of the process."""


class TaskError(sources.SourceError):
    """A task that cannot be found or is not one, with the remedy."""


@cache
def load_task(name: str, sha256: str | None = None) -> Task:
    """Load a built-in task by name, or one from `path/to/file.py:name` or `package.module:name`; once in a process.

    `name` after the colon is a task or a callable without arguments that returns one, for example a class. Whoever
    chooses the name chooses what is imported and called: a client takes it from its own configuration alone
    (`fedprivacy.tasks.allowed`).

    Args:
        name: of the task.
        sha256: of the file that it names, in hexadecimal; None: any file will do.

    Raises:
        TaskError: says what was looked for and what to write instead.
    """
    if name.startswith(OBJECT):
        made = name.removeprefix(OBJECT)
        raise TaskError(f"task is '{name}', which only the program that made it has; give the object again, {made}().")
    if name not in BUILT_IN and not sources.is_source(name):
        raise TaskError(f"task is '{name}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
    try:
        found = sources.load("task", BUILT_IN.get(name, name), sha256)
    except sources.SourceError as error:
        raise TaskError(str(error)) from error
    task = _made(found, name) if callable(found) else found
    _check_complete(task, f"task is '{name}'")
    _WORDS.setdefault(id(task), set()).add(name)
    return task


def agreed(word: str | None, task: Task | None) -> Task:
    """The one task that a configuration names and a program brings.

    Args:
        word: in the configuration; None: it names none.
        task: an object; None: what is named is loaded.

    Raises:
        TaskError: there is no such task, the object is none, or the two are not the same.
    """
    if task is None:
        return load_task(word or DEFAULT_TASK)
    _check_complete(task, f"the task is an object of class {type(task).__name__}")
    if word is not None and word not in _words(task):
        raise TaskError(
            f"task is '{word}' in the configuration, and {_words(task)[0]} was given beside it; leave out one of them."
        )
    return task


def word_of(task: Task) -> str:
    """What a configuration calls a task: the name by which it was loaded, or one that says that it was not."""
    return _words(task)[0]


def _made(maker: Callable[[], Task], name: str) -> Task:
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise TaskError(
            f"task is '{name}', which cannot be made without arguments ({error}); give each a default."
        ) from error
    except ValueError:  # a built-in function that does not tell
        pass
    try:
        return maker()
    except Exception as error:
        raise TaskError(f"task is '{name}', which cannot be made: {sources.told(error)}.") from error


def _words(task: Task) -> list[str]:
    return sorted(_WORDS.get(id(task), ())) or [f"{OBJECT}{type(task).__name__}"]


def _check_complete(task: object, named: str) -> None:
    if isinstance(task, type):  # it has every member of a task, and is none
        raise TaskError(f"the task is the class {task.__name__} and no object of it; write {task.__name__}().")
    if not (isinstance(task, Task) and isinstance(task, Hashable)):
        raise TaskError(f"{named}, which lacks {', '.join(lacking(task))}; see fedprivacy.Task.")


def lacking(task: object) -> list[str]:
    """What an object would need to be a task."""
    members = {*Task.__annotations__, *(member for member in vars(Task) if not member.startswith("_"))}
    missing = sorted(member for member in members if not hasattr(task, member))
    return missing if isinstance(task, Hashable) else [*missing, "__hash__"]
