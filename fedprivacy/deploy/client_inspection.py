"""The inspection of a client's host: would its SuperNode take part, and does it keep what it must keep?"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from flwr.app import UserConfig
from torch import nn

from fedprivacy._support.sources import hushed, kind_and_place
from fedprivacy.deploy.description import Party
from fedprivacy.deploy.inspection import (
    Check,
    CheckResult,
    Finding,
    Objection,
    authorities,
    check_owner_only,
    check_port_free,
    common_checks,
    door_findings,
    findings,
    memory_for,
    room_on,
    warning,
)
from fedprivacy.flower.client.local import own_shard, works_on
from fedprivacy.flower.client.node import GUARD, NODE_CONFIG, NodeSettings, Refused
from fedprivacy.flower.client.release import most_sealed
from fedprivacy.gradients import trainable_parameters
from fedprivacy.gradients.models import training_bytes
from fedprivacy.guard import KEPT_UPDATES, Guard
from fedprivacy.guard.errors import GuardError
from fedprivacy.guard.guard import sealed_beside
from fedprivacy.guard.seals import ENTRIES_ROOM
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.settings.device import choose_device
from fedprivacy.runs.usable import Usable, null_records, usable_in_training
from fedprivacy.tasks import relation_of
from fedprivacy.tasks.one_cell import try_cells
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.tasks.sheet import Sheet, collecting_sheets

_LARGE_EPSILON = 10.0
"""Least epsilon of a warning: a guarantee of this size says little, for e^10 is 22,000."""


def inspect_client(party: Party, folder: Path) -> Iterator[Finding]:
    """Check everything on a client's host."""
    ca = folder / "ca.crt"
    yield from findings(common_checks(party, folder, "flower-supernode"))
    file = folder / NODE_CONFIG
    yield from findings([("node-config", lambda: _node_config(_settings(file, party)[0], party))])
    with suppress(Objection):  # said by the line above
        settings, key = _settings(file, party)
        with collecting_sheets() as sheets:
            yield from findings(_own_checks(settings, key, party))
            usable = _usable(settings, party)
        yield from _cells(sheets, *usable)
    yield from findings(
        [("port", lambda: check_port_free(party.runtime_port, "the SuperNode")), ("authority", lambda: authorities(ca))]
    )
    yield from door_findings(party, party.host, ca)


def _usable(settings: NodeSettings, party: Party) -> tuple[Usable, bool]:
    """Count the records that count for something, and say whether the task allows most of them not to."""
    usable, allowed = Usable(0, 0), True
    with suppress(Exception), hushed():  # what fails is said by the check of the records
        task, device = _task(settings, party), choose_device(settings.device)
        allowed = task.allow_null
        shard = own_shard(task, settings.folder, device)
        usable = null_records(shard)
        usable = usable_in_training(task, shard)
    return usable, allowed


def _cells(sheets: Sequence[Sheet], usable: Usable, allowed: bool) -> Iterator[Finding]:
    """Tell the owner whether the records can be read, and count, with counts."""
    local = (*(line for sheet in sheets for line in sheet.lines), *usable.lines())
    remedy = "the lines below say which and what helps; this is of private records: do not send it"
    if any(sheet.hopeless for sheet in sheets):
        yield Finding("cells", CheckResult.FAILED, "no record can be read", remedy, local)
    elif usable.mostly_void and not allowed:
        yield Finding("cells", CheckResult.FAILED, "more than half of the records count for nothing", remedy, local)
    elif usable.failing or any(sheet.in_short for sheet in sheets):
        yield Finding("cells", CheckResult.WARNING, "some records cannot be read, and count for nothing", remedy, local)
    elif sheets:
        yield Finding("cells", CheckResult.OK, "every record can be read: for you alone, do not send it", local=local)


def _settings(file: Path, party: Party) -> tuple[NodeSettings, Path]:
    """The data owner's settings, and the file of its key."""
    try:
        node: UserConfig = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Objection(f"{file} cannot be read ({error})", "take it from the folder that the operator sent") from error
    key = Path(str(node.get("key", file)))
    if not key.exists():
        made = f"'fedprivacy deploy client-key {party.party}' makes it; send {party.party}.pub to the operator"
        raise Objection(f"key is '{key}', which is not there", made)
    try:
        return NodeSettings.of(node), key
    except Refused as refused:
        raise Objection(str(refused)) from refused


def _node_config(settings: NodeSettings, party: Party) -> str:
    if settings.server_key != party.server_key:
        raise Objection(
            "server-key is not the one that this folder was made for", "compare with the operator by telephone"
        )
    return f"{party.party} heeds no server but the one with key {settings.server_key[:8]}..."


