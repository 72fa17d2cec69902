"""The books of one run: the clients' accounts, the grants, the receipts, and the signed heads of the ledger."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from flwr.app import Message

from fedprivacy._support import signing
from fedprivacy._support.durable import write_durably
from fedprivacy._support.failpoints import reach
from fedprivacy.flower.server.checkpoint import Checkpoint
from fedprivacy.flower.server.nodes import Eligible, EnrolledClient
from fedprivacy.flower.server.one_round import Instruction, RoundOutcome, Unusable, checked_receipt, evidence
from fedprivacy.flower.simulated.populations import Order
from fedprivacy.flower.wire.messages import Grant, QuestionGrant, spending
from fedprivacy.flower.wire.payloads import history_text
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.ledger.errors import AccountError
from fedprivacy.ledger.journal import check_ancestor, sign_head
from fedprivacy.ledger.verify import read_witness
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.plans.advice import budget_advice
from fedprivacy.runs.plans.plan import RunPlan
from fedprivacy.runs.prospect import client_groups
from fedprivacy.runs.records.witnesses import WITNESS, check_witnesses
from fedprivacy.runs.settings.configuration import RUNS, ConfigError, RunConfig
from fedprivacy.tasks.identity import dataset_id
from fedprivacy.training.algorithms import text_of
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import History, PoissonSampledGaussian
from fedprivacy.values.spent import PopulationSpent
from fedprivacy.values.wording import budget_text, count_text, delta_text, epsilon_text, noise_text

log = logging.getLogger("fedprivacy.server")

Granted = TypeVar("Granted", Grant, QuestionGrant)


class BudgetSpentError(RuntimeError):
    """No client's budget allows one step of the run that is about to begin."""


def check_named(plan: RunPlan, clients: Collection[EnrolledClient]) -> None:
    """Refuse client terms for unknown simulated clients; warn for deployed ones, which may come later.

    Raises:
        ConfigError: names the unknown clients. Up to here clients were asked for nothing but their names.
    """
    client_ids = [client.client_id for client in clients]
    if not any(client.public_key for client in clients):
        plan.client_terms.check_names(client_ids)
    elif absent := plan.client_terms.unknown(client_ids):
        log.warning(
            "client-terms are for %s, and no such client is there yet; if a name is misspelt, the client has the run's "
            "terms.",
            ", ".join(absent),
        )


def check_worth_asking(plan: RunPlan, clients: Collection[EnrolledClient]) -> None:
    """Refuse to pay for a task's own question where no client could take a step of the training after it.

    Raises:
        BudgetSpentError: none could, and somebody would be asked. Nothing has been charged.
    """
    try:
        groups = client_groups(plan, {client.client_id: client.shard_size for client in clients})
    except ValueError as problem:  # no noise is enough for the question
        raise BudgetSpentError(f"{problem} Nobody was asked, nothing was charged.") from problem
    can_train = (plan.allows_a_step(group.event, group.past, group.allowance) for group in groups)
    if any(group.question for group in groups) and not any(can_train):
        noises = [group.event.noise_multiplier for group in groups]
        raise BudgetSpentError(
            f"No client could take a step with noise multiplier {noise_text(min(noises), max(noises))} once the task's "
            "own question was answered. Nobody was asked, nothing was charged. Raise epsilon or noise-multiplier, "
            "lower question-spend, or train on records that have budget left."
        )


