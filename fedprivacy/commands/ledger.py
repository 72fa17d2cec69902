"""`fedprivacy ledger`: look at a ledger, prove it, move it, and act on it deliberately."""

from __future__ import annotations

import datetime
import getpass
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedprivacy.commands.mistyped import Commands
from fedprivacy.commands.terminal import ERR, OUT, Json, plain_errors, print_answer, print_json
from fedprivacy.runs.settings.configuration import RUNS
from fedprivacy.tasks.identity import key_hash
from fedprivacy.values.wording import count_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fedprivacy.ledger.certificate import Certificate
    from fedprivacy.ledger.store import Ledger
    from fedprivacy.ledger.verify import Verified

ledger_app = Commands(no_args_is_help=True, help="Look at a ledger, prove it, move it, act on it deliberately.")
budget_app = Commands(no_args_is_help=True, help="Budgets, changed by an explicit act that the ledger records.")
ledger_app.add_typer(budget_app, name="budget")


LEDGER = Annotated[
    str,
    typer.Option(
        help="URL of the ledger, or its SQLite file. Default: the one of deployments, ~/.fedprivacy/ledger.db.",
        show_default=False,
    ),
]
SIGNERS = Annotated[
    list[str] | None, typer.Option("--signer", help="Public key, in hexadecimal, of who may have signed; repeatable.")
]
_WITNESSES = Annotated[
    list[Path] | None, typer.Option("--witness", help="A signed head that was kept elsewhere; repeatable.")
]
_KEY = Annotated[
    Path | None,
    typer.Option(help="Ed25519 private key that signs. Default: ~/.fedprivacy/signing.key.", show_default=False),
]


@ledger_app.command()
def show(
    *,
    dataset: Annotated[str, typer.Option(help="Only this dataset, with its charges and budgets.")] = "",
    ledger: LEDGER = "",
    as_json: Json = False,
) -> None:
    """Show what every dataset was charged, over all runs, what its budget is, and what was asked."""
    from fedprivacy.commands import ledger_tables as showing
    from fedprivacy.ledger.charges import budget_changes

    with opened_ledger(ledger) as opened:
        datasets = showing.datasets(opened, dataset)
        charges = showing.charges(opened, dataset) if dataset else []
        questions = opened.asked(dataset)
        budgets = budget_changes(opened.database, [dataset])[dataset] if dataset else []
    answer = datasets, charges, questions, budgets
    print_answer(lambda: showing.as_json(*answer), lambda: showing.page(*answer, OUT), as_json=as_json)


@ledger_app.command()
def verify(
    export: Annotated[Path | None, typer.Argument(help="An exported ledger, instead of a ledger.")] = None,
    *,
    ledger: LEDGER = "",
    signers: SIGNERS = None,
    witnesses: _WITNESSES = None,
    as_json: Json = False,
) -> None:
    """Prove that nothing in a ledger was changed, left out, added or reordered. Exit code 1: something was."""
    from fedprivacy.ledger import LedgerError
    from fedprivacy.ledger.export import check_export, verify_export
    from fedprivacy.ledger.replay import BrokenJournalError
    from fedprivacy.ledger.verify import read_witness, verify_ledger

    with plain_errors(BrokenJournalError, code=1), plain_errors(LedgerError, OSError, code=2):
        kept = [read_witness(file) for file in witnesses or ()]
        if export is not None:
            check_export(export)
            verified = verify_export(export, signers=signers or (), witnesses=kept)
        else:
            with opened_ledger(ledger) as opened:
                _check_witnesses(opened, [Path(RUNS)])
                verified = verify_ledger(opened, signers=signers or (), witnesses=kept)
    if as_json:
        entries, signed = verified.head.number, verified.signed
        held = {"charges": len(verified.replay.charges), "answers": len(verified.replay.answers)}
        print_json(
            {"entries": entries, "hash": verified.head.hash, **held, "heads": len(verified.heads), "signed": signed}
        )
        return
    OUT.print(_verified_text(verified), highlight=False, soft_wrap=True)


