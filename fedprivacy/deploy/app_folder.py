"""A Flower app for a user's task, written into a new folder: what `flwr run` sends to servers and clients."""

from __future__ import annotations

import importlib.resources
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jinja2

from fedprivacy._support.imports import MissingExtraError, lacks
from fedprivacy._support.sources import names_file
from fedprivacy.deploy.description import SetupError, flower_window
from fedprivacy.runs.plans.plan import QuestionPlan, RunPlan, questions_in
from fedprivacy.runs.records.folder import plan_of
from fedprivacy.runs.settings.configuration import ASKING_KEYS, FIELDS, ConfigError, Value, resolve
from fedprivacy.tasks import TaskError, load_task
from fedprivacy.tasks.bundled import BundledClassification
from fedprivacy.tasks.identity import BUILT_IN, DEFAULT_TASK
from fedprivacy.tasks.loader import public_name
from fedprivacy.tasks.opened import OpenedTask

_TEMPLATES = ("pyproject.toml", "README.md", "LICENSE", "PACKAGE/__init__.py", "PACKAGE/server.py", "PACKAGE/client.py")

_LONGEST_NAME = 32
"""Characters of an app's name that Flower takes."""


class WrittenApp(NamedTuple):
    """A Flower app on disk: the argument of `flwr run`, its package, and what server and clients call its task."""

    folder: Path
    package: str
    task: str


def write_app(folder: Path, task: str, *, clients: int = 3, bring: bool = True) -> WrittenApp:
    """Write a Flower app that trains a task privately.

    Args:
        folder: new, or empty.
        task: a built-in task, or `path/to/file.py:name`.
        clients: how many clients a run waits for.
        bring: whether a task's file becomes a module of the app's package, so that nothing else is looked for on the
            server, and a client takes it only if its own node configuration names it; else every host has the file.

    Raises:
        TaskError: what is named is neither.
        ConfigError: the file is no task, or one that cannot be trained privately; lists everything.
        SetupError: the folder holds something already, or its name is none for a package.
    """
    source, _, name = task.rpartition(":")
    if task not in BUILT_IN and not names_file(task):
        raise TaskError(f"task is '{task}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
    resolve({"task": task, "clients": clients})
    if folder.is_dir() and any(folder.iterdir()):
        raise SetupError(f"'{folder}' is not empty; name a new folder.")
    package = _package(folder)
    brought = bring and task not in BUILT_IN
    named = f"{package}.{Path(source).stem}:{name}" if brought else public_name(task)
    settings = {**dict.fromkeys(FIELDS, ""), "task": named, "clients": clients}
    facts = {
        "package": package,
        "version": version("fedprivacy"),
        "flower": version("flwr"),
        "flower_window": flower_window(),
        "title": load_task(task).name,
        "settings": {key: json.dumps(value) for key, value in settings.items()},
        "task": named,
        "built_in": task in BUILT_IN,
        "brought": brought,
    }
    try:
        (folder / package).mkdir(parents=True)
    except OSError as error:
        raise SetupError(f"'{folder}' cannot be made ({error.strerror}); name another folder.") from error
    for template in _TEMPLATES:
        text = render("template", Path(template).name, facts)
        (folder / template.replace("PACKAGE", package)).write_text(text)
    if brought:
        (folder / package / Path(source).name).write_bytes(Path(source).read_bytes())
    return WrittenApp(folder, package, named)


def task_of(folder: Path) -> str:
    """The task that the settings of an app in a folder name. Raises SetupError: the folder holds no Flower app."""
    return str(_settings_in(folder).get("task") or DEFAULT_TASK)


def checked_plan(folder: Path, run_config: Mapping[str, Value]) -> RunPlan | None:
    """The plan of a run of an app, made before anything starts: its own settings, and those that the run is given.

    None if no settings name a task: the app brings one, which its own parts know.

    Raises:
        SetupError: the folder holds no Flower app.
        ConfigError, RunFolderError: the run could not start; lists everything that is wrong with its settings.
    """
    settings = {**_settings_in(folder), **run_config}
    if not (settings.get("task") or settings.get("resume")):
        return None
    with _importable(folder):
        if settings.get("questions"):
            _ = questions_in(str(settings["questions"]))
            return QuestionPlan.of({key: value for key, value in settings.items() if key in ASKING_KEYS})
        plan = plan_of(settings)
        check_public_records(plan.task)
        return plan


def check_public_records(task: OpenedTask) -> None:
    """Refuse a built-in task on a host that lacks its public records, on which the server evaluates the model.

    Raises:
        ConfigError: names the extra that brings them.
    """
    if isinstance(task.original, BundledClassification) and lacks("sklearn"):
        raise ConfigError(f"task is {task.name}, whose public records are not here: {MissingExtraError('sklearn')}")


def _settings_in(folder: Path) -> dict[str, Value]:
    try:
        app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise SetupError(
            f"'{folder}' holds no Flower app ({error!r}); write one with 'fedprivacy deploy app'."
        ) from error
    return dict(app.get("config", {}))


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The app's own modules can be imported, as Flower has it where the app runs."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


def task_from_here(folder: Path) -> str:
    """The name under which this process, outside the app, loads the task of its settings: a module of the app by its
    file.

    Raises:
        SetupError: the folder holds no Flower app, or one whose settings name no task.
    """
    task = str(_settings_in(folder).get("task") or "")
    if not task:
        raise SetupError(f"'{folder}' has no task in its [tool.flwr.app.config]; name it there: clients must allow it.")
    module, _, name = task.rpartition(":")
    file = folder.joinpath(*module.split(".")).with_suffix(".py") if module else folder
    return f"{file}:{name}" if file.is_file() else task


def render(folder: str, template: str, facts: Mapping[str, object]) -> str:
    """Return the text that a template becomes. A fact that it asks for and that is not given is an error."""
    beside = importlib.resources.files("fedprivacy.deploy").joinpath(folder)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: beside.joinpath(name).read_text("utf-8")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    return environment.get_template(f"{template}.jinja").render(facts)


def _package(folder: Path) -> str:
    """A package's name after the folder's; `_app` keeps it from hiding an installed module, or a user's `server.py`."""
    name = re.sub(r"\W+", "_", folder.resolve().name).strip("_").lower()
    package = name if name.endswith("_app") else f"{name}_app"
    if not package.isidentifier() or package == "_app":
        raise SetupError(f"'{folder.name}' gives no name for a Python package; begin the folder's name with a letter.")
    if len(package) > _LONGEST_NAME:
        raise SetupError(
            f"'{folder.name}' makes '{package}', and Flower takes no app's name beyond {_LONGEST_NAME} characters; "
            "give the folder a shorter name."
        )
    return package
