"""A Flower app for a user's task, written into a new folder: what `flwr run` sends to servers and clients."""

from __future__ import annotations

import importlib.resources
import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jinja2

from fedprivacy._support.sources import names_file
from fedprivacy.runs.configuration import FIELDS, resolve
from fedprivacy.tasks import TaskError, load_task
from fedprivacy.tasks.built_in import BUILT_IN, DEFAULT_TASK

_TEMPLATES = ("pyproject.toml", "README.md", "PACKAGE/__init__.py", "PACKAGE/server.py", "PACKAGE/client.py")


class AppFolderError(ValueError):
    """No app can be written; the message says why and what to do."""


class WrittenApp(NamedTuple):
    """A Flower app on disk: the argument of `flwr run`, its package, and what server and clients call its task."""

    folder: Path
    package: str
    task: str


def write_app(folder: Path, task: str, *, clients: int = 3) -> WrittenApp:
    """Write a Flower app that trains a task privately.

    A task's file becomes a module of the app's package, so that the app is whole: nothing else is looked for on the
    server. A client takes it only if its own node configuration names it.

    Args:
        folder: new, or empty.
        task: a built-in task, or `path/to/file.py:name`.
        clients: how many clients a run waits for.

    Raises:
        TaskError: what is named is neither.
        ConfigError: the file is no task, or one that cannot be trained privately; lists everything.
        AppFolderError: the folder holds something already, or its name is none for a package.
    """
    source, _, name = task.rpartition(":")
    if task not in BUILT_IN and not names_file(task):
        raise TaskError(f"task is '{task}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
    resolve({"task": task, "clients": clients})
    if folder.exists() and any(folder.iterdir()):
        raise AppFolderError(f"'{folder}' is not empty; name a new folder.")
    package = _package(folder)
    named = task if task in BUILT_IN else f"{package}.{Path(source).stem}:{name}"
    settings = {**dict.fromkeys(FIELDS, ""), "task": named, "clients": clients}
    facts = {
        "package": package,
        "version": version("fedprivacy"),
        "title": load_task(task).name,
        "settings": {key: json.dumps(value) for key, value in settings.items()},
        "task": named,
        "built_in": task in BUILT_IN,
    }
    (folder / package).mkdir(parents=True)
    for template in _TEMPLATES:
        (folder / template.replace("PACKAGE", package)).write_text(_render(template, facts))
    if task not in BUILT_IN:
        (folder / package / Path(source).name).write_bytes(Path(source).read_bytes())
    return WrittenApp(folder, package, named)


def task_of(folder: Path) -> str:
    """What the settings of an app in a folder name as their task.

    Raises:
        AppFolderError: the folder holds no Flower app.
    """
    try:
        app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise AppFolderError(
            f"'{folder}' holds no Flower app ({error!r}); write one with 'fedprivacy deploy app'."
        ) from error
    return str(app.get("config", {}).get("task") or DEFAULT_TASK)


def _package(folder: Path) -> str:
    """A package's name after the folder's; `_app` keeps it from hiding an installed module, or a user's `server.py`."""
    name = re.sub(r"\W+", "_", folder.resolve().name).strip("_").lower()
    package = name if name.endswith("_app") else f"{name}_app"
    if not package.isidentifier() or package == "_app":
        raise AppFolderError(
            f"'{folder.name}' gives no name for a Python package; begin the folder's name with a letter."
        )
    return package


def _render(template: str, facts: dict[str, object]) -> str:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    text = importlib.resources.files("fedprivacy.deploy").joinpath("template", f"{Path(template).name}.jinja")
    return environment.from_string(text.read_text("utf-8")).render(facts)
