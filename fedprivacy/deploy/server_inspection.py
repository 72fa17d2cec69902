"""The inspection of the server's host: would a run start, is only the proxy open, are ledger and keys usable?"""

from __future__ import annotations

import os
import socket
import ssl
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_public_key

from fedprivacy._support.settings import ConfigError
from fedprivacy._support.signing import SigningKeyError, server_key, server_public_key
from fedprivacy._support.sources import hushed
from fedprivacy.deploy.app_folder import check_public_records
from fedprivacy.deploy.description import Party
from fedprivacy.deploy.federation import CONNECTION, HOST, DeploymentError, is_healthy
from fedprivacy.deploy.inspection import (
    Check,
    Finding,
    Objection,
    authorities,
    certificate_in,
    certificates_in,
    check_owner_only,
    check_validity,
    common_checks,
    door_findings,
    findings,
    memory_for,
    room_on,
    warning,
)
from fedprivacy.deploy.keys import has_signed, subject_name
from fedprivacy.deploy.services import CLIENT_KEYS
from fedprivacy.deploy.submission import Operator
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.ledger.database import database_file
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import RunFolderError, plan_of
from fedprivacy.runs.records.witnesses import check_witnesses
from fedprivacy.runs.settings.configuration import RUNS
from fedprivacy.tasks.loader import public_name
from fedprivacy.values.wording import count_text

RUN_CONFIG = "run.toml"

MODELS_IN_A_ROUND, MODELS_OF_A_CLIENT = 13, 2
"""Models that the server app and the SuperLink hold at once in a round, and those of each client besides: its update as
it came and as it is averaged. Measured for two clients: 9 in the server app, 8 in the SuperLink."""

LONGEST_WAIT = 120.0
"""Seconds after which a run that still waits for the SuperExec is named."""

RAISED_DAYS = 7
"""Number of days for which a ledger that a client's guard raised is named."""

_LEDGER_BYTES = 16_000_000
"""Number of bytes by which a ledger may grow until somebody looks at its disk again."""


def inspect_server(party: Party, folder: Path) -> Iterator[Finding]:
    """Everything that is checked on the server's host."""
    ca, certificate = folder / "ca.crt", folder / "server.crt"
    checks: list[Check] = [
        *common_checks(party, folder, "flower-superlink"),
        ("certificate", lambda: _certificate(party, ca, certificate)),
        ("authority", lambda: authorities(ca)),
        ("server key", lambda: _server_key(folder / "server.key", certificate)),
        ("run", lambda: _run(folder, party)),
        ("signing key", lambda: _signing_key(_plan(folder), party)),
        ("ledger", lambda: _ledger(_plan(folder), folder)),
        ("books", lambda: _books(_plan(folder), folder)),
        ("room", lambda: _room(_plan(folder), folder)),
        ("memory", lambda: _memory(_plan(folder))),
        ("clients", lambda: _clients(folder / CLIENT_KEYS, _plan(folder))),
        ("connection", lambda: _connection(party)),
        ("superlink", lambda: _superlink(party, ca)),
        ("superexec", lambda: _superexec(party, ca)),
    ]
    yield from findings(checks)
    yield from door_findings(party, HOST, ca)


def _certificate(party: Party, ca: Path, file: Path) -> str:
    certificate = certificate_in(file)
    if not any(has_signed(authority, certificate) for authority in certificates_in(ca)):
        raise Objection(f"{file.name} is not signed by {ca.name}", "take both from one 'deploy init' or 'deploy renew'")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if subject_name(party.host) not in names:
        raise Objection(
            f"{file.name} does not hold the name {party.host}", "make one that does: 'fedprivacy deploy keys'"
        )
    return f"{party.host}, {check_validity(certificate, 'valid')}"


def _server_key(file: Path, certificate: Path) -> str:
    check_owner_only(file)
    try:
        public = load_pem_private_key(file.read_bytes(), None).public_key()
    except (ValueError, TypeError) as error:
        raise Objection(f"{file} holds no private key", "take it from the folder that 'deploy init' wrote") from error
    if public != certificate_in(certificate).public_key():
        raise Objection(f"{file.name} is not the key of {certificate.name}", "take both from one 'deploy init'")
    return f"{file} is this account's alone"


def _plan(folder: Path) -> TrainingPlan:
    try:
        plan = plan_of(tomllib.loads((folder / RUN_CONFIG).read_text()))
        plan.check_limited()
        return plan
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RunFolderError) as error:
        raise Objection(f"{folder / RUN_CONFIG} cannot be read ({error})") from error
    except ConfigError as error:
        raise Objection(f"{RUN_CONFIG}: {' '.join(error.problems)}") from error


def _run(folder: Path, party: Party) -> str:
    plan = _plan(folder)
    named = public_name(plan.config.task)
    if named != party.task:
        raise Objection(f"{RUN_CONFIG} has the task {named}, and the clients allow {party.task}", "name theirs")
    try:
        check_public_records(plan.task)
    except ConfigError as error:
        raise Objection(" ".join(error.problems)) from error
    if plan.config.seed is not None:
        raise Objection(f"{RUN_CONFIG} sets a seed, which every client refuses", "leave seed open")
    budget = plan.config.budget
    own = count_text(len(plan.client_terms.by_client), "client")
    but = f" (but for {own} with terms of their own)" if plan.client_terms else ""
    return f"task {named}, epsilon {budget.epsilon:g} at delta {budget.delta:g}{but}, {plan.config.rounds} rounds"