class Books(Protocol):
    """The accounts of a run as its rounds use them: charges and grants. `Accounts` describes each method."""

    left_out: set[str]
    clipping_norms: dict[str, float]
    earlier_runs: int
    ledger_url: str

    def __init__(
        self,
        plan: RunPlan,
        run_id: str,
        clients: Iterable[EnrolledClient],
        *,
        resume: Checkpoint | None = None,
        folder: Path | None = None,
    ) -> None: ...
    @staticmethod
    def check(config: RunConfig) -> None: ...
    @property
    def unreconciled(self) -> tuple[str, ...]: ...
    def admit(self, clients: Iterable[EnrolledClient]) -> list[ValueError]: ...
    def check_left(self) -> None: ...
    def spent(self) -> PopulationSpent: ...
    def most_charged(self) -> History: ...
    def attempts(self, server_round: int) -> Iterator[tuple[Attempt, bool]]: ...
    def open_to(self, attempt: Attempt, *, again: bool) -> Eligible: ...
    def grant(
        self, attempt: Attempt, clients: Mapping[int, EnrolledClient], *, again: bool
    ) -> Mapping[int, Instruction]: ...
    def reserve(self, attempt: Attempt, clients: Iterable[EnrolledClient], *, again: bool) -> dict[str, int]: ...
    def order(self, client: EnrolledClient, part: int, steps: int) -> Order: ...
    def weight(self, client: EnrolledClient) -> float: ...
    def settle(self, outcome: RoundOutcome) -> None: ...
    def settle_late(self, asked: Message, reply: Message, key: bytes) -> None: ...
    def sign(self) -> None: ...
    def close(self) -> None: ...


