"""A rehearsed run: the real strategy and accountant with clients of few records, whose every message is kept.

What is granted, charged and shown must agree: the grants with the ledger, the figures with the charges, the ledger's
budget with where the run ends, and each client's clipping norm with its own releases, not with another's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from flwr.app import Message, MessageType
from flwr.serverapp.strategy import FedAvg

from fedprivacy.accounting import DEFAULT_FILTER, pld
from fedprivacy.audit.gates.costs import too_low
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.our_client.known_gradients import Known, shard_of
from fedprivacy.audit.silence import silence
from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.flower.server.accounts import BudgetSpentError
from fedprivacy.flower.server.rounds import RoundFailedError
from fedprivacy.flower.wire.messages import ENROL, GRANT, RECEIPT, Grant, Receipt
from fedprivacy.ledger import Allowance, Ledger, LedgerError
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.settings.configuration import Value
from fedprivacy.tasks import Shard, ShardSource
from fedprivacy.tasks.identity import dataset_id
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import History, PoissonSampledGaussian
from fedprivacy.values.rounds import RoundResult

_CLIENTS, _ROUNDS = 3, 3

_AMPLE, _LESS = 1e6, 1e-3
"""Epsilons of a budget that allows everything, and of one that is spent already."""


@gate(
    "rehearsal",
    proves="In a run, what is granted, charged and shown agrees.",
    assumes="Other runs are as the rehearsed ones.",
)
def check(audited: Audited) -> Judged:
    """Check that nothing disagrees in a rehearsed run with the audited settings."""
    with tempfile.TemporaryDirectory() as folder, silence():
        url = f"sqlite:///{Path(folder) / 'ledger.db'}"
        rehearsal = _Rehearsal(audited, url)
        found = [*rehearsal.complaints(), *_charged_at_once(f"sqlite:///{Path(folder) / 'another.db'}")]
    return Judged(float(len(found)), found)


class _Sized(Known):
    """Client i's gradients have norm 100^(i - 1) C: one client clips all of its records, one some, one none."""

    name = "rehearsed"

    def __init__(self, audited: Audited) -> None:
        super().__init__([4], audited.grant.relation, f"rehearsed-{audited.task.dataset}")
        self._norm = audited.grant.clipping_norm

    def shard(self, source: ShardSource) -> Shard:
        """Forty records."""
        return shard_of(torch.eye(4).repeat(10, 1) * self._norm * 100.0 ** ((source.partition_id or 0) - 1))

    def partition(self, num_partitions: int) -> str:
        """Always the same split."""
        return f"{num_partitions} parts"


class _Recording(InProcessGrid):
    """Notes what crosses, when it does: the server takes apart what it receives."""

    def __init__(self, plan: TrainingPlan) -> None:
        super().__init__(private_client(plan.task, plan.config), _CLIENTS, {})
        self.asked: set[str] = set()
        self.metrics: list[str] = []
        self.answered: list[tuple[Grant, Receipt | None]] = []

    def _deliver(self, message: Message) -> Message:
        reply = super()._deliver(message)
        self.asked.add(message.metadata.message_type)
        self.metrics += reply.content.metric_records if reply.has_content() else []
        if GRANT in message.content:
            told = reply.has_content() and RECEIPT in reply.content
            self.answered.append((Grant.of(message), Receipt.of(reply) if told else None))
        return reply


