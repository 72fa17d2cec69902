"""From what a user names, a built-in task or `path/to/file.py:name`, to a task."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from fedprivacy.tasks.built_in import BUILT_IN
from fedprivacy.tasks.protocol import Task


class TaskError(ValueError):
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
    module_name, colon, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not colon:
        raise TaskError(f"task is '{name}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
    module = load_module(module_name, sha256)
    if not hasattr(module, attribute):
        raise TaskError(f"task is '{name}', but {module_name} defines no '{attribute}'; name what it defines.")
    found = getattr(module, attribute)
    task = found() if callable(found) else found
    if not isinstance(task, Task):
        raise TaskError(f"task is '{name}', which lacks {', '.join(lacking(task))}; see fedprivacy.tasks.Task.")
    return task


def lacking(task: object) -> list[str]:
    """What an object would need to be a task."""
    members = {*Task.__annotations__, *(member for member in vars(Task) if not member.startswith("_"))}
    return sorted(member for member in members if not hasattr(task, member))


def load_module(name: str, sha256: str | None = None) -> ModuleType:
    """The module of a file `path/to/file.py`, or the one that `import` finds.

    Args:
        name: of the module or the file.
        sha256: of the file, in hexadecimal; None: any file will do.

    Raises:
        TaskError: there is none, or the file is another one.
    """
    return _load_file(Path(name), sha256) if name.endswith(".py") else _import(name)


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise TaskError(f"task names module '{module_name}', which cannot be imported: {error}.") from error


def _load_file(path: Path, sha256: str | None) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"task names file '{path}', which does not exist; give a path relative to where you are.")
    source = path.read_bytes()
    if sha256 is not None and sha256 != (found := hashlib.sha256(source).hexdigest()):
        raise TaskError(
            f"task names file '{path}' with SHA-256 {sha256}, but the file's is {found}; look who changed it."
        )
    module_name = f"fedprivacy_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # true for every .py path
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    # What was hashed is what runs: a loader would read the file again, or take older bytecode that lies beside it.
    exec(compile(source, path, "exec"), module.__dict__)
    return module
