"""Loader of tasks by name: a built-in task's or `path/to/file.py:name`; names of tasks, and lists of allowed ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

from fedprivacy._support import sources
from fedprivacy.tasks.identity import BUILT_IN, DEFAULT_TASK
from fedprivacy.tasks.opened import OpenedTask, TaskError
from fedprivacy.tasks.task import Task

OBJECT = "object:"
"""Prefix of the name of a task that was given as an object; the name of its class follows."""

_LOADED: list[OpenedTask] = []
"""Every task that was loaded. They are kept, since Python gives a dead object's `id` to another one."""


@cache
def load_task(name: str, sha256: str | None = None) -> Task:
    """Load a built-in task by name, or one from `path/to/file.py:name` or `package.module:name`; once in a process.

    `name` after the colon is a task or a callable without arguments that returns one, for example a class. The name
    decides which code is imported and called: a client takes it from its own configuration alone, and only compares a
    server's word with it (`allowed_tasks`).

    >>> load_task("cancer").recipe.epsilon
    2.0

    Args:
        name: name of the task.
        sha256: digest of the file that it names, in hexadecimal; None: any file will do.

    Raises:
        TaskError: the task is not found; the error says what to write instead.
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
    task = _make(found, name) if callable(found) else found
    _LOADED.append(OpenedTask(task, name, f"task is '{name}'"))
    return task


def open_task(word: str | None = None, task: Task | None = None) -> OpenedTask:
    """Open the one task that a configuration names and a program brings.

    Args:
        word: name in the configuration; None: it names none.
        task: task object of the program; None: the named task is loaded.

    Raises:
        TaskError: there is no such task, the object is not a task, or the two differ.
    """
    if task is None:
        task = load_task(word or DEFAULT_TASK)
    original = task.original if isinstance(task, OpenedTask) else task
    words = sorted(each.word for each in _LOADED if each.original is original) or [f"{OBJECT}{type(original).__name__}"]
    opened = OpenedTask(original, words[0], f"the task is an object of class {type(original).__name__}")
    if word is not None and word not in words:
        raise TaskError(
            f"task is '{word}' in the configuration, and {words[0]} was given beside it; leave out one of them."
        )
    return opened


def _make(maker: Callable[[], Task], name: str) -> Task:
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise TaskError(
            f"task is '{name}', which cannot be made without arguments ({error}); give each a default."
        ) from error
    except ValueError:  # a built-in function without a signature
        pass
    try:
        return maker()
    except Exception as error:
        raise TaskError(f"task is '{name}', which cannot be made: {sources.describe_error(error)}.") from error


@dataclass(frozen=True, slots=True)
class AllowedTask:
    """One task that a client may work on: the server's name for it, and the source and SHA-256 of the code to load."""

    name: str
    source: str
    sha256: str | None

    @classmethod
    def of(cls, entry: str) -> AllowedTask:
        """Parse an entry of the configuration: a source, for a file optionally with `@sha256:HEX`.

        Raises:
            TaskError: the entry names no task.
        """
        source, at, sha256 = entry.partition("@")
        if at and not (sources.names_file(source) and re.fullmatch("sha256:[0-9a-fA-F]{64}", sha256)):
            raise TaskError(
                f"task is '{entry}'; after a file, and only there, write @sha256: and 64 hexadecimal digits."
            )
        if source not in BUILT_IN and not sources.is_source(source):
            raise TaskError(f"task is '{entry}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
        return cls(public_name(source), source, sha256.removeprefix("sha256:").lower() if at else None)

    def load(self) -> OpenedTask:
        """Load the task. Raises the errors of `load_task`, for example because the file has changed."""
        return open_task(task=load_task(self.source, self.sha256))


def allowed_tasks(entries: Iterable[str]) -> dict[str, AllowedTask]:
    """Parse entries of the configuration into tasks, by the names that a server must use.

    Raises:
        TaskError: an entry names no task, or two entries have one name.
    """
    allowed: dict[str, AllowedTask] = {}
    for task in map(AllowedTask.of, entries):
        if task.name in allowed:
            raise TaskError(f"two tasks go by the name '{task.name}'; give one of the files another name.")
        allowed[task.name] = task
    return allowed


def public_name(source: str) -> str:
    """Return a task's name between hosts: a file's own name, without its folders; any other name as it is."""
    file, colon, attribute = source.rpartition(":")
    return f"{PurePath(file).name}{colon}{attribute}" if sources.names_file(source) else source
