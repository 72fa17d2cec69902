"""Asking the clients: one release of all questions by each, charged before any message leaves.

An answer that was paid for is kept in the ledger, and read again for nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.accounts import Accounts, BudgetSpentError, check_named
from fedprivacy.flower.server.nodes import ClientRegistry, Correspondence, EnrolledClient
from fedprivacy.flower.server.one_round import OpenRound, outcome_of, sort_replies
from fedprivacy.flower.wire.messages import ASK, QuestionGrant, spending
from fedprivacy.flower.wire.payloads import blank, from_arrays
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.kept_answers import Answer, StoredAnswer
from fedprivacy.questions.answers import Answers, Told
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import NoisyTotals
from fedprivacy.runs.plans.plan import QuestionPlan
from fedprivacy.tasks.identity import dataset_id
from fedprivacy.values.attempt import QUESTIONS, Attempt, asking_for
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.spent import ClientSpent

log = logging.getLogger("fedprivacy.server")

ByClient = dict[str, tuple[Told, ...]]
"""Answers to all questions of a questionnaire, in their order, by client_id."""


class QuestionAccounts(Accounts[QuestionGrant]):
    """The books of a run that asks: one step of a plan whose local steps read every record."""

    def __init__(
        self, plan: QuestionPlan, run_id: str, clients: Sequence[EnrolledClient], asked: Questionnaire
    ) -> None:
        super().__init__(plan, run_id, clients)
        self._asked = asked

    def _grant(self, client: EnrolledClient, attempt: Attempt, steps: int, charged: str) -> QuestionGrant:
        event = self._accountant.event(client.client_id)
        return self._sign(
            QuestionGrant(
                **spending(attempt, client.client_id, steps, event, unit=str(self._plan.unit), clipping_norm=1.0),
                questions=self._asked.as_text(),
                earlier_runs=self.earlier_runs,
                charged=charged,
                server_key=self._server_key,
            )
        )

    def keep(self, attempt: Attempt, by_client: Mapping[str, Sequence[Told]]) -> None:
        """Keep answers, by client_id, in the ledger, so that they need never be paid for again."""
        texts = [question.as_text() for question in self._asked.questions]
        self._ledger.keep_answers(
            attempt,
            [
                _as_stored(dataset_id(self._plan.task, client_id), number, text, each)
                for client_id, answers in by_client.items()
                for number, (text, each) in enumerate(zip(texts, answers, strict=True))
            ],
        )


@dataclass(frozen=True, repr=False)
class AskResult(Answers):
    """The answers of all clients, and the cost of those that were asked now.

    Attributes:
        asked, told, unit: the questions, the answers of every client that answered, now or before, and the task's word
            for a record.
        reread: clients that were not asked, because the ledger had their answers.
        failures: the reason of each client without an answer, by client_id.
        before: the account of every asked client before the charge; empty if no client was asked.
        spent: the same accounts afterwards.
        ledger: URL of the ledger that was charged.
        event: the charge of each asked client; None: no client was asked.
        run_id: the run of the charges in the ledger; empty: there are no charges.
    """

    reread: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, ClientSpent] = field(default_factory=dict)
    spent: Mapping[str, ClientSpent] = field(default_factory=dict)
    ledger: str = ""
    event: PoissonSampledGaussian | None = None
    run_id: str = ""


def ask_clients(
    grid: Grid,
    plan: QuestionPlan,
    asked: Questionnaire,
    *,
    anew: bool = False,
    registry: ClientRegistry | None = None,
    of_run: str = "",
) -> AskResult:
    """Ask the clients that have not answered these questions before.

    Formal guarantee: see `fedprivacy.runs.accountant`, and `fedprivacy.questions.release.GaussianAnswers` for what one
    client's answer is.

    Args:
        grid: Flower's grid.
        plan: a plan of one round with one step that reads every record, see `QuestionPlan.of`.
        asked: the questions.
        anew: whether clients that have answered before are asked, and charged, again.
        registry: the clients that are enrolled already; None: wait for the configured number of clients.
        of_run: the run_id of the run whose own question this is; empty: it is nobody's.

    Raises:
        ConfigError: client terms name a simulated client that does not exist.
        TooFewClientsError: the configured number of clients did not come in time.
        BudgetSpentError: no client's budget allows the answer.
        LedgerError: the ledger contradicts this run, or cannot be written.
    """
    if registry is None:
        registry = ClientRegistry(plan.config.node_timeout, plan.config.signing_key_file)
        registry.wait_for(grid, plan.config.clients)
    clients = registry.online(grid)
    check_named(plan, clients.values())
    ledger = plan.config.ledger_url(deployed=any(client.public_key for client in clients.values()))
    plan = replace(plan, config=replace(plan.config, ledger=ledger))
    known = {} if anew else earlier_answers(plan, asked, [client.client_id for client in clients.values()])
    lacking = {node_id: client for node_id, client in clients.items() if client.client_id not in known}
    if not lacking:
        return AskResult(asked, known, plan.unit.name, reread=tuple(known), ledger=ledger)
    run_id = (asking_for(of_run) if of_run else QUESTIONS) + uuid.uuid4().hex
    return _ask_now(Correspondence(grid), plan, asked, lacking, known, run_id=run_id)


def earlier_answers(plan: QuestionPlan, asked: Questionnaire, client_ids: Sequence[str]) -> ByClient:
    """The newest answers of clients that have answered every question before, as the ledger keeps them."""
    if not Ledger.exists(plan.config.ledger):
        return {}
    datasets = {client_id: dataset_id(plan.task, client_id) for client_id in client_ids}
    with Ledger(plan.config.ledger) as ledger:
        stored = [ledger.answers(question.as_text(), list(datasets.values())) for question in asked.questions]
    return {
        client_id: tuple(
            _from_stored(question, each[dataset][-1]) for question, each in zip(asked.questions, stored, strict=True)
        )
        for client_id, dataset in datasets.items()
        if all(dataset in each for each in stored)
    }


def _ask_now(
    correspondence: Correspondence,
    plan: QuestionPlan,
    asked: Questionnaire,
    clients: Mapping[int, EnrolledClient],
    known: ByClient,
    *,
    run_id: str,
) -> AskResult:
    """Charge these clients, ask them, and keep their answers."""
    try:
        plan = plan.for_clients([client.client_id for client in clients.values()])
    except ValueError as error:
        raise BudgetSpentError(str(error)) from error
    attempt = Attempt(run_id, 1)
    with closing(QuestionAccounts(plan, attempt.run_id, list(clients.values()), asked)) as accounts:
        accounts.check_left()
        before = accounts.spent()
        opened = _open_round(accounts, attempt, clients, asked)
        replies = correspondence.ask(opened.messages, plan.config.round_timeout)
        outcome = outcome_of(opened, sort_replies(opened, replies))
        accounts.settle(outcome)
        told = {client_id: _read_reply(reply, asked, plan) for client_id, reply in outcome.updates.items()}
        accounts.keep(attempt, told)
        accounts.sign()
        without = {client.client_id for client in clients.values()} - {g.client_id for g in opened.grants.values()}
        return AskResult(
            asked,
            known | told,
            plan.unit.name,
            reread=tuple(known),
            failures=dict.fromkeys(sorted(without), "budget-exhausted") | dict(outcome.failures),
            before=before,
            spent=accounts.spent(),
            ledger=accounts.ledger_url,
            event=plan.event(),
            run_id=attempt.run_id,
        )


def _open_round(
    accounts: QuestionAccounts, attempt: Attempt, clients: Mapping[int, EnrolledClient], asked: Questionnaire
) -> OpenRound:
    """Reserve the spending of each client; a client without budget gets no message."""
    allowed = accounts.open_to(attempt, again=False)
    eligible = {node_id: client for node_id, client in clients.items() if client.client_id in allowed}
    grants = accounts.grant(attempt, eligible, again=False)
    messages = [Message(RecordDict({g.name: g.to_record()}), node_id, ASK) for node_id, g in grants.items()]
    forms = ArrayRecord({name: Array(zeros) for name, zeros in blank(asked).items()})
    return OpenRound(attempt, forms, len(eligible), eligible, messages=messages, grants=grants)


def _read_reply(reply: Message, asked: Questionnaire, plan: QuestionPlan) -> tuple[Told, ...]:
    arrays = {name: array.numpy() for name, array in reply.content.array_records[ARRAYS].items()}
    answers: list[NoisyTotals] = from_arrays(asked, arrays)
    sigmas = asked.noise_multipliers(plan.noise.of())
    return tuple(Told(sigma, answer) for sigma, answer in zip(sigmas, answers, strict=True))


def _as_stored(dataset: str, number: int, question: str, answer: Told) -> Answer:
    """An answer as the ledger keeps it: its rows, one after the other."""
    return Answer(dataset, number, question, answer.noise_multiplier, tuple(answer.answer.rows.ravel().tolist()))


def _from_stored(question: Question, stored: StoredAnswer) -> Told:
    """The inverse of `_as_stored`."""
    rows = np.array(stored.totals, dtype=np.int64).reshape(len(question.groups), 1 + question.width)
    return Told(stored.noise_multiplier, NoisyTotals.from_rows(rows))