class _Rehearsal:
    """Runs on one ledger: one as planned, one with another budget on the ledger, one whose budget is spent."""

    def __init__(self, audited: Audited, url: str) -> None:
        self._audited, self._url, self._task = audited, url, _Sized(audited)

    def complaints(self) -> Iterator[str]:
        """What disagrees, in words."""
        yield from self._run()
        delta = self._audited.claim.delta
        self._allow(PrivacyBudget(_AMPLE, delta / 10.0))
        yield from self._run()
        before = self._steps()
        self._allow(PrivacyBudget(_LESS, delta))
        yield from self._run()
        if self._steps() != before:
            yield "A client was granted steps though its budget on the ledger is spent."

    def _run(self) -> Iterator[str]:
        """What disagrees in one run."""
        grant = self._audited.grant
        settings: dict[str, Value | None] = {
            "clients": _CLIENTS,
            "rounds": _ROUNDS,
            "local-steps": grant.training_steps,
            "local-evaluation": int(grant.local_evaluation),
            "sampling-rate": grant.sampling_rate,
            "noise-multiplier": grant.noise_multiplier,
            "clipping": grant.clipping,
            "clipping-norm": grant.clipping_norm,
            "optimizer": grant.optimizer,
            "learning-rate": grant.learning_rate,
            "momentum": grant.momentum,
            "weight-decay": grant.weight_decay,
            "epsilon": _AMPLE,
            "delta": self._audited.claim.delta,
            "ledger": self._url,
            "seed": self._audited.seed,
            "device": "cpu",
        }
        plan = TrainingPlan.of(settings, self._task)
        grid, finished = _Recording(plan), list[RoundResult]()
        before = self._histories()
        eager = FedAvg(fraction_evaluate=1.0, min_evaluate_nodes=1, min_train_nodes=1, min_available_nodes=1)

        def look(result: RoundResult) -> None:
            finished.append(result)
            shown.extend(self._misstated(result))

        shown: list[str] = []
        try:
            PrivateStrategy(eager, plan, observers=[look]).start(grid)
        except BudgetSpentError:
            pass
        except RoundFailedError:
            yield "The server could use no client's answer in a run: receipts do not state what was granted."
        yield from shown
        yield from _other_messages(grid)
        yield from _norms_of_others(grid)
        yield from self._uncharged(grid, before)

    def _allow(self, budget: PrivacyBudget) -> None:
        for number in range(_CLIENTS):
            Ledger(self._url).set_budget(self._dataset(f"client-{number}"), budget, None, "the auditor's rehearsal")

    def _dataset(self, client: str) -> str:
        return dataset_id(self._task, client)

    def _histories(self) -> Mapping[str, History]:
        if not Ledger.exists(self._url):
            return {}
        datasets = [self._dataset(f"client-{number}") for number in range(_CLIENTS)]
        return {name: account.history for name, account in Ledger(self._url).accounts(datasets).items()}

    def _steps(self) -> int:
        return sum(sum(history.values()) for history in self._histories().values())

    def _misstated(self, result: RoundResult) -> Iterator[str]:
        """Figures of a round that are not what the ledger's charges cost at the ledger's delta."""
        datasets = {client: self._dataset(client) for client in result.spent}
        allowances, histories = Ledger(self._url).allowances(list(datasets.values())), self._histories()
        for client, spent in result.spent.items():
            delta = allowances[datasets[client]].budget.delta
            cost = pld.epsilon(histories.get(datasets[client], {}), delta)
            if spent.delta != delta:
                yield f"An epsilon is shown at delta {spent.delta:.2g}; the client's budget is at {delta:.2g}."
            if too_low(spent.epsilon, cost):
                yield f"An epsilon of {spent.epsilon:.3g} is shown; what was charged costs {cost:.3g}."

    def _uncharged(self, grid: _Recording, before: Mapping[str, History]) -> Iterator[str]:
        """Steps that clients say they executed and that the ledger does not hold."""
        executed: dict[tuple[str, PoissonSampledGaussian], int] = {}
        for _, receipt in grid.answered:
            if receipt is None:
                yield "A client sent no update though the server granted it one."
            else:
                key = self._dataset(receipt.client_id), receipt.event
                executed[key] = executed.get(key, 0) + receipt.steps
        after = self._histories()
        for (dataset, event), steps in executed.items():
            charged = _of(after.get(dataset, {}), event) - _of(before.get(dataset, {}), event)
            if charged < steps:
                yield f"A client executed {steps} steps in a run, and the ledger was charged {charged} of them."


def _of(history: History, event: PoissonSampledGaussian) -> int:
    return sum(steps for other, steps in history.items() if other == event)


def _other_messages(grid: _Recording) -> Iterator[str]:
    """Questions to clients that nobody charges for."""
    if others := sorted(grid.asked - {ENROL, MessageType.TRAIN}):
        yield f"The server asks clients for more than charged updates: {', '.join(others)}."
    if grid.metrics:
        yield f"A client's reply holds metrics, which carry no noise: {', '.join(dict.fromkeys(grid.metrics))}."


def _norms_of_others(grid: _Recording) -> Iterator[str]:
    """Grants with another clipping norm than the client's own last release led to."""
    last: dict[str, float] = {}
    for grant, receipt in grid.answered:
        if grant.adaptive is not None and grant.clipping_norm != last.get(grant.client_id, grant.clipping_norm):
            yield "A client was granted a clipping norm that is not the one of its own last release."
        if receipt is not None:
            last[grant.client_id] = receipt.clipping_norm


def _charged_at_once(url: str) -> Iterator[str]:
    """Try to charge between another's look at a balance and its charge."""
    event, quota = PoissonSampledGaussian(0.1, 1.0), 10
    one, other = Ledger(url), Ledger(url, patience=0.05)
    one.open_budgets({"a": Allowance(PrivacyBudget(3.0, 1e-5), DEFAULT_FILTER)})

    def left(_: str, history: History, __: Allowance) -> int:
        return quota - sum(history.values())

    between: list[int] = []

    def left_while_another_charges(dataset: str, history: History, allowance: Allowance) -> int:
        with suppress(LedgerError):
            between.append(other.reserve(Attempt("another", 1), event, {"a": 7}, left).get("a", 0))
        return left(dataset, history, allowance)

    with suppress(LedgerError):
        one.reserve(Attempt("one", 1), event, {"a": 7}, left_while_another_charges)
    charged = sum(other.accounts(["a"])["a"].history.values())
    if any(between) or charged > quota:
        yield "Between a server's look at a balance and its charge, another server could charge the same balance."
