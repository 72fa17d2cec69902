"""The books of one run: who has an account, what is granted, what receipts say, and when that is signed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedprivacy._support import signing
from fedprivacy._support.durable import write_durably
from fedprivacy._support.failpoints import reach
from fedprivacy.flower.server.registry import ClientRegistry, EnrolledClient
from fedprivacy.flower.server.replies import RoundOutcome, Unusable, checked_receipt, evidence
from fedprivacy.flower.wire.histories import history_text
from fedprivacy.flower.wire.messages import GRANT, Grant
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.ledger.errors import AccountError
from fedprivacy.ledger.heads import SignedHead, check_ancestor, sign_head
from fedprivacy.ledger.verify import read_witness
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.plan import RunPlan
from fedprivacy.tasks.identity import dataset_id
from fedprivacy.values.spent import ClientSpent

log = logging.getLogger("fedprivacy.server")

WITNESS = "ledger-checkpoint.json"
"""The newest signed head of the ledger, in the run's folder: away from the ledger, it bears witness to it."""


class RunAccounts:
    """Opens accounts for clients, grants against them, and settles what was granted.

    Formal guarantee: see `fedprivacy.runs.accountant`.

    Args:
        plan: the run's public numbers.
        run_id: unique in the ledger.
        registry: who is behind a node.
        earlier_runs: of a run that goes on: what it was when it began. None: a new run.
        folder: of the run, for the newest signed head of the ledger; None: it is kept nowhere else.

    Attributes:
        left_out: clients that are not asked any more.
        clipping_norms: where adaptive clipping has arrived, by client_id.
        earlier_runs: runs that the ledger held before this one.
        attempt: at the present round.
        handed_out_again: whether this attempt was granted before, by a run that was stopped since.
        ledger_url: where charges are written; set by `open`.
    """

    def __init__(
        self, plan: RunPlan, run_id: str, registry: ClientRegistry, earlier_runs: int | None, folder: Path | None
    ) -> None:
        self.left_out: set[str] = set()
        self.clipping_norms: dict[str, float] = {}
        self.earlier_runs = earlier_runs or 0
        self.attempt = 1
        self._plan = plan
        self._run_id = run_id
        self._registry = registry
        self._folder = folder
        self._witness: SignedHead | None = None
        self._resumed = earlier_runs is not None
        self.handed_out_again = False
        self.ledger_url = ""
        self._open_charges: dict[tuple[int, int], set[str]] = {}
        self._keys: dict[str, str] = {}
        self._deployed: bool  # these four are set by `open`, when it is known who the clients are
        self._signing_key: Ed25519PrivateKey | None
        self._ledger: Ledger
        self._accountant: CentralAccountant

    def open(self, grid: Grid) -> None:
        """Open the ledger, and the accounts of the clients that are there: their identities say whether it is real.

        Raises:
            LedgerError: the ledger contradicts this run, or cannot be used.
            MechanismChanged: every client, or a simulated one, was charged for another mechanism than its filter takes.
            SigningKeyError: the signing key cannot be used.
        """
        online, config = list(self._registry.online(grid).values()), self._plan.config
        self._deployed = any(client.public_key for client in online)
        signs = self._deployed or config.signing_key
        self._signing_key = signing.server_key(config.signing_key_file) if signs else None
        self.ledger_url = config.ledger_url(deployed=self._deployed)
        self._ledger = Ledger(self.ledger_url)
        if self._resumed:
            self._ledger.resume_run(self._run_id)
            self._check_witness()
        else:
            task, partition = self._plan.task, self._partition(online)
            self.earlier_runs = self._ledger.open_run(self._run_id, task.dataset, partition)
        reach("server.run-opened")
        relation = self._plan.relation
        self._accountant = CentralAccountant(self._ledger, self._run_id, relation, config.budget, config.filter)
        if not self._deployed:
            self._open_accounts(online)
        elif (problems := self._admit(online)) and self.left_out >= self._keys.keys():
            raise problems[0]
        if self._resumed:
            self._open_charges = self._accountant.unreconciled()

    def admit_late(self, grid: Grid) -> None:
        """Open accounts for clients that have come since the last round; whoever cannot have one stays out, alone."""
        self._registry.enrol_new(grid)
        self._admit(self._registry.online(grid).values())

    def spent(self) -> dict[str, ClientSpent]:
        """Every enrolled client's privacy loss, by client_id."""
        return self._accountant.spent()

    @property
    def unreconciled(self) -> tuple[str, ...]:
        """Clients with a charge of this run that no receipt has confirmed, sorted."""
        return tuple(sorted(set().union(*self._open_charges.values())))

    def begin(self, server_round: int, attempt: int = 1) -> None:
        """Begin an attempt at a round.

        The first round of a run that goes on may have been charged before the run was stopped. What it granted then is
        handed out again: a deployed client answers it from what it sealed, and a seeded one draws the same noise, so
        that nothing new is released. A simulated client whose noise is secret trains anew, and is charged anew.
        """
        self.attempt, self.handed_out_again = attempt, False
        if not self._resumed:
            return
        self._resumed = False
        last = self._ledger.last_attempt(self._run_id, server_round)
        self.handed_out_again = last > 0 and (self._deployed or self._plan.config.seed is not None)
        self.attempt = last if self.handed_out_again else last + 1

    def open_to(self, server_round: int) -> set[str]:
        """Clients that may be asked in a round: with budget left, or charged for it already."""
        with_budget = {client_id for client_id, client in self.spent().items() if not client.exhausted}
        charged = self._accountant.charged(server_round, self.attempt) if self.handed_out_again else set()
        return (with_budget | charged) - self.left_out

    def grant(self, server_round: int, clients: Mapping[int, EnrolledClient]) -> dict[int, Grant]:
        """Reserve what clients may spend in a round, before any message leaves.

        Args:
            server_round: the round.
            clients: whom the strategy wants to ask, by node id.

        Returns:
            What each may spend, by node id. Exhausted clients are missing.
        """
        wanted = dict.fromkeys((client.client_id for client in clients.values()), self._plan.config.local_steps)
        granted = self._accountant.grant(server_round, wanted, attempt=self.attempt, resumed=self.handed_out_again)
        self._open_charges[server_round, self.attempt] = set(granted)
        reach("server.reserved")
        charged = self._accountant.histories(granted) if self._deployed else {}
        texts = {client_id: history_text(history) for client_id, history in charged.items()}
        return {
            node_id: self._signed(self._grant(c, server_round, granted[c.client_id], texts.get(c.client_id, "")))
            for node_id, c in clients.items()
            if c.client_id in granted
        }

    def settle(self, server_round: int, outcome: RoundOutcome) -> None:
        """Commit what receipts confirm, return what was refused untouched."""
        self._accountant.commit(server_round, outcome.spent, attempt=self.attempt)
        self._accountant.void(server_round, outcome.untouched, attempt=self.attempt)
        self._close_charges(server_round, self.attempt, {*outcome.spent, *outcome.untouched})
        self.left_out.update(outcome.exhausted)
        if self._plan.config.clipping == "adaptive":
            self.clipping_norms |= outcome.clipping_norms
        reach("server.settled")

    def settle_late(self, asked: Message, reply: Message) -> None:
        """Commit a charge whose receipt comes after its round; the update is too old to be averaged."""
        record = asked.content.get(GRANT)
        if reply.has_error() or not isinstance(record, ConfigRecord):
            return
        grant, key = Grant.from_record(record), self._registry[asked.metadata.dst_node_id].public_key or None
        try:
            receipt = checked_receipt(reply, grant, key)
        except Unusable as problem:
            log.warning("Client %s answered round %d too late: %s.", grant.client_id, grant.round, problem)
            return
        self._accountant.commit(grant.round, {grant.client_id: evidence(receipt, key)}, attempt=grant.attempt)
        self._close_charges(grant.round, grant.attempt, {grant.client_id})
        log.warning("Client %s answered round %d too late; its charge is confirmed.", grant.client_id, grant.round)

    def _close_charges(self, server_round: int, attempt: int, client_ids: set[str]) -> None:
        """A receipt has come for these charges, or they were returned."""
        still_open = self._open_charges.get((server_round, attempt), set()) - client_ids
        self._open_charges[server_round, attempt] = still_open
        if not still_open:
            del self._open_charges[server_round, attempt]

    def sign(self) -> None:
        """Sign where the ledger's journal ends, and leave a copy in the run's folder, if the run has a signing key.

        Raises:
            LedgerError: the ledger no longer holds what was signed after the last round.
        """
        if self._signing_key is None:
            return
        self._witness = sign_head(self._ledger, self._signing_key, self._witness)
        if self._witness is not None and self._folder is not None:
            text = json.dumps(self._witness._asdict()) + "\n"
            write_durably(self._folder / WITNESS, text.encode())

    def _check_witness(self) -> None:
        """A run that goes on does so on the ledger that it knew."""
        file = self._folder / WITNESS if self._folder else None
        if file is not None and file.exists():
            known = self._witness = read_witness(file)
            self._ledger.database.read(lambda connection: check_ancestor(connection, self._ledger.name, known))

    def _partition(self, clients: Iterable[EnrolledClient]) -> str:
        """The name of the split that the clients hold: every run on one ledger must have the same."""
        splits = {client.num_partitions for client in clients}
        named: Callable[[int], str] = self._plan.task.partition
        names = [f"{parts} clients: {named(parts)}" if parts else "own folders" for parts in sorted(splits)]
        if len(names) != 1:
            raise LedgerError(f"the clients hold parts of different splits ({'; '.join(names)}); start them alike.")
        return names[0]

    def _admit(self, clients: Iterable[EnrolledClient]) -> list[ValueError]:
        """Open accounts one by one: a client whose books do not go with this run must not keep the others from it.

        Returns:
            Why some are left out.
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
        added = self._accountant.enrol(
            {client.client_id: dataset_id(self._plan.task, client.client_id) for client in clients},
            {client.client_id: self._plan.event(client.shard_size) for client in clients},
            {client.client_id: client.claims for client in clients if client.claims},
        )
        for client_id, steps in added.items():
            log.warning(
                "Client %s says that it spent %d steps more than the ledger held; they are charged now.",
                client_id,
                steps,
            )

    def _grant(self, client: EnrolledClient, server_round: int, steps: int, charged: str) -> Grant:
        event, config = self._accountant.event(client.client_id), self._plan.config
        return Grant(
            run_id=self._run_id,
            client_id=client.client_id,
            round=server_round,
            attempt=self.attempt,
            steps=steps,
            sampling_rate=event.sampling_rate,
            noise_multiplier=event.noise_multiplier,
            relation=event.relation,
            clipping_norm=self.clipping_norms.get(client.client_id, config.clipping_norm),
            clipping=config.clipping,
            expected_batch_size=event.sampling_rate * self._plan.shard_size(client.shard_size),
            optimizer=config.optimizer,
            learning_rate=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            earlier_runs=self.earlier_runs,
            charged=charged,
            server_key=signing.server_public_key(self._signing_key) if self._signing_key and self._deployed else "",
            signature="",
        )

    def _signed(self, grant: Grant) -> Grant:
        if self._signing_key is None or not self._deployed:
            return grant
        return replace(grant, signature=signing.sign(self._signing_key, signing.GRANT, grant.signed_bytes()))
