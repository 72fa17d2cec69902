"""From what a user names, a built-in task or `path/to/file.py:name`, to a task."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from fedprivacy.config import BUILT_IN
from fedprivacy.tasks.protocol import Task


class TaskError(ValueError):
    """A task that cannot be found or is not one, with the remedy."""


@cache
def load_task(name: str) -> Task:
    """Load a built-in task by name, or one from `path/to/file.py:name` or `package.module:name`; once in a process.

    `name` after the colon is a task or a callable without arguments that returns one, for example a class.

    Raises:
        TaskError: says what was looked for and what to write instead.
    """
    module_name, colon, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not colon:
        raise TaskError(f"task is '{name}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
    module = _load_file(Path(module_name)) if module_name.endswith(".py") else _import(module_name)
    if not hasattr(module, attribute):
        raise TaskError(f"task is '{name}', but {module_name} defines no '{attribute}'; name what it defines.")
    found = getattr(module, attribute)
    task = found() if callable(found) else found
    if not isinstance(task, Task):
        missing = [member for member in Task.__protocol_attrs__ if not hasattr(task, member)]  # type: ignore[attr-defined]
        raise TaskError(f"task is '{name}', which lacks {', '.join(sorted(missing))}; see fedprivacy.tasks.Task.")
    return task


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise TaskError(f"task names module '{module_name}', which cannot be imported: {error}.") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"task names file '{path}', which does not exist; give a path relative to where you are.")
    module_name = f"fedprivacy_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None  # true for every .py path
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