def _signing_key(plan: TrainingPlan, party: Party) -> str:
    file = plan.config.signing_key_file
    check_owner_only(file)
    try:
        public = server_public_key(server_key(file))
    except SigningKeyError as error:
        raise Objection(str(error)) from error
    if public != party.server_key:
        raise Objection(
            f"{file} is not the key that the clients heed (server-key)", "put back the one of 'deploy init'"
        )
    return f"{file} is this account's alone; the clients heed it"


def _ledger(plan: TrainingPlan, folder: Path) -> str:
    url = plan.config.ledger_url(deployed=True)
    try:
        if ledger := _opened_ledger(url, folder):
            ledger.close()
            return f"{url} can be read, and holds what the runs here have signed"
    except LedgerError as error:
        raise Objection(str(error)) from error
    file = database_file(url)
    if file is not None and not os.access(file.parent, os.W_OK | os.X_OK):
        raise Objection(
            f"no ledger can be made in {file.parent}", f"let this account write there, or change {RUN_CONFIG}"
        )
    return f"{url} will be made by the first run"


def _opened_ledger(url: str, folder: Path) -> Ledger | None:
    """Open a ledger as it stands, if it holds what the runs here have signed; None: there is none yet."""
    ledger = Ledger(url, patience=2.0, create=False) if Ledger.exists(url) else None
    check_witnesses(ledger, url, folder / RUNS)
    return ledger


def _books(plan: TrainingPlan, folder: Path) -> str:
    """Compare the ledger with what clients' guards have said of late."""
    try:
        ledger = _opened_ledger(plan.config.ledger_url(deployed=True), folder)
        if ledger is None:
            return "there is no ledger yet"
        with ledger:
            raised = ledger.steps_raised(datetime.now(UTC) - timedelta(days=RAISED_DAYS))
    except LedgerError as error:
        words = "not looked at, because the ledger cannot be relied on; clients' guards may hold more than it"
        raise warning(words, "see the line ledger") from error
    if raised:
        each = ", ".join(f"{dataset} by {steps:,} steps" for dataset, steps in sorted(raised.items()))
        raise warning(
            f"clients' guards raised the ledger in the last {RAISED_DAYS} days: {each}",
            "right after a restored ledger; otherwise docs/how-to/incidents.md",
        )
    return f"no client's guard held more than the ledger when it last enrolled, in the last {RAISED_DAYS} days"


def _room(plan: TrainingPlan, folder: Path) -> str:
    """Compare the disk with a model, two checkpoints and a ledger, and with what Flower's database holds of a round."""
    model = _model_bytes(plan)
    least = 3 * model + _LEDGER_BYTES
    file = database_file(plan.config.ledger_url(deployed=True))
    if file is not None and file.parent.stat().st_dev != folder.stat().st_dev:
        room_on(file.parent, _LEDGER_BYTES, _LEDGER_BYTES, "the ledger")
    return room_on(folder, least, least + (plan.config.clients + 1) * model, "a run")


def _memory(plan: TrainingPlan) -> str:
    models = MODELS_IN_A_ROUND + MODELS_OF_A_CLIENT * plan.config.clients
    return memory_for(models * _model_bytes(plan), "a round")


def _model_bytes(plan: TrainingPlan) -> int:
    with hushed():
        return sum(values.nbytes for values in plan.task.model().state_dict().values())


def _clients(folder: Path, plan: TrainingPlan) -> str:
    names = []
    for file in sorted(folder.glob("*.pub")):
        try:
            load_ssh_public_key(file.read_bytes())
        except ValueError:
            raise Objection(f"{file} holds no public key", f"let {file.stem} send it again") from None
        names.append(file.stem)
    if len(names) < plan.config.clients:
        raise warning(
            f"keys of {', '.join(names) or 'no client'} are here, and a run waits for {plan.config.clients} clients",
            f"put each client's NAME.pub into {folder}, and register it",
        )
    return f"keys of {', '.join(names)}"


def _connection(party: Party) -> str:
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    file, address = home / "config.toml", f"{HOST}:{party.superlink_port}"
    try:
        found = tomllib.loads(file.read_text())["superlink"][CONNECTION]["address"]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError):
        found = None
    if found != address:
        raise warning(f"{file} has no connection {CONNECTION} to {address}", f"install -D flower-config.toml {file}")
    return f"Flower's commands find the SuperLink as {CONNECTION}"


def _superlink(party: Party, ca: Path) -> str:
    address = f"{HOST}:{party.superlink_port}"
    if not _superlink_answers(party, ca):
        raise Objection(
            f"no SuperLink answers on {address}", "sudo systemctl start fedprivacy-superlink, and see its log"
        )
    return f"answers on {address}"


def _superlink_answers(party: Party, ca: Path) -> bool:
    return is_healthy(f"{HOST}:{party.superlink_port}", ssl.create_default_context(cafile=str(ca)))


def _superexec(party: Party, ca: Path) -> str:
    address = f"{HOST}:{party.superexec_port}"
    with socket.socket() as probe:
        if probe.connect_ex((HOST, party.superexec_port)) != 0:
            raise Objection(
                f"no SuperExec answers on {address}: runs are accepted, and wait for ever",
                "sudo systemctl start fedprivacy-superexec, and see its log",
            )
    with suppress(DeploymentError):  # what keeps the SuperLink from answering is said by other lines
        waiting = Operator(CONNECTION).waiting() if _superlink_answers(party, ca) else {}
        if late := [run_id for run_id, seconds in waiting.items() if seconds > LONGEST_WAIT]:
            raise Objection(
                f"answers on {address}, and run {late[0]} has waited {waiting[late[0]]:.0f} s for it",
                f"sudo systemctl restart fedprivacy-superexec; 'flwr stop {late[0]} {CONNECTION}' ends the run",
            )
    return f"starts runs; answers on {address}"