@ledger_app.command()
def export(
    out: Annotated[Path | None, typer.Argument(help="File to write; none: stdout.")] = None, *, ledger: LEDGER = ""
) -> None:
    """Write a ledger's journal, signed heads and answers as JSON lines, which `verify` and `import` read."""
    from fedprivacy.ledger.export import write_export

    with opened_ledger(ledger) as opened, opened.database.reading() as connection:
        if out is None:
            write_export(connection, sys.stdout)
            return
        with plain_errors(OSError, code=2), out.open("x") as file:
            entries = write_export(connection, file)
    ERR.print(f"{entries} entries in {out}. Next: fedprivacy ledger verify {out}")


@ledger_app.command(name="import")
def import_(export: Annotated[Path, typer.Argument(help="An exported ledger.")], *, ledger: LEDGER = "") -> None:
    """Bring an exported ledger, once it is verified, into an empty one: another database, or new tables."""
    from fedprivacy.ledger import LedgerError
    from fedprivacy.ledger.export import check_export, import_ledger
    from fedprivacy.ledger.replay import BrokenJournalError

    with plain_errors(LedgerError, OSError, code=2):
        check_export(export)  # before there is a ledger
    with (
        opened_ledger(ledger, new=True) as opened,
        plain_errors(BrokenJournalError, code=1),
        plain_errors(OSError, code=2),
    ):
        verified = import_ledger(export, opened)
    ERR.print(f"{verified.head.number} entries are in {opened.name}.")


@ledger_app.command()
def sign(
    key: Annotated[Path, typer.Argument(help="Ed25519 private key, in PEM; made if there is none.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Also write it to this file, to be kept elsewhere.")] = None,
    ledger: LEDGER = "",
) -> None:
    """Sign where a ledger's journal ends: what it covers can no longer be rewritten unseen."""
    from fedprivacy._support.settings import without_folder
    from fedprivacy._support.signing import SigningKeyError, server_key
    from fedprivacy.ledger import LedgerError
    from fedprivacy.ledger.journal import sign_head

    with opened_ledger(ledger) as opened, plain_errors(SigningKeyError, OSError, code=2):
        if problem := without_folder("key", key):
            raise SigningKeyError(problem)
        signed = sign_head(opened.database, server_key(key))
        if signed is None:
            raise LedgerError(f"ledger {opened.name} has no entry yet; nothing was signed.")
        if out is not None:
            out.write_text(json.dumps(signed._asdict()) + "\n")
    ERR.print(f"Entry {signed.number} is signed by key {signed.public_key}.")


@ledger_app.command()
def certify(
    datasets: Annotated[list[str] | None, typer.Argument(help="Datasets, as 'show' lists them; none: all.")] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder for the certificates; made if it is not there.")],
    key: _KEY = None,
    signers: SIGNERS = None,
    ledger: LEDGER = "",
) -> None:
    """Verify a ledger, and write a signed certificate of what each dataset has spent: a page to print, and its JSON.

    Exit code 1: something in the ledger is not as it was written, and nothing is certified.
    """
    from fedprivacy._support.signing import SigningKeyError
    from fedprivacy.commands.certificate_page import write_certificate
    from fedprivacy.ledger.replay import BrokenJournalError

    with plain_errors(SigningKeyError, OSError, code=2), plain_errors(BrokenJournalError, code=1):
        signing_key = _signing_key(key)
        with opened_ledger(ledger) as opened:
            certificates = _certify(opened, datasets or (), signing_key, signers or (), [Path(RUNS)])
        out.mkdir(parents=True, exist_ok=True)
        pages = [write_certificate(certificate, signing_key, out) for certificate in certificates]
    ERR.print(f"{len(pages)} certificates in {out}. Next: fedprivacy ledger verify-certificate {pages[0]}.json")