def _own_checks(settings: NodeSettings, key: Path, party: Party) -> list[Check]:
    return [
        ("budget", lambda: _budget(settings)),
        ("key", lambda: _key(key)),
        ("task", lambda: f"{_task(settings, party).name}, which the runs name {party.task}"),
        ("records", lambda: _records(settings, party)),
        ("guard", lambda: _guard(settings, party)),
        ("room", lambda: _room(settings, party)),
        ("memory", lambda: memory_for(training_bytes(_model(settings, party)), "a round")),
    ]


def _budget(settings: NodeSettings) -> str:
    budget = settings.budget
    words = f"epsilon {budget.epsilon:g} at delta {budget.delta:g}"
    if budget.epsilon > _LARGE_EPSILON:
        raise warning(f"{words} promises little", f"choose an epsilon of a few in {NODE_CONFIG}")
    return words


def _key(file: Path) -> str:
    check_owner_only(file)
    return f"{file} is this account's alone"


def _task(settings: NodeSettings, party: Party) -> OpenedTask:
    try:
        with hushed():
            return settings.task(party.task, None)
    except Refused as refused:
        raise Objection(str(refused)) from refused


def _records(settings: NodeSettings, party: Party) -> str:
    """Open the shard as a run would. Of an error only its kind and place are shown: not a value."""
    task = _task(settings, party)
    if not settings.folder.is_dir():
        raise Objection(
            f"{settings.folder} is not there", f"put the records there, or say in {NODE_CONFIG} where they are"
        )
    try:
        device = choose_device(settings.device)
        with hushed():
            works_on(task, own_shard(task, settings.folder, device))
    except ConfigError as error:
        raise Objection(str(error)) from error
    except Refused as refused:
        raise Objection(
            f"the task cannot read {settings.folder}: {kind_and_place(refused.__cause__ or refused)}",
            "call the task's shard() yourself, on this host: what it says may hold values and is not shown",
        ) from refused
    except Exception as error:
        raise Objection(
            f"the task does not work on records of this shape: {kind_and_place(error)}",
            "'fedprivacy doctor TASK' names what keeps it from training",
        ) from error
    with hushed():
        misread = try_cells(task, settings.folder).misread
    if misread:  # it may be sent to the operator, so it is a constant; the doctor tells the data owner more
        raise Objection(
            "one record decides what the task reads of others",
            "'fedprivacy doctor TASK --data-folder FOLDER', on this host, names the column",
        )
    return f"the task reads {settings.folder}; one cell changes no other record, where that could be tried"


def _guard(settings: NodeSettings, party: Party) -> str:
    """Open the existing guard, which finishes what a crash interrupted in it. A check creates none."""
    file, usual = settings.guard, settings.folder / GUARD
    if usual.exists() and usual.resolve() != file.resolve():
        raise Objection(
            f"guard is '{file}', and {usual} holds an account of the same records: each would allow the whole budget",
            f"name that one in {NODE_CONFIG}, or move it there together with its folder of sealed updates",
        )
    try:
        sealed_beside(file)
        if file.exists():
            check_owner_only(file)
            task = _task(settings, party)
            guard = Guard(file, settings.budget, settings.filter, unit=task.unit)
            guard.check(relation_of(task))
            for newest in guard.charges()[-1:]:
                if newest.beyond:
                    raise warning(
                        f"{file} held {newest.beyond:,} steps more than the server's ledger when it was charged last, "
                        f"for run {newest.attempt.run_id}",
                        "right if another server's run was charged meanwhile; otherwise docs/how-to/incidents.md",
                    )
            return f"{file} can be charged"
    except (GuardError, ValueError) as error:
        raise Objection(str(error)) from error
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise Objection(
            f"no file can be made in {file.parent}", f"let this account write there, or change {NODE_CONFIG}"
        )
    return f"{file} will be made with the first charge"


def _room(settings: NodeSettings, party: Party) -> str:
    """Compare the guard's disk with one round, and with all updates and vectors of one run that are kept there."""
    parameters = trainable_parameters(_model(settings, party))
    update, own = most_sealed(parameters), 2 * sum(parameter.nbytes for parameter in parameters.values())
    return room_on(settings.guard.parent, update + ENTRIES_ROOM, (KEPT_UPDATES + 1) * update + own, "a round")


def _model(settings: NodeSettings, party: Party) -> nn.Module:
    with hushed():
        return _task(settings, party).model()
