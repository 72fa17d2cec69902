"""The auditor: every gate, and every attack, on the client that a run would ask; for scripts and for commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

from rich.console import Console
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedprivacy._support.console import Bar, console_of
from fedprivacy._support.imports import needing_extras
from fedprivacy._support.settings import parse
from fedprivacy._support.sources import hushed, kind_and_place
from fedprivacy.audit.findings import Findings, Gate, LowerBound
from fedprivacy.audit.gates import (
    Judged,
    claimed_epsilon,
    deployed_client,
    four_claims,
    invariance,
    local_evaluation,
    verdict,
)
from fedprivacy.audit.host import Host, Node
from fedprivacy.audit.lower_bounds import lower_bounds
from fedprivacy.audit.our_client import OurClient
from fedprivacy.audit.our_client.audited_client import Audited, Parameters
from fedprivacy.audit.real_client import AuditedTraining, NoUpdateError
from fedprivacy.audit.subject import Effort, audit_seed
from fedprivacy.flower.simulated.engine import quiet_flower
from fedprivacy.flower.simulated.trial import try_task
from fedprivacy.gradients import trainable_parameters
from fedprivacy.ledger import Ledger
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import (
    MODEL,
    RunFolderError,
    check_writable,
    ledger_of,
    plan_of,
    read_config,
    read_history,
    read_run_id,
)
from fedprivacy.runs.records.run import Run
from fedprivacy.runs.records.store.writer import record_audits
from fedprivacy.runs.settings.configuration import FIELDS, ConfigError, Value
from fedprivacy.runs.settings.device import check_device, choose_device
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords, takes_settings
from fedprivacy.tasks import Shard, Task, TaskError, load_task
from fedprivacy.tasks.loader import open_task

GATES: dict[str, Callable[[OurClient], Gate]] = {
    "release": four_claims.release,
    "replay": four_claims.replay,
    "noise": four_claims.noise,
    "sampling": four_claims.sampling,
    "invariance": invariance.check,
    "evaluation": local_evaluation.check,
    "ledger": claimed_epsilon.check,
}
"""Gates by name, in the order in which they run."""

NODE_GATES: dict[str, Callable[[Audited, Host], Gate]] = {
    "node": deployed_client.check_duties,
    "node-noise": deployed_client.check_noise,
    "reading": deployed_client.check_reading,
}
"""Gates of a deployed client, by name; they run first."""

CONFIDENCE = 0.9999
"""Probability that all lower bounds of an audit hold: one above the stated epsilon is then a bug, not an accident."""

_UNANSWERED = verdict(
    "attacks",
    "The client that runs can be attacked.",
    "Nothing else is assumed.",
    Judged(0.0, ["The client sent no update when it was attacked: no attack could show how much is lost."]),
)
"""Gate that fails if a client does not answer: silence must not pass for an attack that found nothing."""

_BESIDE_RUN = frozenset({"seed", "out", "device", "task"})
"""The settings that the audit of a finished run takes: a task only if it is the run's, and a device of this machine."""


class NodeAuditError(RuntimeError):
    """An audit of a host that could not be finished; says nothing of any record."""


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
        raise ConfigError("privacy is off, and no epsilon is stated; audit a run with privacy.")
    choose_device(plan.config.device)
    try:
        try_task(plan.task, plan.config, [0])
    except TaskError as error:
        raise ConfigError(str(error)) from error
    return plan


def audit_plan(
    plan: TrainingPlan, run: Path | None, *, effort: Effort, seed: int | None, tell: Callable[[str], None]
) -> Findings:
    """Audit the training that a plan would grant its clients; of a finished run, what its folder says as well.

    The dashboard of a finished run shows what attacks found.

    Args:
        plan: task and settings.
        run: the folder of a finished run, whose model is attacked, too; None: there is none.
        effort: how long it may take.
        seed: of what the auditor draws; None: nobody knows before what will be asked.
        tell: is told what is done next.

    Raises:
        RunFolderError: the folder holds no run, or the model of another task.
        TaskError: the task has no records to audit with.
    """
    began = time.time()
    trained = None if run is None else _final_model(run, plan.task)
    audited = OurClient.of(plan, effort=effort, seed=audit_seed(seed))
    with silence():
        gates = [*_gates(audited, run, tell)]
        tell("attacks")
        bounds = _attack(audited, audited.shard, gates, trained)
    found = _findings(f"task {plan.config.task}" if run is None else f"run {run.name}", audited, gates, bounds)
    if run is not None and (run_id := read_run_id(run)) and Ledger.exists(url := ledger_of(run)):
        record_audits(url, run_id, found.results(began), run)
    return found


