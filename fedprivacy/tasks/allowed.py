"""Which tasks a data owner allows: names in its own configuration, with which a server's word is only compared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from fedprivacy._support.sources import names_file
from fedprivacy.tasks.built_in import BUILT_IN
from fedprivacy.tasks.loader import TaskError, load_task
from fedprivacy.tasks.protocol import Task

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class AllowedTask:
    """One task that a client may work on.

    Attributes:
        name: what a server must call it. A file goes by its own name, without the folders that it lies in: they differ
            from host to host.
        source: what is loaded: a built-in task's name, `package.module:name` or `path/to/file.py:name`.
        sha256: of the file, in hexadecimal; None: it is not checked.
    """

    name: str
    source: str
    sha256: str | None

    @classmethod
    def of(cls, entry: str) -> AllowedTask:
        """The task that an entry of the configuration names: a source, for a file optionally with `@sha256:HEX`.

        Raises:
            TaskError: the entry names none.
        """
        source, at, sha256 = entry.partition("@")
        digest = sha256.removeprefix("sha256:").lower()
        if at and not (names_file(source) and sha256.startswith("sha256:") and _SHA256.fullmatch(digest)):
            raise TaskError(
                f"task is '{entry}'; after a file, and only there, write @sha256: and 64 hexadecimal digits."
            )
        if source not in BUILT_IN and not all(source.rpartition(":")):
            raise TaskError(f"task is '{entry}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
        return cls(public_name(source), source, digest if at else None)

    def load(self) -> Task:
        """The task.

        Raises:
            TaskError: it cannot be found, is none, or its file is another one.
        """
        return load_task(self.source, self.sha256)


def allowed_tasks(entries: Iterable[str]) -> dict[str, AllowedTask]:
    """The tasks that entries of the configuration name, by what a server must call them.

    Raises:
        TaskError: an entry names none, or two go by one name.
    """
    allowed: dict[str, AllowedTask] = {}
    for task in map(AllowedTask.of, entries):
        if task.name in allowed:
            raise TaskError(f"two tasks go by the name '{task.name}'; give one of the files another name.")
        allowed[task.name] = task
    return allowed


def public_name(source: str) -> str:
    """What a task is called between hosts: `path/to/file.py:name` without its folders, any other as it is."""
    file, colon, attribute = source.rpartition(":")
    return f"{PurePath(file).name}{colon}{attribute}" if names_file(source) else source
