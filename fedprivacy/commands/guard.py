"""`fedprivacy guard`: what a client's own file says. No command charges or forgets anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedprivacy.commands.ledger import SIGNERS
from fedprivacy.commands.mistyped import Commands
from fedprivacy.commands.terminal import ERR, Json, plain_errors, print_answer, print_json

if TYPE_CHECKING:
    from fedprivacy.guard.tally import Tally

guard_app = Commands(no_args_is_help=True, help="Show and manage the account of a client's own guard.")

_FILE = Annotated[
    Path, typer.Argument(metavar="FILE", help="The client's guard.", exists=True, dir_okay=False, show_default=False)
]


@guard_app.command()
def show(file: _FILE, *, as_json: Json = False) -> None:
    """Show every charge, what they add up to by mechanism, and the epsilon that they cost."""
    from fedprivacy.commands.guard_tables import as_page, summary

    tally = _read(file)
    print_answer(lambda: summary(tally), lambda: as_page(tally), as_json=as_json)


@guard_app.command()
def export(file: _FILE) -> None:
    """Print every charge and correction as a line of JSON, for the server's operator to reconcile with the ledger."""
    from fedprivacy.commands.guard_tables import entry_as_json

    for entry in _read(file).entries:
        print_json(entry_as_json(entry))


@guard_app.command()
def compare(
    certificate: Annotated[
        Path, typer.Argument(help="JSON file of this dataset's certificate, from the operator.", show_default=False)
    ],
    file: _FILE = Path("guard/guard.log"),
    *,
    signers: SIGNERS = None,
    as_json: Json = False,
) -> None:
    """Compare a certificate with the client's own guard. Exit code 1: the guard holds more, or it is not of it."""
    from fedprivacy.commands.certificate_page import read_certificate
    from fedprivacy.commands.guard_tables import compare_with_certificate, comparison_page

    facts = compare_with_certificate(_read(file), read_certificate(certificate, signers or ()))
    print_answer(lambda: facts, lambda: comparison_page(facts), as_json=as_json)
    if facts["more"] or not facts["same_unit"]:
        raise typer.Exit(1)


@guard_app.command()
def model(
    file: _FILE,
    *,
    task: Annotated[str, typer.Option(help="The run's task, as in the node configuration.", show_default=False)],
    global_model: Annotated[
        Path, typer.Option(help="The run's model.safetensors, from the operator.", exists=True, show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="File to write, which only you can read.", show_default=False)],
    run: Annotated[
        str | None, typer.Option(help="Which run. Default: the one that kept something last.", show_default=False)
    ] = None,
) -> None:
    """Write this client's own model of a run (mr-mtl, fedper, ...) as a file with names, to predict with.

    It came out of the client's own noisy steps and was charged with them: to write it costs nothing.
    """
    from fedprivacy._support.durable import PRIVATE, name_durably, write_unnamed
    from fedprivacy.flower.kept import KeptError, NoOwnModelError, own_model
    from fedprivacy.tasks import TaskError
    from fedprivacy.tasks.loader import open_task

    with plain_errors(NoOwnModelError, KeptError, TaskError, OSError, code=2):
        whose, content = own_model(file, open_task(task), global_model, run)
        name_durably(write_unnamed(out, content, PRIVATE), out)
    ERR.print(f"Run {whose.run_id}, {whose.algorithm}, after round {whose.round}: written to {out}.")


@guard_app.command()
def renew(file: _FILE, *, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Put the account aside and let the next charge begin another: what both promise adds up.

    Nothing is deleted. This is for another filter, which no account can change, or after everybody agreed to a new
    promise; to allow more on the same account, raise its epsilon in the node configuration.
    """
    from fedprivacy.guard.errors import GuardError
    from fedprivacy.guard.tally import renew
    from fedprivacy.values.wording import budget_text, delta_text, unit_text

    tally = _read(file)
    if tally.relation is None:
        ERR.print(f"{file} has promised nothing yet: there is nothing to put aside.")
        raise typer.Exit(2)
    promised = f"{file} has promised the {tally.relation} relation{unit_text(str(tally.unit))}"
    if tally.allowance is not None:
        budget = tally.allowance.budget
        promised += f", epsilon {budget_text(budget.epsilon)} at delta {delta_text(budget.delta)}"
    ERR.print(
        f"{promised}, and that stands. What the next account promises is added to it: the people in these records are "
        "then protected by the sum of both, and a number of records that was public stays known."
    )
    if not (yes or typer.confirm("Begin another account?", err=True)):
        raise typer.Exit(1)
    with plain_errors(GuardError, OSError, code=2):
        aside = renew(file)
    ERR.print(f"The account is {aside} now. Next: restart the client; its first charge makes {file}.")


def _read(file: Path) -> Tally:
    from fedprivacy.guard.errors import GuardError
    from fedprivacy.guard.tally import TallyFile

    kept = TallyFile(file)
    with plain_errors(GuardError, code=2), kept.transaction():
        return kept.tally