def seed_of(given: Mapping[str, Value]) -> int | None:
    """The seed of an audit; None: one that nobody knows before."""
    return None if (seed := given.get("seed")) is None else int(seed)


def audit_node(
    node: Node,
    plan: TrainingPlan,
    *,
    effort: Effort = Effort.QUICK,
    seed: int | None = None,
    tell: Callable[[str], None] = lambda doing: None,
) -> Findings:
    """Audit what a data owner's host would run: as it is deployed, and with the same task, shard and device, seeded.

    Formal guarantee: the owner's guard is neither read nor written, nothing is sent anywhere, and no number that is
    computed from the records without noise is in what is found, nor what the task prints, nor the text of an error. The
    number of records is in it only where the task makes it public.

    Args:
        node: the host's configuration.
        plan: of the run that it is audited for, as `Node.worst` or `Node.make_plan` makes it.
        effort: how long it may take.
        seed: of what the auditor draws; what the deployed client draws is secret.
        tell: is told what is done next.

    Raises:
        NodeAuditError: the task failed where no client would have answered for it.
    """
    try:
        with silence(), hushed():
            audited = replace(OurClient.of(plan, node.shard, effort=effort, seed=audit_seed(seed)), confidential=True)
            with Host.of(node) as host:
                gates = []
                for name, check in NODE_GATES.items():
                    tell(name)
                    gates.append(check(audited, host))
            gates += _gates(audited, None, tell)
            tell("attacks")
            bounds = _attack(audited, None, gates)
    except Exception as error:  # whose text may hold values
        raise NodeAuditError(
            f"{node.file}: the audit could not be finished ({kind_and_place(error)}). What the error says may hold "
            "values and is not shown; 'fedprivacy audit --task' with the same task, on made-up records, shows it."
        ) from None
    return _findings(f"node configuration {node.file} (task {node.word})", audited, gates, bounds)


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
        return TrainingPlan(replace(config, device=device), open_task(config.task, named))
    except TaskError as error:
        raise ConfigError(str(error)) from error


def _attack(
    audited: Audited, own: Shard | None, gates: list[Gate], trained: Parameters | None = None
) -> tuple[LowerBound, ...]:
    """Return what attacks showed: with a record of `own` and at a trained model, if there are any."""
    try:
        return lower_bounds(
            audited.task,
            own,
            _training(audited),
            seed=audited.seed,
            confidence=CONFIDENCE,
            device=audited.device,
            trained=trained,
        )
    except NoUpdateError:
        gates.append(_UNANSWERED)
        return ()


def _findings(subject: str, audited: Audited, gates: list[Gate], bounds: tuple[LowerBound, ...]) -> Findings:
    return Findings(
        subject=subject,
        seed=audited.seed,
        gates=tuple(gates),
        lower_bounds=bounds,
        epsilon_upper=audited.claim.epsilon,
        delta=audited.claim.delta,
        unit=audited.grant.unit,
    )


def _gates(audited: OurClient, run: Path | None, tell: Callable[[str], None]) -> Iterator[Gate]:
    for name, check in GATES.items():
        tell(name)
        yield check(audited)
    if run is not None:
        tell("the run's own figures")
        yield claimed_epsilon.check_run(run)


def _final_model(run: Path, task: Task) -> Parameters | None:
    """Return the final model of a run; None: it has left none.

    Raises:
        RunFolderError: the file holds no model, or that of another task.
    """
    if not (file := run / MODEL).exists():
        return None
    try:
        parameters = load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"'{file}' holds no model ({error}); put back an undamaged copy.") from error
    expected = {name: tuple(values.shape) for name, values in trainable_parameters(task.model()).items()}
    if {name: values.shape for name, values in parameters.items()} != expected:
        raise RunFolderError(f"'{file}' holds another model than its task makes now; audit with the task as it was.")
    return parameters


def _training(audited: Audited) -> AuditedTraining:
    """The whole of the run, for attacks."""
    grant = audited.grant
    return AuditedTraining(
        event=grant.event,
        steps=grant.training_steps * audited.claim.rounds,
        delta=audited.claim.delta,
        clipping_norm=grant.clipping_norm,
        clipping=grant.clipping,
        expected_batch_size=grant.expected_batch_size,
        unit=audited.task.unit,
        autocast=audited.autocast,
    )


@contextmanager
def silence() -> Iterator[None]:
    """Keep the logs of clients, servers and Flower to themselves: of a run that nobody started, and of refusals."""
    logger = logging.getLogger("fedprivacy")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with quiet_flower():
            yield
    finally:
        logger.setLevel(level)


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
