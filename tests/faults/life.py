"""Lives of servers and clients, which are killed and then started again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedprivacy as fp
from fedprivacy._support import signing
from fedprivacy._support.signing import server_key, server_public_key, sign
from fedprivacy.flower import PrivateStrategy, private_client
from fedprivacy.flower.client.release import digest
from fedprivacy.flower.server.ask_clients import ask_clients
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
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.runs.plans.plan import QuestionPlan, TrainingPlan
from fedprivacy.values.budget import PrivacyBudget
from tests.flower.asked import ANSWERS_ALL, TABLED, a_question
from tests.flower.blobs import A_GRANT, Blobs, plan_of
from tests.flower.deployment import DeployedGrid
from tests.flower.runs import SAMPLING

ROUNDS = 3
BUDGET = PrivacyBudget(50.0, 1e-3)
RELEASED = "released.jsonl"
RECORDED = "recorded.jsonl"


def ledger_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.db'}"


@cache
def plan(folder: Path, steps: int) -> TrainingPlan:
    """A deployment of two clients that train so many steps in each round."""
    return plan_of(
        Blobs(),
        clients=2,
        rounds=ROUNDS,
        local_steps=steps,
        noise_multiplier=2.0,
        epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
        seed=None,
        ledger=ledger_of(folder),
        signing_key=str(folder / "server.key"),
    )


def witnessed(run: TrainingPlan, folder: Path, **node: object) -> DeployedGrid:
    """Clients with these settings; what they release is written down: the truth that no book may fall below."""
    client = private_client(run.task, run.config)

    def answered(message: Message, context: Context) -> Message:
        context.node_config.update(node)
        reply = client(message, context)
        if RECEIPT in reply.content:
            _append(folder / RELEASED, _witness(context.node_config["client-id"], reply))
        return reply

    return DeployedGrid(run, folder, answered)


def serve(folder: Path, steps: int) -> None:
    """A whole run, or the rest of one."""
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
    strategy.start(witnessed(run, folder))


def answer(folder: Path, steps: int) -> None:
    """One client that gets its grants, in order, from a server that asks again for whatever it was not answered."""
    run = plan(folder, steps)
    grid = witnessed(replace(run, config=replace(run.config, clients=1)), folder)
    _until_answered(grid, partial(_grant, run))


@cache
def question_plan_of(folder: Path) -> TrainingPlan:
    """Questions to the clients of a deployment."""
    settings = {"clients": 2, "noise-multiplier": 4.0, "epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
    places = {"node-timeout": 1.0, "ledger": ledger_of(folder), "signing-key": str(folder / "server.key")}
    return QuestionPlan.of(settings | places, TABLED)


def tell(folder: Path, steps: int) -> None:
    """One client that is asked so many questions a round by a server that asks again for what was not answered."""
    run = question_plan_of(folder)
    grid = witnessed(replace(run, config=replace(run.config, clients=1)), folder, **ANSWERS_ALL)
    key = server_key(Path(run.config.signing_key))
    questions = [fp.ask.count(), fp.ask.mean("age", 0, 100), fp.ask.sum("age", 0, 100)][:steps]

    def asked(round: int, attempt: int) -> Message:
        grant = a_question(*questions, signer=key, run_id="questions-life", round=round, attempt=attempt)
        return Message(RecordDict({QUESTION_GRANT: grant.to_record()}), 1000, ASK)

    _until_answered(grid, asked)


def _until_answered(grid: DeployedGrid, message_of: Callable[[int, int], Message]) -> None:
    """Send one client the message of each round; where its charge stands unanswered, that of another attempt."""

    def reply_to(round: int, attempt: int) -> Message:
        (reply,) = grid.send_and_receive([message_of(round, attempt)])
        return reply

    for round in range(1, ROUNDS + 1):
        reply = reply_to(round, attempt=1)
        if REFUSAL in reply.content:
            code = Refusal.from_record(reply.content[REFUSAL]).code
            assert code is RefusalCode.ALREADY_CHARGED, code
            reply = reply_to(round, attempt=2)
        assert RECEIPT in reply.content, reply
        reply_to(round, attempt=1)  # what was answered can be asked for once more


def inquire(folder: Path, steps: int) -> None:
    """A server that asks its clients so many questions once, and reads what it has of an earlier life."""
    run = question_plan_of(folder)
    asked = Questionnaire((fp.ask.count(), fp.ask.mean("age", 0, 100))[:steps])
    done = ask_clients(witnessed(run, folder, **ANSWERS_ALL), run, asked)
    assert len(done.told) == steps, done.failures
    _append(folder / RECORDED, {"reread": len(done.reread), "federation": list(done.federation)})


def _grant(run: TrainingPlan, round: int, attempt: int) -> Message:
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


def _append(file: Path, fact: dict[str, object]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(fact) + "\n")
        lines.flush()
        os.fsync(lines.fileno())
