"""The audit of a training, from its settings or a finished run's folder to findings: for scripts, and for commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

from rich.console import Console
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from fedprivacy._support.console import Bar, console_of
from fedprivacy._support.extras import needing_extras
from fedprivacy._support.settings import parse
from fedprivacy.audit.auditor import audit
from fedprivacy.audit.findings import Findings
from fedprivacy.audit.subject import Effort
from fedprivacy.flower.simulated.trial import try_task
from fedprivacy.ledger import Ledger
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import check_writable, ledger_of, plan_of, read_config, read_history, read_run_id
from fedprivacy.runs.records.run import Run
from fedprivacy.runs.records.store.writer import record_audits
from fedprivacy.runs.settings.configuration import FIELDS, ConfigError, Value
from fedprivacy.runs.settings.device import check_device, choose_device
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords, takes_settings
from fedprivacy.tasks import Task, TaskError, load_task
from fedprivacy.tasks.loader import agreed

_BESIDE_RUN = frozenset({"seed", "out", "device", "task"})
"""The settings that the audit of a finished run takes: a task only if it is the run's, and a device of this machine."""


@takes_settings
def audit_training(
    task: GivenTask = None,
    *,
    run: Run | str | PathLike[str] | None = None,
    full: bool = False,
    progress: bool = True,
    **settings: Given,
) -> Findings:
    """Check that the code which trains a task deserves its epsilon: gates find bugs, attacks stand beside the bound.

    The task is audited with the settings that `simulate` would train it with, or as a finished run did; nothing is
    charged. What it proves, and what it cannot: docs/how-to/audit.md.

    >>> import fedprivacy as fp
    >>> found = fp.audit_training("cancer", clients=3, epsilon=2.0, progress=False)
    >>> found.passed, found.gates[0].name
    (True, 'release')
    >>> max(bound.epsilon for bound in found.lower_bounds) <= found.epsilon_upper
    True

    Args:
        task: an object of a `Task`, its class, a built-in task's name, or "path/to/file.py:Name"; None: "digits", or
            the task of the run.
        run: a finished run or its folder, which is audited with the settings that it had; beside it, only `seed`,
            `out`, `device` and the run's task can be given.
        full: whether more is tried, which takes longer.
        progress: whether the gates are shown while they run, in the terminal or the notebook.
        settings: of the run, see below. `seed` asks the same again, but the randomness of a deployed client, which some
            checks ask, is never repeated; into `out`, or the run's folder, the findings are written as a page.

    Returns:
        What was found, which shows itself in a notebook as tables; `print` shows them as text.

    Raises:
        ConfigError: lists everything that is wrong with the settings, or says which method of the task fails.
        RunFolderError: `run` holds no run, or `out` cannot be written.
    """
    folder = run.folder if isinstance(run, Run) else None if run is None else Path(run)
    with spelt_as_keywords():
        by_name, own = by_key(task, settings)
        given = {key: value for key, value in by_name.items() if value is not None and value != ""}
        plan = plan_to_audit(given, folder, own)
    if place := given.get("out") or folder:
        with needing_extras():
            from fedprivacy.audit.findings_page import write_page

        check_writable(Path(str(place)))
    began = time.time()
    with progress_on(console_of(shown=progress)) as tell:
        found = audit_plan(plan, folder, effort=Effort.FULL if full else Effort.QUICK, seed=seed_of(given), tell=tell)
    if place:
        write_page(found, began, Path(str(place)))
    return found


def plan_to_audit(given: Mapping[str, Value], run: Path | None, task: Task | None = None) -> TrainingPlan:
    """The plan of a training that settings ask for, or that a finished run had; its task has been tried.

    Args:
        given: settings by hyphenated key.
        run: the folder of a finished run; None: there is none.
        task: an object; None: the one that the settings or the run name.

    Raises:
        ConfigError: settings are given beside a run, there is no privacy to audit, this machine lacks the device, or
            the task does not work.
        RunFolderError: the folder holds no run.
    """
    plan = plan_of(given, task) if run is None else _plan_of_run(given, run, task)
    if not plan.config.privacy:
        raise ConfigError(["privacy is off, and no epsilon is stated; audit a run with privacy."])
    choose_device(plan.config.device)
    try:
        try_task(plan.task, plan.config, [0])
    except TaskError as error:
        raise ConfigError([str(error)]) from error
    return plan


def audit_plan(
    plan: TrainingPlan, run: Path | None, *, effort: Effort, seed: int | None, tell: Callable[[str], None]
) -> Findings:
    """Audit a plan, see `auditor.audit`; of a finished run, the run's dashboard shows what attacks found."""
    began = time.time()
    found = audit(plan, run, effort=effort, seed=seed, tell=tell)
    if run is not None and (run_id := read_run_id(run)) and Ledger.exists(url := ledger_of(run)):
        record_audits(url, run_id, found.results(began), run)
    return found


def seed_of(given: Mapping[str, Value]) -> int | None:
    """The seed of an audit; None: one that nobody knows before."""
    return None if (seed := given.get("seed")) is None else int(seed)


def _plan_of_run(given: Mapping[str, Value], run: Path, task: Task | None) -> TrainingPlan:
    """Return the plan of a finished run.

    Raises:
        ConfigError: other settings are given, or another task than the run's.
        RunFolderError: the folder holds no run.
    """
    _, wrong = parse(FIELDS, given)
    beside = "beside run, which is audited with the settings that it had; leave it out."
    if problems := [*wrong.values()] or [f"{key} is set {beside}" for key in sorted(given.keys() - _BESIDE_RUN)]:
        raise ConfigError(problems)
    read_history(run)  # says of a folder without a run that there is none
    config = read_config(run)
    device = str(given.get("device", config.device))
    check_device(device)
    try:
        named = load_task(str(given["task"])) if "task" in given else task
        return TrainingPlan(replace(config, device=device), agreed(config.task, named))
    except TaskError as error:
        raise ConfigError([str(error)]) from error


@contextmanager
def progress_on(console: Console) -> Iterator[Callable[[str], None]]:
    """Show a line for each part of an audit, with the time that it took so far; at the end all of them are gone.

    Yields:
        A function to call with the name of each part when it begins.
    """
    columns = SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), TimeElapsedColumn()
    with Bar(*columns, console=console, transient=True) as lines:

        def tell(doing: str) -> None:
            for before in lines.task_ids:
                lines.update(before, completed=1.0)
            lines.add_task(f"auditing: {doing}", total=1.0)

        yield tell