class Accounts(ABC, Generic[Granted]):
    """Opens accounts for clients, grants against them, and settles what was granted.

    Formal guarantee: see `fedprivacy.runs.accountant`.

    Args:
        plan: the run's public numbers.
        run_id: unique in the ledger.
        clients: the clients present, which get their accounts in this constructor. Their public keys tell whether the
            run is a deployment.
        resume: the checkpoint of a run that is resumed; None: a new run.
        folder: the run's folder, which receives a copy of the ledger's newest signed head; None: there is no copy.

    Raises:
        ConfigError: the run is a deployment, and a budget has no limit.
        LedgerError: the ledger contradicts this run, no longer holds what this run or another one beside it has signed,
            or cannot be used.
        MechanismChanged: every client, or a simulated one, was charged for another mechanism than its filter takes.
        SigningKeyError: the signing key cannot be used.
    """

    def __init__(
        self,
        plan: RunPlan,
        run_id: str,
        clients: Iterable[EnrolledClient],
        *,
        resume: Checkpoint | None = None,
        folder: Path | None = None,
    ) -> None:
        clients, config = list(clients), plan.config
        self.left_out = set(resume.left_out) if resume else set()  # clients that are not asked any more
        self.clipping_norms = dict(resume.clipping_norms) if resume else {}  # where adaptive clipping has arrived
        self._run_id = run_id
        self._goes_on_with = resume.round + 1 if resume else None
        self._keys: dict[str, str] = {}
        self._deployed = any(client.public_key for client in clients)
        if self._deployed:
            plan.check_limited()
        signs = self._deployed or config.signing_key
        self._signing_key = signing.server_key(config.signing_key_file) if signs else None
        self.ledger_url = config.ledger_url(deployed=self._deployed)
        self._plan = plan.for_ledger(self.ledger_url, run_id)
        self._ledger, out = Ledger(self.ledger_url), folder or Path(config.out or RUNS)
        check_witnesses(self._ledger, self.ledger_url, out, out.parent)
        if resume:
            self._ledger.resume_run(run_id, plan.unit)
            self.earlier_runs = resume.earlier_runs
        else:
            split = self._partition(clients)
            self.earlier_runs = self._ledger.open_run(run_id, plan.task.dataset, split, plan.unit)
        self._witness = folder / WITNESS if folder else None
        self._head = read_witness(self._witness) if resume and self._witness and self._witness.exists() else None
        self._ledger.database.read(lambda connection: check_ancestor(connection, self._ledger.name, self._head))
        reach("server.run-opened")
        self._accountant = CentralAccountant(
            self._ledger,
            plan.relation,
            config.budget,
            config.allowance().filter,
            keep_filter=not config.filter,
            run_id=run_id,
            spend=plan.most_spent,
        )
        if not self._deployed:
            self._open_accounts(clients)
        elif (problems := self.admit(clients)) and self.left_out >= self._keys.keys():
            raise problems[0]
        self._open_charges = self._accountant.unreconciled(run_id) if resume else {}
        sizes = {client.client_id: plan.shard_size(client.shard_size) for client in clients}
        for advice in budget_advice(plan, sizes):
            log.warning("%s", advice)

    def check_left(self) -> None:
        """Refuse a run in which no client has budget left for a step.

        Raises:
            BudgetSpentError: names a client's spent epsilon and its budget.
        """
        spent = [client for client in self.spent().values() if client.client_id not in self.left_out]
        if not spent or not all(client.exhausted for client in spent):
            return
        first = spent[0]
        spend = "" if self._plan.config.spend is None else f" a spend of {self._plan.config.spend}"
        others = f", nor for {count_text(len(spent) - 1, 'other client')}" if len(spent) > 1 else ""
        why = self._accountant.shortage(first.client_id, self._plan.total_steps)
        raise BudgetSpentError(
            f"{first.client_id} has spent {epsilon_text(first.epsilon, first.budget_epsilon)} of "
            f"{budget_text(first.budget_epsilon)} at delta {delta_text(first.delta)}, and not one step with noise "
            f"multiplier {first.noise_multiplier:.4g} fits{spend}{others}. No round was run, and nothing was charged. "
            f"{why or 'Raise epsilon or noise-multiplier, or train on records that have budget left.'}"
        )

    @staticmethod
    def check(config: RunConfig) -> None:
        """Refuse a run without privacy: no account can bound the loss of what its clients would send.

        Raises:
            ConfigError: privacy is off.
        """
        if not config.privacy:
            raise ConfigError(
                "privacy is off, which 'fedprivacy simulate --no-privacy' alone can do; leave privacy open here."
            )

    def spent(self) -> PopulationSpent:
        """Every enrolled client's privacy loss, by client_id."""
        return self._accountant.spent()

    def most_charged(self) -> History:
        """The charges, over all runs, of the client that has spent most, as `spent` last read it."""
        return self._accountant.most_charged()

    @property
    def unreconciled(self) -> tuple[str, ...]:
        """Clients with a charge of this run that no receipt has confirmed, sorted."""
        return tuple(sorted(set().union(*self._open_charges.values())))

    def attempts(self, server_round: int) -> Iterator[tuple[Attempt, bool]]:
        """The attempts at a round, and whether each was granted before; the second is for when all updates were lost.

        No third: clients that lose their updates again and again must not be charged again and again.

        The first round of a run that goes on may have been charged before the run was stopped. What it granted then is
        handed out again: a deployed client answers it from what it sealed, and a seeded one draws the same noise, so
        that nothing new is released. A simulated client whose noise is secret trains anew, and is charged anew.
        """
        attempt, again = Attempt(self._run_id, server_round), False
        if server_round == self._goes_on_with and (last := self._ledger.last_attempt(self._run_id, server_round)):
            again = self._deployed or self._plan.config.seed is not None
            attempt = last if again else last.again
        yield attempt, again
        yield attempt.again, False

    def open_to(self, attempt: Attempt, *, again: bool) -> Eligible:
        """Clients that may be asked: with budget left, or charged already for an attempt that is handed out again."""
        spent = self.spent()
        charged = self._accountant.charged(attempt) if again else set()
        return Eligible(spent.places, set(spent.exhausted) - charged | self.left_out)

    def grant(self, attempt: Attempt, clients: Mapping[int, EnrolledClient], *, again: bool) -> dict[int, Granted]:
        """Reserve what clients may spend in a round, before any message leaves.

        Args:
            attempt: what is charged.
            clients: the clients that the strategy wants to ask, by node id. Exhausted ones get no grant.
            again: whether the attempt may have been charged before.
        """
        granted = self.reserve(attempt, clients.values(), again=again)
        charged = self._accountant.histories(granted) if self._deployed else {}
        texts = {client_id: history_text(history) for client_id, history in charged.items()}
        return {
            node_id: self._grant(c, attempt, granted[c.client_id], texts.get(c.client_id, ""))
            for node_id, c in clients.items()
            if c.client_id in granted
        }

    def reserve(self, attempt: Attempt, clients: Iterable[EnrolledClient], *, again: bool) -> dict[str, int]:
        """Reserve the steps of a round: granted steps by client_id; see `grant`."""
        steps = self._plan.config.schedule.steps_in(attempt.round)
        wanted = dict.fromkeys((client.client_id for client in clients), steps)
        granted = self._accountant.grant(attempt, wanted, resumed=again)
        self._open_charges[attempt] = set(granted)
        reach("server.reserved")
        return granted

    def event(self, client_id: str) -> PoissonSampledGaussian:
        """The event that one local step of this run costs a client."""
        return self._accountant.event(client_id)

    def settle(self, outcome: RoundOutcome) -> None:
        """Commit the charges that were spent, and return those of clients that refused before reading a record."""
        attempt = outcome.opened.attempt
        self._accountant.commit(attempt, outcome.confirmed)
        self._accountant.void(attempt, outcome.untouched)
        self._close_charges(attempt, set(outcome.confirmed).union(outcome.untouched))
        if self._plan.config.clipping == "adaptive":
            self.clipping_norms.update(outcome.clipping_norms)
        self.left_out.update(outcome.exhausted)
        reach("server.settled")

    def settle_late(self, asked: Message, reply: Message, key: bytes) -> None:
        """Commit a charge whose receipt, signed with `key`, comes after its round: the update is too old to average."""
        if reply.has_error():
            return
        grant = Grant.of(asked)
        try:
            receipt = checked_receipt(reply, grant, key)
        except Unusable as problem:
            log.warning("Client %s answered round %d too late: %s.", grant.client_id, grant.round, problem)
            return
        self._accountant.commit(grant.charged_as, {grant.client_id: evidence(receipt, key)})
        self._close_charges(grant.charged_as, {grant.client_id})
        log.warning("Client %s answered round %d too late; its charge is confirmed.", grant.client_id, grant.round)

    def _close_charges(self, attempt: Attempt, client_ids: set[str]) -> None:
        """Mark charges as closed: their receipts have come, or the charges were returned."""
        if still_open := self._open_charges.pop(attempt, set()) - client_ids:
            self._open_charges[attempt] = still_open

    def sign(self) -> None:
        """Sign the head of the ledger's journal, and leave a copy in the run's folder, if the run has a signing key.

        Raises:
            LedgerError: the ledger no longer holds what was signed after the last round.
        """
        if self._signing_key is None:
            return
        self._head = sign_head(self._ledger.database, self._signing_key, self._head)
        if self._head is not None and self._witness is not None:
            write_durably(self._witness, (json.dumps(self._head._asdict()) + "\n").encode())

    def close(self) -> None:
        """Close the ledger's connections, so that its file is whole without a log beside it; use opens new ones."""
        self._ledger.close()

    def _partition(self, clients: Iterable[EnrolledClient]) -> str:
        """The name of the split that the clients hold: every run on one ledger must have the same."""
        splits = {client.num_partitions for client in clients}
        partition = self._plan.task.partition
        names = [f"{parts} clients: {partition(parts)}" if parts else "own folders" for parts in sorted(splits)]
        if len(names) != 1:
            raise LedgerError(f"the clients hold parts of different splits ({'; '.join(names)}); start them alike.")
        return names[0]

    def admit(self, clients: Iterable[EnrolledClient]) -> list[ValueError]:
        """Open accounts for clients without one, one by one; a client that cannot have one is left out, the others not.

        Returns:
            The reasons of the clients that are left out.
        """
        problems: list[ValueError] = []
        for client in clients:
            try:
                if client.client_id not in self._keys:
                    self._open_accounts([client])
                elif self._keys[client.client_id] != client.key_hash:
                    raise AccountError("it comes with another key than at its first round")
            except ValueError as problem:  # a filter's, or the ledger's
                if isinstance(problem, LedgerError) and not isinstance(problem, AccountError):
                    raise  # an outage concerns everybody
                log.warning("Client %s is left out: %s", client.client_id, problem)
                self.left_out.add(client.client_id)
                problems.append(problem)
        return problems

    def _open_accounts(self, clients: Iterable[EnrolledClient]) -> None:
        """Open the clients' accounts, each bound to the key of its client and raised to what its guard holds."""
        clients = list(clients)
        self._keys |= {client.client_id: client.key_hash for client in clients}
        self._ledger.bind_keys({client.client_id: client.key_hash for client in clients if client.public_key})
        plan, own = self._plan, [client for client in clients if client.client_id in self._plan.client_terms]
        datasets = {client.client_id: dataset_id(plan.task, client.client_id) for client in clients}
        sizes = {client.client_id: client.shard_size for client in clients}
        added = self._accountant.enrol(
            datasets,
            plan.events(sizes),  # refuses a budget that no noise meets before the ledger knows it
            {client.client_id: client.claims for client in clients if client.claims},
            {client.client_id: plan.budget(client.client_id) for client in own},
        )
        if added and plan.noise_by_rate:  # their past is longer than it was when their noise was found
            budgets = {client.client_id: plan.budget(client.client_id) for client in own if client.client_id in added}
            again = plan.events({client_id: sizes[client_id] for client_id in added})
            self._accountant.enrol({client_id: datasets[client_id] for client_id in added}, again, None, budgets)
        more = "Client %s says that it spent %d steps more than the ledger held; they are charged now."
        for client_id, steps in added.items():
            log.warning(more, client_id, steps)

    @abstractmethod
    def _grant(self, client: EnrolledClient, attempt: Attempt, steps: int, charged: str) -> Granted:
        """Return the grant that lets a client spend `steps`, with the history that the ledger has charged to it."""

    @property
    def _server_key(self) -> str:
        """The public key that clients of a deployment hold grants against; empty in a simulation."""
        return signing.server_public_key(self._signing_key) if self._deployed and self._signing_key else ""

    def _sign(self, grant: Granted) -> Granted:
        return grant.sign(self._signing_key) if self._deployed and self._signing_key else grant


