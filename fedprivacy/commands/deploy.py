"""`fedprivacy deploy`: make what each party of a deployment needs, check a host, start runs, rehearse it all here."""

from __future__ import annotations

import json
import shlex
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedprivacy._support.durable import name_durably, write_unnamed
from fedprivacy._support.logs import FORMAT, LEVEL, LogFormat, LogLevel, LogSettings
from fedprivacy.commands.mistyped import Commands
from fedprivacy.commands.terminal import (
    OUT,
    OUTPUT,
    PLAIN,
    Json,
    LogForm,
    LogTo,
    as_typed,
    ends_in_order,
    plain_errors,
    print_json,
)
from fedprivacy.deploy.services import Platform
from fedprivacy.tasks.identity import DEFAULT_TASK

if TYPE_CHECKING:
    from fedprivacy.deploy.inspection import Finding

deploy_app = Commands(no_args_is_help=True, help="Deploy on real hosts: write what each needs, check it, run.")


@deploy_app.command()
def init(
    description: Annotated[
        Path | None, typer.Argument(metavar="DESCRIPTION", help="Of the deployment, in TOML.", show_default=False)
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder for the parties' folders.")] = Path("deployment"),
    platform: Annotated[
        Platform, typer.Option("--for", help="Program that runs the services on hosts whose folders are written now.")
    ] = Platform.SYSTEMD,
    example: Annotated[bool, typer.Option("--example", help="Print a description to start from, and stop.")] = False,
) -> None:
    """Write everything that a deployment needs, in a folder for each party; later, for the clients that are new.

    Nothing that is there is overwritten. Each folder has a README.md that says where it goes and what to type there.
    """
    from fedprivacy.deploy.description import EXAMPLE
    from fedprivacy.deploy.handouts import write_handouts

    if example:
        PLAIN.print(EXAMPLE, end="")
        return
    if description is None:
        raise typer.BadParameter("name a description; --example prints one to start from.")
    with _show_mistakes():
        made = write_handouts(description, out, platform)
    if made.new:
        PLAIN.print(f"{made.folder / 'server'} is for the server's host, each of these for one client alone:")
    elif made.clients:
        PLAIN.print("Added, each for one client alone:")
    else:
        PLAIN.print(f"Nothing is missing in {made.folder}.")
    for name in made.clients:
        PLAIN.print(f"  {made.folder / 'clients' / name}")
    if made.new:
        PLAIN.print(f"Take {made.folder / 'ca'} off this machine and keep it offline.")
    if made.clients:
        PLAIN.print(f"Next: {made.folder / 'README.md'} says what goes to whom, in order.")


@deploy_app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="This host's folder, as deploy init made it.", show_default=False)],
    *,
    metrics: Annotated[
        Path | None,
        typer.Option(help="File for node_exporter's textfile collector: the same for Prometheus.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Test this host, the server's or a client's, before a run does. Charges nothing.

    A client's line `cells`, and what is below it, is of private records: do not send it. --json leaves it out. Exit
    code 1: a check failed, maybe that one.
    """
    from fedprivacy.deploy.client_inspection import inspect_client
    from fedprivacy.deploy.description import Party
    from fedprivacy.deploy.inspection import CheckResult, metrics_text
    from fedprivacy.deploy.server_inspection import inspect_server

    with _show_mistakes():
        party = Party.read(folder)
    inspected = (inspect_server if party.is_server else inspect_client)(party, folder)
    found = []
    for finding in inspected:
        found.append(finding)
        if not as_json:
            OUT.print(_finding_line(finding))
    failed = any(finding.verdict is CheckResult.FAILED for finding in found)
    if metrics:
        with plain_errors(OSError, code=2):
            name_durably(write_unnamed(metrics, metrics_text(party, found, time.time()).encode(), 0o644), metrics)
    if as_json:
        told = [finding for finding in found if not finding.local]
        checks = [{name: value for name, value in asdict(finding).items() if name != "local"} for finding in told]
        ok = all(finding.verdict is not CheckResult.FAILED for finding in told)
        print_json({"party": party.party, "ok": ok, "checks": checks})
    elif not party.is_server and not failed:
        command = f"{as_typed()} audit --node {shlex.quote(str(folder))}"
        PLAIN.print(f"Next: '{command}' looks whether the code that will run here deserves its epsilon.")
    raise typer.Exit(1 if failed else 0)


@deploy_app.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="This host's folder, as deploy init made it.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="New file, outside of the folder.", show_default=False)],
) -> None:
    """Back up this host, the server's or a client's, while it runs. The file holds its secret keys.

    Exit code 1: the server's ledger does not verify, and nothing was written.
    """
    from fedprivacy.deploy.backup import write_backup
    from fedprivacy.flower.client.node import Refused
    from fedprivacy.ledger import LedgerError
    from fedprivacy.ledger.replay import BrokenJournalError

    mistakes = (Refused, LedgerError, OSError, tomllib.TOMLDecodeError)
    with _show_mistakes(), plain_errors(*mistakes, code=2), plain_errors(BrokenJournalError, code=1):
        made = write_backup(folder, out)
    ledger = "" if made.entries is None else f" {made.entries:,} entries of the ledger are verified."
    PLAIN.print(f"{out}: {made.files:,} files, {made.size / 1e6:,.1f} MB.{ledger}")
    PLAIN.print("It holds this host's secret keys: keep it where nobody else can read it.")
    for path in made.left_out:
        PLAIN.print(f"Not in it: {path}")


@deploy_app.command()
def run(
    app: Annotated[Path, typer.Argument(help="Folder of the Flower app.", show_default=False)],
    *,
    run_config: Annotated[Path, typer.Option(help="The run's settings, in TOML.")] = Path("run.toml"),
    connection: Annotated[str, typer.Option(help="Of ~/.flwr/config.toml, to the SuperLink.")] = "deployment",
) -> None:
    """Run an app on the deployment, on the server's host, and follow it to its end.

    Exit code 0: the run completed; 1: it did not, or nobody trained, or a client did not answer the run's questions;
    2: its settings are wrong, and nothing was started.
    """
    from fedprivacy.commands.outcome import nobody_trained
    from fedprivacy.deploy.submission import Operator, Submission
    from fedprivacy.runs.records.folder import read_history
    from fedprivacy.values.wording import count_text, epsilon_text, metric_name, metric_text

    with _show_mistakes():
        submission = Submission.of(app, run_config)
        Operator(connection).run(submission, PLAIN.print)
        if submission.settings.get("questions"):
            _show_answers(submission.out)
            return
        history = read_history(submission.out)
    if idle := nobody_trained(history):
        PLAIN.print(f"{idle} Results in {submission.out}")
        raise typer.Exit(1)
    value = metric_text(history.metric, history.newest_metrics.get(history.metric))
    result = f"{metric_name(history.metric)} {value}, largest epsilon {epsilon_text(history.last.max_epsilon)}"
    PLAIN.print(f"Completed: {count_text(len(history.rounds), 'round')}, {result}; results in {submission.out}")


def _show_answers(out: Path) -> None:
    """Say where the answers of a deployment are, and which clients gave none."""
    from fedprivacy.server.app import ANSWERS

    PLAIN.print(f"Completed: the questions are answered; answers in {out / ANSWERS}")
    failures: dict[str, str] = json.loads((out / ANSWERS).read_text())["failures"]
    for client_id, reason in failures.items():
        PLAIN.print(f"{client_id} did not answer: {reason}")
    if failures:
        raise typer.Exit(1)


@deploy_app.command("logged")
def run_and_log(
    command: Annotated[
        list[str], typer.Argument(help="After --: a program of Flower's, and its arguments.", show_default=False)
    ],
    *,
    log_format: LogForm = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option(envvar=LEVEL, rich_help_panel=OUTPUT, help="Least level that is logged.")
    ] = LogLevel.INFO,
    log_file: LogTo = None,
) -> None:
    """Run a program of Flower's, and log what it and the apps print: one event a line, with its time.

    It ends with the program, and as it did; SIGTERM, SIGINT and SIGHUP are forwarded.
    """
    from fedprivacy.deploy.processes import run_logged

    settings = LogSettings(log_format, log_level)
    with plain_errors(OSError, code=2):
        settings.begin(log_file)
        code = run_logged(command, settings)
    raise typer.Exit(code)


@deploy_app.command()
def keys(
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    host: Annotated[
        list[str] | None, typer.Option(help="DNS name or IP address that clients reach the server by; repeat for more.")
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="Name of a client to make a key pair for; repeat for more.")
    ] = None,
    days: Annotated[int, typer.Option(help="Validity of the certificates, in days.")] = 365,
) -> None:
    """Make a certificate authority, the server's certificate and the clients' key pairs."""
    from fedprivacy.deploy.keys import write_keys

    with _show_mistakes():
        made = write_keys(out, host or (), client or (), days=days)
    PLAIN.print(made.handout())


@deploy_app.command()
def renew(
    folder: Annotated[Path, typer.Argument(help="Of deploy init or deploy keys, with ca/.")] = Path("deployment"),
    *,
    authority: Annotated[
        str | None,
        typer.Option(help="Change the authority: add a second one; switch the server to it; drop the first."),
    ] = None,
    days: Annotated[int, typer.Option(help="Validity of the server's certificate, in days.")] = 365,
) -> None:
    """Renew the server's certificate under the same authority, which no client notices; or change the authority.

    With an authority's steps, clients may follow on different days: docs/how-to/keys.md.
    """
    from fedprivacy.deploy.keys import SWITCH, fingerprint
    from fedprivacy.deploy.keys import renew as renew_certificates

    with _show_mistakes():
        now = renew_certificates(folder, authority, days=days)
    trusted = ", ".join(fingerprint(each)[:11] for each in now.authorities)
    PLAIN.print(f"ca.crt trusts {trusted}; server.crt is from {fingerprint(now.issuer)[:11]}.")
    if authority in (None, SWITCH):
        until = f"{now.server.not_valid_after_utc:%Y-%m-%d}"
        PLAIN.print(f"New, until {until}: server.crt and server.key in {folder / 'server'}.")
        PLAIN.print("Next: copy both to the server's host and start its services again between two runs.")
    else:
        PLAIN.print(f"New: ca.crt in {folder / 'server'} and in each client's folder. To be compared by telephone:")
        PLAIN.print(f"  {fingerprint(now.authorities[0])}")
        PLAIN.print("Next: bring it to the server's host and to every client, each of which starts its services again.")


@deploy_app.command()
def client_key(
    name: Annotated[str, typer.Argument(help="The client's name, the same as the operator registers.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(),
) -> None:
    """Make one client's key pair, on that client's own host."""
    from fedprivacy.deploy.keys import write_client_key

    with _show_mistakes():
        made = write_client_key(out, name)
    PLAIN.print(f"{made.private_key} is secret and stays on this host.")
    PLAIN.print(f"Send {made.public_key} to the server's operator, who registers it as {name}.")


@deploy_app.command()
def signing_key(
    file: Annotated[Path, typer.Argument(help="Where the key lies, or shall lie; the run's signing-key.")],
) -> None:
    """Make the server's key that signs grants and the ledger, and show what the clients need of it."""
    from fedprivacy._support.signing import server_key, server_public_key

    with _show_mistakes():
        public = server_public_key(server_key(file))
    PLAIN.print(f"{file} is secret and stays on this host. In every client's node-config.toml:")
    PLAIN.print(f'server-key = "{public}"')


@deploy_app.command()
def app(
    folder: Annotated[Path, typer.Argument(help="New folder for the app; the app goes by its name.")],
    task: Annotated[str, typer.Option(help="A built-in task, or path/to/file.py:Name of your own.")] = DEFAULT_TASK,
    clients: Annotated[int, typer.Option(help="How many clients a run waits for.", min=1)] = 3,
) -> None:
    """Write a Flower app for a task: what `flwr run` sends to servers and clients."""
    from fedprivacy.deploy.app_folder import write_app

    with _show_mistakes():
        made = write_app(folder, task, clients=clients)
    data = "" if task == made.task else " --data FOLDER"
    PLAIN.print(f"{made.folder} is a Flower app; its README.md says what each file is.")
    PLAIN.print(f'In every client\'s node-config.toml: task = "{made.task}"')
    PLAIN.print(f"Next: {as_typed()} deploy demo --app {made.folder}{data} rehearses it on this host.")


@deploy_app.command()
def demo(
    *,
    app: Annotated[Path | None, typer.Option(help="Folder of the Flower app to run; by default one is made.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder that holds a folder of records for each client; by default three parts of digits."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for everything; by default one under runs/.")] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.", min=1)] = 3,
    epsilon: Annotated[float, typer.Option(help="Each hospital's own privacy budget.")] = 3.0,
    delta: Annotated[float, typer.Option(help="Delta of that budget.")] = 1e-4,
    log_format: Annotated[
        LogFormat, typer.Option(envvar=FORMAT, rich_help_panel=OUTPUT, help="Form of the log files.")
    ] = LogFormat.TEXT,
) -> None:
    """Rehearse a deployment: hospitals on this host, TLS, authenticated SuperNodes, a few rounds."""
    from fedprivacy.commands.outcome import client_table
    from fedprivacy.deploy.app_folder import checked_plan, task_of, write_app
    from fedprivacy.deploy.demo import DemoDigits, OwnFolders, run_demo
    from fedprivacy.runs.records.folder import REPORT, check_usable, new_run_folder, plan_of, read_history

    directory = out or Path(new_run_folder("deploy-demo"))
    with _show_mistakes():
        records = OwnFolders(data) if data else DemoDigits()
        budget = {"epsilon": epsilon, "delta": delta}
        settings = {"rounds": rounds, "clients": len(records.clients), **budget}
        if app:
            checked_plan(app, settings)
        else:
            plan_of({"task": DEFAULT_TASK, **settings})
        check_usable(directory)
        folder = app or write_app(directory / "app", DEFAULT_TASK).folder
        results = run_demo(
            directory,
            folder,
            records,
            clients=records.clients,
            run_config={"task": task_of(folder), "rounds": rounds, **budget},
            node_config=budget,
            console=OUT,
            form=log_format,
        )
    OUT.print(client_table(read_history(results)), highlight=False)
    PLAIN.print(f"Report: {results / REPORT}\nLogs: {directory.resolve() / 'logs'}")
    PLAIN.print(f"In a browser: {as_typed()} dashboard --store {results}")
    PLAIN.print(f"Next: {as_typed()} deploy init --example prints what a deployment on real hosts begins with.")


def _finding_line(finding: Finding) -> Table:
    """A finding on a line: how it ended, what was checked, what was found; its remedy below."""
    line = Table.grid(padding=(0, 2))
    for width in (7, 12, None):
        line.add_column(width=width, overflow="fold")
    colour = {"ok": "green", "warning": "yellow", "failed": "bold red"}[finding.verdict]
    line.add_row(Text(finding.verdict, colour), finding.check, Text(finding.words))
    if finding.remedy:
        line.add_row("", "", Text(f"→ {finding.remedy}"))
    for words in finding.local:
        line.add_row("", "", Text(words, "dim"))
    return line


@contextmanager
def _show_mistakes() -> Iterator[None]:
    """Show a user's mistake as plain text with exit code 2, and a failure of the deployment itself with 1."""
    from fedprivacy._support.signing import SigningKeyError
    from fedprivacy.deploy.description import SetupError
    from fedprivacy.deploy.federation import DeploymentError
    from fedprivacy.deploy.keys import KeyFileError
    from fedprivacy.deploy.processes import ProcessError
    from fedprivacy.runs.records.folder import RunFolderError
    from fedprivacy.runs.settings.configuration import ConfigError
    from fedprivacy.tasks import TaskError

    mistakes = (ConfigError, KeyFileError, RunFolderError, SetupError, SigningKeyError)
    failures = (DeploymentError, ProcessError)
    with ends_in_order(), plain_errors(*failures, code=1), plain_errors(*mistakes, TaskError, code=2):
        yield
