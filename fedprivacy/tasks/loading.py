"""From what a user names, a built-in task or `path/to/file.py:name`, to a task."""

from __future__ import annotations

from functools import cache

from fedprivacy._support import sources
from fedprivacy.tasks.built_in import BUILT_IN
from fedprivacy.tasks.protocol import Task


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
    if name not in BUILT_IN and not sources.is_source(name):
        raise TaskError(f"task is '{name}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
    try:
        found = sources.load("task", BUILT_IN.get(name, name), sha256)
    except sources.SourceError as error:
        raise TaskError(str(error)) from error
    task = found() if callable(found) else found
    if not isinstance(task, Task):
        raise TaskError(f"task is '{name}', which lacks {', '.join(lacking(task))}; see fedprivacy.tasks.Task.")
    return task


def lacking(task: object) -> list[str]:
    """What an object would need to be a task."""
    members = {*Task.__annotations__, *(member for member in vars(Task) if not member.startswith("_"))}
    return sorted(member for member in members if not hasattr(task, member))
