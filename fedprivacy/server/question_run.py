"""A run that asks instead of training: the questions of a deployment's run-config, and the record in the run store."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flwr.serverapp import Grid

from fedprivacy._support.durable import write_durably
from fedprivacy.flower import RoundFailedError
from fedprivacy.flower.server.ask_clients import AskResult, ask_clients
from fedprivacy.ledger import LedgerError
from fedprivacy.runs.plans.plan import QuestionPlan, questions_in
from fedprivacy.runs.records.store import RunRecording
from fedprivacy.runs.settings.configuration import ASKING_KEYS, RUNS, Value
from fedprivacy.tasks import Task
from fedprivacy.values.numbers import plain
from fedprivacy.values.runs import RoundResult, RunStatus
from fedprivacy.values.series import RunFacts

log, flower_log = logging.getLogger("fedprivacy.server"), logging.getLogger("flwr")

ANSWERS = "answers.json"
"""Name of the file in the run's folder that holds a deployment's answers."""


def answer_run_config(grid: Grid, run_config: Mapping[str, Value], task: Task | None = None) -> None:
    """Ask a deployment's clients what its run-config says; the answers go into Flower's log, and into the run's folder.

    Raises:
        ConfigError: the settings, or the questions, are wrong.
        RoundFailedError: no client answered.
    """
    plan = QuestionPlan.of({key: value for key, value in run_config.items() if key in ASKING_KEYS}, task)
    asked = questions_in(str(run_config["questions"]))
    plan = replace(plan, config=replace(plan.config, out=plan.config.out or RUNS))
    done = ask_clients(grid, plan, asked)
    record(done, plan)
    if not done.told:
        reasons = "; ".join(f"{client_id}: {reason}" for client_id, reason in done.failures.items())
        raise RoundFailedError(f"No client answered ({reasons}); the clients' own logs say what happened.")
    folder = Path(plan.config.out)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"federation": done.federation, "clients": done.clients, "failures": done.failures, "spent": done.spent}
    write_durably(folder / ANSWERS, (json.dumps(plain(facts), indent=2) + "\n").encode())
    for row in done.federation:
        group = f" ({row['group']})" if row["group"] else ""
        flower_log.info("%s%s: %s +- %s", row["figure"], group, row["value"], row["error"])


def record(done: AskResult, plan: QuestionPlan) -> None:
    """Put what was asked into the run store, where pages find it: a run of one round, whose metrics are the answers.

    It is for people: where it cannot be written, the answers stand all the same.
    """
    if not done.spent:
        return
    figures = (figure for number, _ in enumerate(done.asked.questions) for figure in done.figures(number))
    metrics = {
        f"{figure.name} ({figure.group})" if figure.group else figure.name: figure.value
        for figure in figures
        if figure.value is not None
    }
    facts = RunFacts(
        run_id=done.run_id,
        name="; ".join(question.sentence_of(done.unit) for question in done.asked.questions),
        settings=plan.config.public(),
        noise_multiplier=done.event.noise_multiplier if done.event else 0.0,
        relation=plan.relation,
        metric=next(iter(metrics), ""),
        unit=str(plan.unit),
    )
    answered = tuple(sorted(done.told.keys() & done.spent.keys() - set(done.reread)))
    try:
        recording = RunRecording(done.ledger, facts)
        recording.add(RoundResult(0, {}, done.before, (), {}))
        recording.add(RoundResult(1, metrics, done.spent, answered, done.failures))
        recording.end(RunStatus.FINISHED)
        recording.flush()
        recording.close()
    except LedgerError as error:
        log.warning("The run store cannot be written; the answers are kept. %s", error)
