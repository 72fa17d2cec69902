"""The command line, and the composition root: the one module that joins library, server and clients."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedprivacy._support.imports import installed, lacks
from fedprivacy._support.logs import LEVEL, LogFormat, LogLevel, LogSettings
from fedprivacy._support.settings import fields_of, kind_of
from fedprivacy.commands.calculator.cli import epsilon, risk, sigma
from fedprivacy.commands.deploy import deploy_app
from fedprivacy.commands.guard import guard_app
from fedprivacy.commands.ledger import ledger_app
from fedprivacy.commands.mistyped import Commands
from fedprivacy.commands.runs import compare, run_sweep, runs_app
from fedprivacy.commands.terminal import (
    OUT,
    OUTPUT,
    PLAIN,
    Json,
    LogForm,
    LogTo,
    Quiet,
    Verbose,
    as_typed,
    ends_in_order,
    plain_errors,
    print_answer,
    print_json,
    print_what_the_terminal_lacks_as_ascii,
)
from fedprivacy.runs.settings.configuration import (
    ASKING_KEYS,
    FIELDS,
    GROUPS,
    RUNS,
    SWEEP_KEYS,
    TRAINING_KEYS,
    ConfigError,
    RunConfig,
    words_of,
)
from fedprivacy.runs.settings.run_file import settings_in

app = Commands(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(deploy_app, name="deploy")
app.add_typer(ledger_app, name="ledger")
app.add_typer(guard_app, name="guard")
app.add_typer(runs_app, name="runs")


def _show_version(wanted: bool) -> None:
    if wanted:
        from fedprivacy import __version__

        PLAIN.print(f"fedprivacy {__version__}")
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning with differential privacy: every client's privacy loss, composed, enforced and shown."""
    print_what_the_terminal_lacks_as_ascii()


_BESIDE = Annotated[bool, typer.Option("--dashboard", help="Open the dashboard beside the run, on port 8050.")]
_PROFILE = Annotated[
    bool, typer.Option("--profile", help="Record where the time goes: a table and a trace, as private as the records.")
]
_WORKERS = Annotated[
    int | None,
    typer.Option(
        help="Processes that train 100 clients and more, each on a GPU or a part of one; no result differs. Default: "
        "one for each GPU if there are several, else 1; on a cluster, one for each of its GPUs or, without, CPUs.",
        show_default=False,
    ),
]
_RAY_ADDRESS = Annotated[
    str,
    typer.Option(help="Address of a running Ray cluster for these processes: host:port, or auto.", show_default=False),
]

_FILE = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with settings, such as the run.toml that every run leaves in its folder. Options win over it.",
        show_default=False,
    ),
]

_TRACEBACK = inspect.Parameter(
    "traceback",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--traceback", help="Show where in the code an error came from.")],
)


def with_settings(
    command: Callable[..., None], keys: Sequence[str] = TRAINING_KEYS, *, lists: bool = False
) -> Callable[..., None]:
    """Give a command one option for every setting of a run, and pass those that were given as `settings`.

    With `lists`, an option is a text: values of the setting, separated by commas. Of a command that takes a `file`, its
    settings are given, too, unless an option gives another value.
    """

    def wrapper(**options: Any) -> None:
        settings = {key: options.pop(FIELDS[key].name) for key in keys}
        typed = {key: value for key, value in settings.items() if value is not None}
        with _show_mistakes(traceback=options.pop("traceback"), quiet=options.get("quiet", False)):
            if options.get("quiet") and options.get("verbose"):
                raise ConfigError("quiet and verbose are both on; give one of them.")
            command((settings_in(options["file"], keys) if options.get("file") else {}) | typed, **options)

    own = [p for name, p in inspect.signature(command, eval_str=True).parameters.items() if name != "settings"]
    parameters = [*(_option(key, lists=lists) for key in keys), *own, _TRACEBACK]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    return wrapper


_QUESTIONS = {key: group.question for group in GROUPS for key in fields_of(group)}
"""The question that each setting answers: a heading of the help, in the order in which people ask."""


