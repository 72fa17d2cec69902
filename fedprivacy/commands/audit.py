"""`fedprivacy audit`: evidence that the code which runs deserves its epsilon, in the terminal and as a page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedprivacy._support.console import figure_columns, text_columns
from fedprivacy._support.imports import MissingExtraError, needing_extras
from fedprivacy.audit.findings import Findings
from fedprivacy.commands.terminal import OUT, print_json

Audit = Callable[["Effort", Callable[[str], None]], Findings]
"""An audit: how long it may take, and who is told what is done next."""

if TYPE_CHECKING:
    from fedprivacy.audit.subject import Effort

READ_ON = "What that proves, and what it cannot: docs/explanation/is-your-model-private.md"


def audit(
    settings: dict[str, Any],
    *,
    run: Path | None,
    node: Path | None,
    run_config: Path | None,
    app: str | None,
    full: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Audit and show what was found; see the command's help."""
    from fedprivacy.audit.auditor import progress_on
    from fedprivacy.audit.subject import Effort
    from fedprivacy.runs.records.folder import check_writable, new_run_folder

    _check_one(run=run, node=node, app=app, run_config=run_config)
    place = Path(settings.get("out") or run or new_run_folder("audit"))
    console = Console(file=sys.stderr, emoji=False, quiet=as_json or quiet)  # though what a task prints is hushed
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what a task prints is no JSON
        if node is not None:
            audited = _audit_of_node(settings, node, run_config)
        elif app is not None:
            audited = _audit_of_app(settings, app)
        else:
            audited = _audit_of_run(settings, run)
        check_writable(place)
        began = time.time()
        with progress_on(console) as tell:
            findings = audited(Effort.FULL if full else Effort.QUICK, tell)
        page, unwritten = _page(findings, began, place)
    if as_json:
        print_json(findings.summary() | {"page": page, "seconds": round(time.time() - began, 1)})
    else:
        _show(findings, page or f"none; {unwritten}", time.time() - began, quiet=quiet)
    raise typer.Exit(0 if findings.passed else 1)


def _page(findings: Findings, began: float, place: Path) -> tuple[str | None, str]:
    """Write the findings into a folder; return the page's path, or None and what is not installed."""
    try:
        with needing_extras():
            from fedprivacy.audit.findings_page import write_page
    except MissingExtraError as error:  # at a data owner's host the findings count, not their figure
        return None, str(error)
    return str(write_page(findings, began, place)), ""


def _check_one(*, run_config: Path | None, **subjects: object) -> None:
    """Refuse two subjects at once, and what belongs to another one. Raises ConfigError: names both."""
    from fedprivacy.runs.settings.configuration import ConfigError

    chosen = [name for name, given in subjects.items() if given is not None]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} are both set; audit one after the other.")
    if run_config is not None and "node" not in chosen:
        raise ConfigError("run-config is set without --node; of a simulation, type the settings.")


def _check_only(taken: set[str], settings: dict[str, Any], reason: str) -> None:
    """Refuse settings that an audit does not take, with the reason and what to do. Raises ConfigError: names one."""
    from fedprivacy.runs.settings.configuration import ConfigError

    if others := sorted(settings.keys() - taken):
        raise ConfigError(f"{others[0]} is set, and {reason}")


def _audit_of_run(settings: dict[str, Any], run: Path | None) -> Audit:
    """The audit of a run that the settings ask for, or of a finished one. Raises what `plan_to_audit` does."""
    from fedprivacy.audit.auditor import audit_plan, plan_to_audit, seed_of

    plan = plan_to_audit(settings, run)
    return lambda effort, tell: audit_plan(plan, run, effort=effort, seed=seed_of(settings), tell=tell)


def _audit_of_app(settings: dict[str, Any], app: str) -> Audit:
    """The audit of an app.

    Raises:
        ConfigError: settings of a run are given beside the app.
        AppError: there is no such app.
    """
    from fedprivacy.audit.apps import audit_app, load_app

    _check_only({"seed", "out"}, settings, "--app audits an app with the settings that it states; leave it out.")
    make = load_app(app)
    return lambda effort, tell: audit_app(make, app, effort=effort, seed=settings.get("seed"), tell=tell)


def _audit_of_node(settings: dict[str, Any], config: Path, run_config: Path | None) -> Audit:
    """The audit of what a data owner's host would run: with the settings that are given, else the costliest it takes.

    Raises:
        ConfigError: the configuration or the settings cannot be used.
    """
    from fedprivacy.audit.auditor import audit_node
    from fedprivacy.audit.host import TRAINING, Node, run_settings

    _check_only({"seed", "out", "task", *TRAINING}, settings, "no client sees it; leave it out beside --node.")
    node = Node.read(config, settings.get("task"))
    given = run_settings(run_config) if run_config is not None else {}
    given |= {key: value for key, value in settings.items() if key in TRAINING}
    plan = node.make_plan(given) if given else node.worst()
    return lambda effort, tell: audit_node(node, plan, effort=effort, seed=settings.get("seed"), tell=tell)


MOST_REASONS = 5
"""Maximum number of reasons that are shown of a gate that failed: a claim may be wrong for every client."""


def _show(findings: Findings, page: str, seconds: float, *, quiet: bool) -> None:
    """Gates, reasons, bounds, and the last word; the last one alone if `quiet`."""
    last = f"[bold]Audit of {escape(findings.subject)} {escape(findings.in_words())}[/] ({seconds:.0f} s)."
    if quiet:
        OUT.print(last, soft_wrap=True)
        return
    OUT.print(_gates(findings))
    for gate in findings.failed:
        for reason in gate.reasons[:MOST_REASONS]:
            OUT.print(f"[red]{gate.name}:[/] {escape(reason)}", soft_wrap=True)
        if more := len(gate.reasons[MOST_REASONS:]):
            OUT.print(f"[red]{gate.name}:[/] and {more:,} more, in the report")
    if findings.lower_bounds:
        OUT.print(_bounds(findings))
    OUT.print(f"\n{last}")
    OUT.print(f"Seed {findings.seed} asks the same again.\n{READ_ON}\nReport: {escape(page)}", soft_wrap=True)


def _gates(findings: Findings) -> Table:
    table = Table("gate", "verdict", *figure_columns("p-value", wrapped=True), *text_columns("what holds if it passes"))
    table.caption = "p-value: how likely so extreme a result is where nothing is wrong."
    for gate in findings.gates:
        colour = "[green]" if gate.passed else "[bold red]"
        table.add_row(gate.name, f"{colour}{gate.verdict}", gate.p_value_text, escape(gate.proves))
    return table


def _bounds(findings: Findings) -> Table:
    from fedprivacy.values.wording import delta_text, epsilon_text, proved_text

    upper = epsilon_text(findings.epsilon_upper)
    sure = f"{100.0 * findings.confidence:.5g} %"
    seen = f"At delta {delta_text(findings.delta)}, as the server sees it; all hold with {sure} confidence."
    table = Table("attack", *figure_columns("epsilon at least", "stated at most", wrapped=True), caption=seen)
    for bound in findings.lower_bounds:
        colour = "[bold red]" if bound in findings.violated else ""
        table.add_row(bound.name, f"{colour}{proved_text(bound.epsilon)}", upper)
    return table
