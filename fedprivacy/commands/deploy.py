"""`fedprivacy deploy`: make the keys of a deployment, rehearse one on this host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedprivacy.commands.terminal import OUT, PLAIN, as_typed, ends_in_order, plain_errors
from fedprivacy.tasks.built_in import DEFAULT_TASK

deploy_app = typer.Typer(no_args_is_help=True, help="Deploy on real hosts: make keys, rehearse on this one.")


@deploy_app.command()
def keys(
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="DNS name or IP address under which clients reach the server; repeat for more."),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="Name of a client to make a key pair for; repeat for more.")
    ] = None,
    days: Annotated[int, typer.Option(help="Validity of the certificates, in days.")] = 365,
) -> None:
    """Make a certificate authority, the server's certificate and the clients' key pairs."""
    from fedprivacy.deploy.keys import write_keys

    with _checked():
        made = write_keys(out, host or (), client or (), days=days)
    PLAIN.print(made.handout())


@deploy_app.command()
def client_key(
    name: Annotated[str, typer.Argument(help="The client's name, the same as the operator registers.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(),
) -> None:
    """Make one client's key pair, on that client's own host."""
    from fedprivacy.deploy.keys import write_client_key

    with _checked():
        made = write_client_key(out, name)
    PLAIN.print(f"{made.private_key} is secret and stays on this host.")
    PLAIN.print(f"Send {made.public_key} to the server's operator, who registers it as {name}.")


@deploy_app.command()
def signing_key(
    file: Annotated[Path, typer.Argument(help="Where the key lies, or shall lie; the run's signing-key.")],
) -> None:
    """Make the key with which the server signs grants and its ledger, and show what the clients need of it."""
    from fedprivacy._support.signing import server_key, server_public_key

    with _checked():
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
    from fedprivacy.deploy.app import write_app

    with _checked():
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
) -> None:
    """Rehearse a deployment: hospitals on this host, TLS, authenticated SuperNodes, a few rounds."""
    from fedprivacy.commands.run_tables import client_table
    from fedprivacy.deploy.app import task_of, write_app
    from fedprivacy.deploy.demo import Digits, OwnFolders, run_demo
    from fedprivacy.runs.folder import REPORT, new_run_folder, read_history

    directory = out or Path(new_run_folder("deploy-demo"))
    with _checked():
        records = OwnFolders(data) if data else Digits()
        folder = app or write_app(directory / "app", DEFAULT_TASK).folder
        budget = {"epsilon": epsilon, "delta": delta}
        results = run_demo(
            directory,
            folder,
            records,
            clients=records.clients,
            run_config={"task": task_of(folder), "rounds": rounds, **budget},
            node_config=budget,
            console=OUT,
        )
    OUT.print(client_table(read_history(results)))
    PLAIN.print(f"Report: {results / REPORT}\nLogs: {directory.resolve() / 'logs'}")
    PLAIN.print(f"In a browser: {as_typed()} dashboard --store {results}")
    PLAIN.print("Next: docs/how-to/deploy.md does the same on real hosts, step by step.")


@contextmanager
def _checked() -> Iterator[None]:
    """Show a failure as plain text with exit code 1."""
    from fedprivacy._support.signing import SigningKeyError
    from fedprivacy.deploy.app import AppFolderError
    from fedprivacy.deploy.demo import DataError
    from fedprivacy.deploy.federation import DeploymentError
    from fedprivacy.deploy.keys import KeyFileError
    from fedprivacy.deploy.processes import ProcessError
    from fedprivacy.runs.configuration import ConfigError
    from fedprivacy.tasks import TaskError

    mistakes = (AppFolderError, ConfigError, DataError, TaskError)
    with ends_in_order(), plain_errors(*mistakes, DeploymentError, KeyFileError, ProcessError, SigningKeyError, code=1):
        yield