def _option(key: str, *, lists: bool) -> inspect.Parameter:
    field = FIELDS[key]
    kind: type = str if lists else {"bool": bool, "int": int, "float": float, "str": str}[kind_of(field)]
    name = f"--{key}/--no-{key}" if kind is bool else f"--{key}"
    option = typer.Option(name, help=escape(words_of(field)), show_default=False, rich_help_panel=_QUESTIONS[key])
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@app.command()
@with_settings
def simulate(
    settings: dict[str, Any],
    *,
    file: _FILE = None,
    workers: _WORKERS = None,
    ray_address: _RAY_ADDRESS = "",
    dashboard: _BESIDE = False,
    profile: _PROFILE = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a task on simulated clients, each within its privacy budget; or go on with a run that was stopped."""
    from fedprivacy._support.console import console_of
    from fedprivacy.commands import outcome
    from fedprivacy.runs.placement import Placement
    from fedprivacy.runs.records.folder import REPORT
    from fedprivacy.simulation.profile import TABLE, TRACE
    from fedprivacy.simulation.simulate import prepare_plan, run

    plan, placement = prepare_plan(settings), Placement(workers, ray_address)
    config, console = plan.config, console_of(shown=not (as_json or quiet))
    with _dashboard_if(dashboard, config, console):
        history = run(plan, placement, console, profile=profile).history
        if as_json:
            trace = {"profile": str(Path(config.out) / TRACE)} if profile else {}
            print_json(history.summary() | {"out": config.out} | trace)
        elif quiet:
            OUT.print(outcome.result_text(history, config), highlight=False, soft_wrap=True)
        else:
            OUT.print(outcome.client_table(history, whole=verbose), highlight=False)
            if spread := outcome.held_out_table(history):
                OUT.print(spread)
            for line in outcome.failures(history):
                OUT.print(f"[yellow]{escape(line)}")
            given = settings | ({"config": str(file)} if file else {})
            OUT.print(
                outcome.outcome_text(history, config, given, placement, verbose=verbose),
                highlight=False,
                soft_wrap=True,
            )
            if profile and (table := Path(config.out) / TABLE).exists():
                OUT.print(table.read_text(), highlight=False, soft_wrap=True, markup=False)
                how = "open it in chrome://tracing, or at https://ui.perfetto.dev, which sends it nowhere"
                OUT.print(f"Trace: {escape(str(Path(config.out) / TRACE))} ({how})", highlight=False, soft_wrap=True)
            if dashboard:
                from fedprivacy.dashboard.service import wait_for_reader

                wait_for_reader(console)
    idle = outcome.nobody_trained(history)
    if idle and not as_json:
        OUT.print(f"[yellow]{escape(idle)}", soft_wrap=True)
    undrawn = not (Path(config.out) / REPORT).exists() and not lacks("altair", "vl_convert")
    if idle or undrawn:
        raise typer.Exit(1)


@app.command()
def dashboard(
    *,
    store: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of a ledger, its SQLite file, or a folder of runs; repeatable. Default: ./runs, and the "
            "ledger of deployments.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Interface; any but this machine's own needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8050,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate chain, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, in PEM.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object once the page is open.")] = False,
    until_stdin_ends: Annotated[bool, typer.Option(hidden=True)] = False,
    log_format: LogForm = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            envvar=LEVEL,
            rich_help_panel=OUTPUT,
            help="Least level that is logged; info has a line for each request. Default: info, on a terminal warning.",
            show_default=False,
        ),
    ] = None,
    log_file: LogTo = None,
) -> None:
    """Show runs round by round in a browser: where each client's budget goes, live and afterwards. Read-only.

    On an address that other machines reach, a token is needed: one is made and shown on the terminal, unless the
    environment variable FEDPRIVACY_DASHBOARD_TOKEN holds one. Probes ask /healthz without a token: 200, or 503 where
    the ledger or the folder of runs cannot be read.
    """
    from fedprivacy.dashboard.security import TokenError
    from fedprivacy.dashboard.service import Address, Opened, ServingError, end_with_stdin, serve
    from fedprivacy.ledger import LedgerError
    from fedprivacy.runs.records.catalogue import Catalogue, default_sources

    def opened(page: Opened) -> None:
        if as_json:
            print_json({"url": page.url, "token": page.token})
        elif not for_people:
            page.log()
        else:
            OUT.print(page.words(as_typed(), sources), highlight=False, soft_wrap=True)

    for_people = sys.stdout.isatty() and log_format is LogFormat.TEXT
    logs = LogSettings(log_format, log_level or (LogLevel.WARNING if sys.stderr.isatty() else LogLevel.INFO))
    with plain_errors(OSError, code=2):
        logs.begin(log_file)
    with plain_errors(LedgerError, ServingError, TokenError, code=2):
        sources = store or default_sources()
        catalogue = Catalogue(sources)
        if until_stdin_ends:
            end_with_stdin()
        serve(catalogue, Address(host, port, tls_certificate, tls_key), opened, shown=as_json or for_people)


@app.command()
@with_settings
def plan(
    settings: dict[str, Any],
    *,
    file: _FILE = None,
    workers: _WORKERS = None,
    ray_address: _RAY_ADDRESS = "",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what each client would spend after each round, and the noise that the budget needs. Runs nothing.

    Takes the options of simulate, so that one command line serves both.
    """
    from fedprivacy.commands.run_tables import plan_table, plan_text
    from fedprivacy.runs.prospect import Prospect, spending
    from fedprivacy.runs.records.folder import plan_of

    run = plan_of(settings)
    if as_json:
        print_json(dataclasses.asdict(Prospect.of(run)))
    elif quiet:
        PLAIN.print(plan_text(run, spending(run)))
    else:
        OUT.print(plan_table(run, spending(run)))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="That a run wrote to (out).")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report and figure. Default: the run's own.", show_default=False)
    ] = None,
) -> None:
    """Draw the report of a run again, from the rounds in its folder: also of one that was stopped or goes on."""
    from fedprivacy.runs.records.folder import REPORT, RunFolderError, read_history
    from fedprivacy.runs.records.report import draw

    with plain_errors(RunFolderError, code=2):
        draw(read_history(folder), out or folder)
    OUT.print(f"Report: {escape(str((out or folder) / REPORT))}", highlight=False, soft_wrap=True)


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(show_default=False)] = "",
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Show the model mended, and the line to paste.")] = False,
    input_shape: Annotated[str, typer.Option(help="Shape of one record, for example 3,32,32.")] = "",
    input_integers: Annotated[bool, typer.Option("--input-integers", help="Records are integers: words.")] = False,
    data_folder: Annotated[
        Path | None, typer.Option(help="A client's data folder. Default: that of the task's file.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Name everything that keeps DP-SGD from training a model, each with its fix. Changes nothing.

    MODEL is a task, or path/to/file.py:Name of a function or class that makes an nn.Module. It is run on made-up
    records alone, of the shape of the task's own. Of a task that reads tables, one cell after another is changed in a
    copy of a few rows: no other record may change. Without MODEL, only this machine is described: how it computes
    gradients, and which extras are installed. Exit code 1: the model cannot be trained, or the task lets a record
    change others; 2: there is no such model.
    """
    from fedprivacy.commands import doctor as doctors
    from fedprivacy.tasks import TaskError

    if not model:
        machine = doctors.this_machine()
        if as_json:
            print_json(dataclasses.asdict(machine) | {"extras": installed()})
        else:
            OUT.print(f"This machine: {escape(machine.line)}.", highlight=False, soft_wrap=True)
            for refusal in machine.refused:
                OUT.print(f"Not used: {escape(refusal)}.", highlight=False, soft_wrap=True)
            OUT.print(escape(doctors.extras_text()), highlight=False, soft_wrap=True)
        return
    with plain_errors(TaskError, doctors.ModelError, code=2):
        seen = doctors.visit(doctors.find(model, input_shape, integers=input_integers, folder=data_folder), fix=fix)
    program = as_typed()
    command = f"{program} {shlex.join(sys.argv[1:])}"
    print_answer(lambda: doctors.as_json(seen), lambda: doctors.page(seen, program, command), as_json=as_json)
    raise typer.Exit(0 if seen.sound else 1)


@app.command()
@partial(with_settings, keys=ASKING_KEYS)
def ask(
    settings: dict[str, Any],
    *,
    questions: Annotated[list[str], typer.Argument(help="Each in quotes; see below.", show_default=False)],
    file: _FILE = None,
    anew: Annotated[bool, typer.Option("--anew", help="Ask, and pay, again what was answered before.")] = False,
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Show what it would cost and be worth. Asks nobody.")
    ] = False,
    by_client: Annotated[bool, typer.Option("--by-client", help="Show each client's own answer, too.")] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Ask simulated clients about their records: counts, means, quantiles, charged to the account of training.

    All questions are one release. Numbers of records: 'count', 'rows 8'. A number: 'mean age 0 120',
    'median age 0 120', 'variance age 0 120', 'sum age 0 120', 'histogram age 0 120 12', 'quantiles age 0 120 .1 .9'. A
    category: 'categories sex f m', 'heavy-hitters icd 5 A00 A01 A02'. Several columns: 'spread age 0 120 bmi 10 60',
    'covariance age 0 120 bmi 10 60', 'table age=0:120 sex=f,m by arm=a,b'. After any of them: 'where sex=f age=40:60'
    and 'by arm=a,b'. Bounds and levels are public. Earlier answers on the same ledger are read again for nothing. Exit
    code 1: a client did not answer.
    """
    from fedprivacy.commands import ask

    ask.ask(
        questions,
        settings,
        anew=anew,
        only_plan=only_plan,
        by_client=by_client,
        verbose=verbose,
        quiet=quiet,
        as_json=as_json,
    )


@app.command()
@partial(with_settings, keys=("clients", "epsilon", "delta", "algorithm", "pull"))
def recommend(
    settings: dict[str, Any],
    *,
    task: Annotated[str, typer.Argument(help=escape(words_of(FIELDS["task"])), show_default=False)],
    shard_size: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="A public guess of how many records a client has, where that cannot be known here. Default: the "
            "task's nominal_shard_size.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the settings of a task's training from public facts alone, and say why. Runs nothing.

    The facts are the number of clients, their shard sizes where those are public, the model and the budget. No record
    is looked at, so that the choice costs no privacy.
    """
    from fedprivacy.commands import run_tables

    run_tables.recommend(settings | {"task": task}, shard_size, as_json=as_json)


app.command()(compare)
app.command()(epsilon)
app.command()(sigma)
app.command()(risk)


@app.command()
@partial(with_settings, keys=SWEEP_KEYS, lists=True)
def sweep(
    settings: dict[str, str],
    *,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each combination, with seeds from 0 on.")] = 1,
    baseline: Annotated[bool, typer.Option("--baseline", help="The same without privacy, too.")] = False,
    baseline_learning_rates: Annotated[
        str, typer.Option(help="Learning rates of the runs without privacy; the best of them is the baseline.")
    ] = "",
    metric: Annotated[str, typer.Option(help="Metric to show. Default: the task's, or the nearest measured.")] = "",
    jobs: Annotated[int, typer.Option(min=0, metavar="N", help="Processes; 0: one for each core.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the runs; the same again goes on with what is left.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Simulate every combination of settings: each option takes a list, as in --epsilon 0.5,1,5.

    Finished runs are not repeated. Exit code 1: a run failed; the others are there. Simulations only: in a
    deployment, every run spends real people's privacy.
    """
    from fedprivacy.runs.records.grid import SweepGrid

    grid = SweepGrid.of(settings, seeds, out, baseline=baseline, baseline_rates=baseline_learning_rates)
    run_sweep(grid, metric or None, jobs, quiet=quiet, as_json=as_json)


@app.command()
@with_settings
def audit(
    settings: dict[str, Any],
    *,
    file: _FILE = None,
    run: Annotated[
        Path | None, typer.Option(help="Folder of a finished run, which is audited with the settings that it had.")
    ] = None,
    own_app: Annotated[
        str | None,
        typer.Option(
            "--app",
            help="Other training code: path/to/file.py:name of a fedprivacy.audit.apps.App; see docs/how-to/audit.md.",
            show_default=False,
        ),
    ] = None,
    node: Annotated[
        Path | None,
        typer.Option(
            help="A client's node-config.toml, or its folder: audits what this host would run. Charges nothing."
        ),
    ] = None,
    run_config: Annotated[
        Path | None,
        typer.Option(help="With --node: settings of a run, in TOML; else the costliest step that the client takes."),
    ] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="Some four times as long: more is tried.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check that the code which runs deserves its epsilon: gates that find bugs, and attacks beside the stated bound.

    Takes the options of simulate, so that one command line serves both; a task of one's own is audited as it trains.
    With --app, training code that was not written with fedprivacy is audited, and takes --seed and --out alone.
    Exit code 1: a gate failed, or an attack showed a larger loss than is stated; 2: there is nothing to audit.
    """
    from fedprivacy.audit.auditor import NodeAuditError
    from fedprivacy.commands import audit as audits

    with plain_errors(NodeAuditError, code=2):
        audits.audit(
            settings, run=run, node=node, run_config=run_config, app=own_app, full=full, quiet=quiet, as_json=as_json
        )


@contextmanager
def _dashboard_if(wanted: bool, config: RunConfig, console: Console) -> Iterator[None]:
    """A dashboard of the run's ledger, and of the runs beside it, while the block runs."""
    if not wanted:
        yield
        return
    from fedprivacy.dashboard.service import Address, ServingError, dashboard_beside
    from fedprivacy.ledger import Ledger

    url = config.ledger_url(deployed=False)
    Ledger(url).close()  # made now, so that the dashboard finds it
    beside = [str(folder)] if (folder := Path(config.out).parent).name == RUNS else []
    with plain_errors(ServingError, code=2), dashboard_beside([url, *beside], Address()) as page:
        console.print(f"Dashboard: [bold]{page}", highlight=False, soft_wrap=True)
        yield


@contextmanager
def _show_mistakes(*, traceback: bool, quiet: bool) -> Iterator[None]:
    """Show warnings on stderr, unless the user wants quiet, and a user's mistake as plain text with exit code 2.

    Where the environment chooses a form of the log, warnings and mistakes have that form.
    """
    from rich.logging import RichHandler

    from fedprivacy._support.signing import SigningKeyError
    from fedprivacy._support.sources import SourceError
    from fedprivacy.accounting import MechanismChanged
    from fedprivacy.flower import BudgetSpentError, RoundFailedError, TooFewClientsError, WorkerError
    from fedprivacy.ledger import LedgerError
    from fedprivacy.ledger.replay import BrokenJournalError
    from fedprivacy.runs.records.folder import RunFolderError

    if settings := LogSettings.from_environment():
        (dataclasses.replace(settings, level=LogLevel.ERROR) if quiet else settings).begin()
    else:
        warnings = RichHandler(console=Console(stderr=True, emoji=False), show_path=False, show_time=False)
        level = logging.ERROR if quiet else logging.WARNING
        logging.basicConfig(level=level, format="%(message)s", handlers=[warnings])
    mistakes = (ConfigError, SigningKeyError, LedgerError, BrokenJournalError, MechanismChanged, RunFolderError)
    failures = (BudgetSpentError, RoundFailedError, SourceError, TooFewClientsError, WorkerError)
    with ends_in_order(), plain_errors(*mistakes, *failures, code=2, traceback=traceback):
        yield