@ledger_app.command()
def dossier(
    *,
    runs: Annotated[list[Path], typer.Option("--run", help="Folder of a finished run, whose model it is; repeatable.")],
    out: Annotated[Path, typer.Option(help="Folder for everything; it must not be there yet.")],
    about: Annotated[
        Path | None, typer.Option(help="The organisation's words, a TOML file; without, the dossier says what is open.")
    ] = None,
    threat_model: Annotated[Path | None, typer.Option(help="The organisation's threat model, a text file.")] = None,
    key: _KEY = None,
    signers: SIGNERS = None,
    ledger: LEDGER = "",
) -> None:
    """Write the privacy officer's file of finished runs: one folder, as HTML and JSON.

    A certificate of every dataset that the runs charged, what an attacker finds, audits, the threat model, each model
    with its card. Any browser prints the page. Exit code 1: something in the ledger is not as it was written, and
    nothing is certified.
    """
    from fedprivacy._support.signing import SigningKeyError
    from fedprivacy.commands import dossier as making
    from fedprivacy.ledger.replay import BrokenJournalError

    wrong = making.DossierError, SigningKeyError, OSError
    with plain_errors(*wrong, code=2), plain_errors(BrokenJournalError, code=1):
        making.check_new(out)
        finished, words = making.finished_runs(runs), making.read_about(about)
        threats = making.read_threat_model(threat_model)
        signing_key = _signing_key(key)
        with opened_ledger(ledger) as opened:
            datasets = making.charged_datasets(opened, finished)
            places = [Path(RUNS), *(run.parent for run in runs)]
            certificates = _certify(opened, datasets, signing_key, signers or (), places)
        fields = making.dossier(finished, certificates, words, threats)
        page = making.write_dossier(fields, finished, signing_key, out)
    if fields["open"]:
        ERR.print(f"Left open: {', '.join(fields['open'])}. Give them in a file: --about about.toml")
    ERR.print(f"The dossier is in {out}. Next: read {page}")


def _signing_key(key: Path | None) -> Ed25519PrivateKey:
    """Read the key that signs certificates. Raises SigningKeyError: there is none, or the file holds another kind."""
    from fedprivacy._support.signing import SigningKeyError, server_key

    file = key or Path.home() / ".fedprivacy" / "signing.key"
    if not file.exists():  # a key that is made now would prove nothing to anybody
        raise SigningKeyError(
            f"key is '{file}', where there is none; name the one that signs the ledger's heads. A simulation signs "
            f"none: run it with --signing-key {file.name}, which makes one."
        )
    return server_key(file)


def _check_witnesses(ledger: Ledger, runs: Sequence[Path]) -> None:
    """End the command with 1 if a run in these folders has signed what the ledger lacks."""
    from fedprivacy.ledger.errors import LedgerError
    from fedprivacy.runs.records.witnesses import check_witnesses

    with plain_errors(LedgerError, code=1):
        check_witnesses(ledger, ledger.url, *runs)


def _certify(
    ledger: Ledger, datasets: Sequence[str], key: Ed25519PrivateKey, signers: Sequence[str], runs: Sequence[Path]
) -> list[Certificate]:
    """Verify a ledger, by the witnesses in folders of runs, too, and state what datasets have spent, with audits."""
    from fedprivacy._support.signing import server_public_key
    from fedprivacy.ledger.certificate import certify as certified
    from fedprivacy.runs.records.store.reader import audits_in

    _check_witnesses(ledger, runs)
    return certified(ledger, datasets, server_public_key(key), signers, audits_in(ledger.database))


@ledger_app.command()
def verify_certificate(
    certificates: Annotated[list[Path], typer.Argument(help="JSON files that 'certify' wrote.")],
    *,
    signers: SIGNERS = None,
) -> None:
    """Prove that certificates are as they were signed, and cost what they state. Exit code 1: one is not."""
    from fedprivacy.commands.certificate_page import read_certificate, spent_words

    for file in certificates:
        certificate = read_certificate(file, signers or ())
        OUT.print(
            f"[green]Genuine[/]: {escape(certificate.dataset_id)} has spent {spent_words(certificate)}, says key "
            f"{certificate.public_key} on {certificate.issued[:10]}, up to entry {certificate.entries} of its ledger.",
            highlight=False,
            soft_wrap=True,
        )


@ledger_app.command()
def reconcile(
    dataset: Annotated[str, typer.Argument(help="The client's dataset, as 'show' lists it.")],
    guard: Annotated[Path, typer.Argument(help="What 'fedprivacy guard export' wrote on the client's host.")],
    *,
    ledger: LEDGER = "",
) -> None:
    """Compare a client's own guard with the ledger, and charge what the client has more: the larger counts."""
    from fedprivacy.commands.guard_tables import read_claims
    from fedprivacy.commands.ledger_tables import reconciliation

    with plain_errors(ValueError, OSError, code=2):
        claims = read_claims(guard)
    with opened_ledger(ledger) as opened:
        compared = reconciliation(opened, dataset, claims)
        added = opened.reconcile(dataset, claims)
    OUT.print(compared)
    ERR.print(f"{added} steps were charged to {dataset}.")


