"""What a process does until it is killed, and what it does when it is started again. Runs in a forked child."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedprivacy as fp
from fedprivacy._support import failpoints, signing
from fedprivacy._support.signing import server_key, server_public_key, sign
from fedprivacy.accounting import DEFAULT_FILTER
from fedprivacy.flower import PrivateStrategy
from fedprivacy.flower.client.release import digest
from fedprivacy.flower.server.asking import ask_clients
from fedprivacy.flower.server.checkpoint import CHECKPOINT, load_checkpoint
from fedprivacy.flower.wire.messages import (
    ASK,
    GRANT,
    QUESTION_GRANT,
    RECEIPT,
    REFUSAL,
    Receipt,
    Refusal,
    RefusalCode,
)
from fedprivacy.ledger import Ledger
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.asking import question_plan
from fedprivacy.runs.plan import RunPlan
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from tests.flower.asked import ANSWERS_ALL, TABLED, a_question
from tests.flower.blobs import A_GRANT, Blobs, plan_of
from tests.flower.deployment import DeployedGrid
from tests.flower.runs import SAMPLING

ROUNDS = 2
GRANTS = 3
RELEASED = "released.jsonl"
RECORDED = "recorded.jsonl"


@cache
def plan(folder: Path, steps: int) -> RunPlan:
    """A deployment of two clients that train so many steps in each round."""
    return plan_of(
        Blobs(),
        clients=2,
        rounds=ROUNDS,
        local_steps=steps,
        noise_multiplier=2.0,
        epsilon=50.0,
        seed=None,
        ledger=f"sqlite:///{folder / 'ledger.db'}",
        signing_key=str(folder / "server.key"),
    )


class WitnessedGrid(DeployedGrid):
    """Writes down, on the receiving side, what clients release: the truth that no book may fall below."""

    def _deliver(self, message: Message) -> Message:
        reply = super()._deliver(message)
        if RECEIPT in reply.content:
            _append(self.folder / RELEASED, _witness(self.names[message.metadata.dst_node_id], reply))
        return reply


def serve(folder: Path, steps: int, point: str | None = None, times: int = 1) -> None:
    """A whole run, or the rest of one; dies at `point`."""
    _prepare(point, times)
    run, kept = plan(folder, steps), None
    if (folder / CHECKPOINT).exists():
        kept = load_checkpoint(folder)
    strategy = PrivateStrategy(
        FedAvg(**SAMPLING),
        run,
        observers=[lambda record: _append(folder / RECORDED, {"round": record.round})],
        resume=kept,
        checkpoints=folder,
    )
    strategy.start(WitnessedGrid(run, folder))


def answer(folder: Path, steps: int, point: str | None = None, times: int = 1) -> None:
    """One client that gets its grants, in order, from a server that asks again for whatever it was not answered."""
    _prepare(point, times)
    run = plan(folder, steps)
    grid = WitnessedGrid(replace(run, config=replace(run.config, clients=1)), folder)
    for round in range(1, GRANTS + 1):
        reply = grid._deliver(_grant(run, round, attempt=1))
        if REFUSAL in reply.content:
            code = Refusal.from_record(reply.content[REFUSAL]).code
            assert code is RefusalCode.ALREADY_CHARGED, code
            reply = grid._deliver(_grant(run, round, attempt=2))
        assert RECEIPT in reply.content, reply
        grid._deliver(_grant(run, round, attempt=1))  # what was answered can be asked for once more


@cache
def question_plan_of(folder: Path) -> RunPlan:
    """Questions to the clients of a deployment."""
    settings = {"clients": 2, "noise-multiplier": 4.0, "epsilon": 50.0, "delta": 1e-3, "node-timeout": 1.0}
    places = {"ledger": f"sqlite:///{folder / 'ledger.db'}", "signing-key": str(folder / "server.key")}
    return question_plan(settings | places, TABLED)


def asked_grid(run: RunPlan, folder: Path) -> WitnessedGrid:
    """Clients that answer whatever they are asked."""
    grid = WitnessedGrid(run, folder)
    for context in grid._contexts.values():
        context.node_config.update(ANSWERS_ALL)
    return grid


def tell(folder: Path, steps: int, point: str | None = None, times: int = 1) -> None:
    """One client that is asked questions, in order, by a server that asks again for whatever it was not answered."""
    _prepare(point, times)
    run = question_plan_of(folder)
    grid = asked_grid(replace(run, config=replace(run.config, clients=1)), folder)
    key = server_key(Path(run.config.signing_key))

    def asked(round: int, attempt: int) -> Message:
        questions = [fp.ask.count(), fp.ask.mean("age", 0, 100)][:steps]
        grant = a_question(*questions, signer=key, run_id="questions-life", round=round, attempt=attempt)
        return grid._deliver(Message(RecordDict({QUESTION_GRANT: grant.to_record()}), 1000, ASK))

    for round in range(1, GRANTS + 1):
        reply = asked(round, attempt=1)
        if REFUSAL in reply.content:
            code = Refusal.from_record(reply.content[REFUSAL]).code
            assert code is RefusalCode.ALREADY_CHARGED, code
            reply = asked(round, attempt=2)
        assert RECEIPT in reply.content, reply
        asked(round, attempt=1)  # what was answered can be asked for once more


def inquire(folder: Path, steps: int, point: str | None = None, times: int = 1) -> None:
    """A server that asks its clients once, and reads what it has of an earlier life."""
    _prepare(point, times)
    run = question_plan_of(folder)
    asked = Questionnaire((fp.ask.count(), fp.ask.mean("age", 0, 100)))
    done = ask_clients(asked_grid(run, folder), run, asked)
    assert len(done.told) == 2, done.failures
    _append(folder / RECORDED, {"reread": len(done.reread), "federation": list(done.federation)})


def _prepare(point: str | None, times: int) -> None:
    torch.set_num_threads(1)
    if point is not None:
        failpoints.arm(point, times)


def _grant(run: RunPlan, round: int, attempt: int) -> Message:
    key = server_key(Path(run.config.signing_key))
    usual = {"noise_multiplier": 2.0, "clipping_norm": 1.0, "server_key": server_public_key(key)}
    grant = replace(A_GRANT, round=round, attempt=attempt, steps=run.config.local_steps, **usual)
    grant = replace(grant, signature=sign(key, signing.GRANT, grant.signed_bytes()))
    arrays = ArrayRecord({n: Array(p.detach().numpy()) for n, p in run.task.model().named_parameters()})
    return Message(RecordDict({GRANT: grant.to_record(), "arrays": arrays}), 1000, MessageType.TRAIN)


def _witness(client: str, reply: Message) -> dict[str, object]:
    receipt = Receipt.from_record(reply.content[RECEIPT])
    update = digest({name: array.numpy() for name, array in reply.content["arrays"].items()})
    key = {"client": client, "run": receipt.run_id, "round": receipt.round, "attempt": receipt.attempt}
    return key | {"steps": receipt.steps, "update": update}


def _warm() -> None:
    """What every child would compute and import anew, done once before they are forked."""
    with TemporaryDirectory() as folder:
        accountant = CentralAccountant(
            Ledger(f"sqlite:///{folder}/ledger.db"), A_GRANT.relation, PrivacyBudget(50.0, 1e-3), DEFAULT_FILTER
        )
        accountant.enrol({"a": "a"}, {"a": replace(A_GRANT.event, noise_multiplier=2.0)})
        for round in range(1, 8):
            accountant.grant(Attempt("run", round), {"a": 1})
            accountant.spent()


def _append(file: Path, fact: dict[str, object]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(fact) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


_warm()