class RunAccounts(Accounts[Grant]):
    """The books of a run that trains."""

    def clipping_norm(self, client_id: str) -> float:
        """The clipping norm with which a client's next round begins."""
        return self.clipping_norms.get(client_id, self._plan.config.clipping_norm)

    def expected_batch_size(self, client: EnrolledClient) -> float:
        """The public divisor of a client's noisy sums."""
        size = self._plan.shard_size(client.shard_size, client.answered)
        return self.event(client.client_id).sampling_rate * size

    def order(self, client: EnrolledClient, part: int, steps: int) -> Order:
        """The training order of a simulated client: the part of the split that it holds, and its granted steps."""
        return Order(
            client_id=client.client_id,
            part=part,
            mechanism=SampledGaussianSum(self.event(client.client_id), self.clipping_norm(client.client_id)),
            expected_batch_size=self.expected_batch_size(client),
            steps=steps,
            weight=self.weight(client),
        )

    def weight(self, client: EnrolledClient) -> float:
        """The weight of a client's update in the average: public."""
        return self._plan.weight(client.shard_size, client.answered, self.event(client.client_id))

    def _grant(self, client: EnrolledClient, attempt: Attempt, steps: int, charged: str) -> Grant:
        event, config, norm = self.event(client.client_id), self._plan.config, self.clipping_norm(client.client_id)
        return self._sign(
            Grant(
                **spending(attempt, client.client_id, steps, event, unit=str(self._plan.unit), clipping_norm=norm),
                clipping=config.clipping,
                expected_batch_size=self.expected_batch_size(client),
                optimizer=config.optimizer,
                learning_rate=config.learning_rate_in(attempt.round),
                momentum=config.momentum,
                weight_decay=config.weight_decay,
                algorithm=text_of(config.algorithm_in(attempt.round)),
                augmentation_multiplicity=config.augmentation_multiplicity,
                local_evaluation=steps > config.local_steps,  # a budget's last steps train
                earlier_runs=self.earlier_runs,
                charged=charged,
                server_key=self._server_key,
            )
        )