@ledger_app.command()
def rebind(
    client: Annotated[str, typer.Argument(help="The client's registered name.")],
    public_key: Annotated[Path, typer.Argument(help="Its new public key, in OpenSSH's format.")],
    *,
    ledger: LEDGER = "",
) -> None:
    """Let a client that renewed its key go on with the account that it has."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    with opened_ledger(ledger) as opened, plain_errors(OSError, ValueError, code=2):
        try:
            key = load_ssh_public_key(public_key.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as problem:
            raise ValueError(f"'{public_key}' holds no public key in OpenSSH's format ({problem}).") from problem
        as_kept_by_flower = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        opened.rebind_key(client, key_hash(as_kept_by_flower))
    ERR.print(f"The account of {client} goes on under the new key.")


@budget_app.command(name="set")
def set_budget(
    datasets: Annotated[list[str], typer.Argument(help="Datasets, as 'show' lists them.")],
    *,
    epsilon: Annotated[float, typer.Option(help="Over all runs, past ones included.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why; the ledger keeps it.", show_default=False)],
    delta: Annotated[float | None, typer.Option(help="Left open: as it is.", show_default=False)] = None,
    expires: Annotated[
        datetime.datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Nothing is granted from that day on (UTC); left open: never."),
    ] = None,
    by: Annotated[str, typer.Option(help="Your name; left open: your account here.", show_default=False)] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether an epsilon of inf is meant.")] = False,
    ledger: LEDGER = "",
) -> None:
    """Give datasets another budget, or renew one that expired. Charges stay."""
    from fedprivacy.ledger import LedgerError
    from fedprivacy.ledger.errors import no_dataset
    from fedprivacy.values.budget import PrivacyBudget

    if epsilon == math.inf and not yes:
        ERR.print("With an epsilon of inf nothing is ever refused: what is lost is measured, and never limited.")
        typer.confirm(f"Take the limit away from {', '.join(datasets)}?", err=True, abort=True)
    until = expires and expires.replace(tzinfo=datetime.UTC)
    with opened_ledger(ledger) as opened, plain_errors(LedgerError, ValueError, code=2):
        known = opened.allowances(datasets)
        if unknown := [dataset for dataset in datasets if dataset not in known]:
            raise no_dataset(opened.name, unknown[0], opened.dataset_ids())
        for dataset in datasets:
            kept = known[dataset].budget.delta
            budget = PrivacyBudget(epsilon, kept if delta is None else delta)
            opened.set_budget(dataset, budget, until, reason, by or _account())
    for dataset in datasets:
        ERR.print(f"{dataset}: epsilon {epsilon:g} from now on.")


def _account() -> str:
    """Return the name of this process's account; "": it has none, as in some containers."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""


@contextmanager
def opened_ledger(ledger: str, *, new: bool = False) -> Iterator[Ledger]:
    """The ledger of a URL or a file; an error about it ends the command. To look at a ledger must not change it."""
    from fedprivacy.ledger import Ledger, LedgerError, default_url, ledger_url
    from fedprivacy.ledger.database import check_folder

    with plain_errors(LedgerError, code=2):
        url = ledger_url(ledger) if ledger else default_url()
        if not new and not Ledger.exists(url):
            here = next(chain(Path().glob("ledger.db"), Path().glob("runs/*/ledger.db")), "")
            such = f", such as --ledger {here}" if here else ""
            raise LedgerError(f"ledger is '{url}', where there is none; name the one that a run wrote{such}.")
        if new:
            check_folder(url)
        with Ledger(url, create=new) as opened:
            yield opened


def _verified_text(verified: Verified) -> str:
    entries, charges, answers = verified.head.number, len(verified.replay.charges), len(verified.replay.answers)
    counts = f"{entries} entries, {charges} charges" + (f", {count_text(answers, 'answer')}" if answers else "")
    signers = sorted({head.public_key for head in verified.heads})
    if not signers:
        return (
            f"[yellow]Consistent, and not signed[/]: {counts}. Whoever can write the "
            "ledger could have written it anew, all of it. 'fedprivacy ledger sign KEY' signs it."
        )
    return (
        f"[green]Nothing was changed[/]: {counts}.\n"
        f"Entries up to {verified.signed} of {entries} are signed, by key {', '.join(signers)}."
    )
