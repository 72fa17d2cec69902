"""The ledger: the durable account of every dataset's charges, over all runs."""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Self

from sqlalchemy import Connection, func, insert, select, update

from fedprivacy._support.failpoints import reach
from fedprivacy._support.software import software
from fedprivacy.ledger import charges, journal, kept_answers
from fedprivacy.ledger.charges import Account, Allowed
from fedprivacy.ledger.database import PATIENCE, Database, database_file
from fedprivacy.ledger.errors import AccountError, LedgerError, no_dataset
from fedprivacy.ledger.kept_answers import Answer, AskedQuestion, StoredAnswer
from fedprivacy.ledger.replay import Evidence
from fedprivacy.ledger.schema import ChargeState, budgets, keys, runs
from fedprivacy.ledger.schema import charges as charge_table
from fedprivacy.ledger.schema import journal as journal_table
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.events import Claims, PoissonSampledGaussian
from fedprivacy.values.unit import RECORD, Unit


class Ledger:
    """Charges by (dataset_id, run_id, round, attempt), in an SQL database.

    Every method that writes is one transaction with exclusive access, so two runs that charge the same dataset cannot
    both read the same balance. Each appends an entry to the journal (`fedprivacy.ledger.journal`), and updates the
    tables for queries (`fedprivacy.ledger.charges`).

    >>> ledger = Ledger("sqlite:///ledger.db")
    >>> ledger.open_run("spring", "digits", "ten hospitals")
    0
    >>> terms = Allowance(PrivacyBudget(epsilon=3.0, delta=1e-5), filter="adaptive")
    >>> ledger.open_budgets({"digits/hospital-0": terms})["digits/hospital-0"].budget.epsilon
    3.0
    >>> step = PoissonSampledGaussian(sampling_rate=0.1, noise_multiplier=1.2)
    >>> ledger.reserve(Attempt("spring", round=1), step, {"digits/hospital-0": 5}, lambda *_: 3)  # which are left
    {'digits/hospital-0': 3}
    >>> ledger.accounts(["digits/hospital-0"])["digits/hospital-0"].history[step]
    3

    Guarantee: a charge that `reserve` has returned is on the disk, and counts until a settlement voids it; crashes and
    retries neither lose it nor count it twice.

    Args:
        url: `sqlite:///path/to/ledger.db` or `postgresql+psycopg://user@host/name`.
        patience: seconds to wait for a database that is locked, full or unreachable.
        create: whether tables may be created.

    Raises:
        LedgerError: the URL or place is invalid, the ledger is of another revision, or there is none.
    """

    def __init__(self, url: str, patience: float = PATIENCE, *, create: bool = True) -> None:
        self.url = url
        self.database = Database(url, patience, create=create)
        self.name = self.database.name

    @staticmethod
    def exists(url: str) -> bool:
        """Return whether there is a ledger at `url` already; for a PostgreSQL database, whether it is named."""
        return bool(url) and ((file := database_file(url)) is None or file.is_file())

    def open_run(self, run_id: str, dataset: str, partition: str, unit: Unit = RECORD) -> int:
        """Enter a run.

        Returns:
            Number of earlier runs on the same records.

        Raises:
            LedgerError: an earlier run split the same records in another way, or had another unit of privacy, so that
                one record would count in two datasets, or as two things, and neither account would show its whole loss;
                or the balances contradict the charges.
        """
        running = software()  # before the ledger is locked: reading all files takes a while

        def work(connection: Connection, _: bool) -> int:
            self._check_balances(connection)
            same_records = runs.c.dataset == dataset, runs.c.run_id != run_id
            otherwise = select(runs.c.partition).where(*same_records, runs.c.partition != partition)
            if (other := connection.scalars(otherwise).first()) is not None:
                raise LedgerError(
                    f"ledger {self.name} holds runs on {dataset} split as '{other}', and this run splits them as "
                    f"'{partition}': a record's loss could no longer be added up. Name the split in the task's "
                    "partition(), the same in every run. Use another ledger for another split."
                )
            self._check_unit(connection, dataset, run_id, unit)
            entry = connection.scalar(select(runs.c.entry).where(runs.c.run_id == run_id))
            if entry is None:
                facts = {"run_id": run_id, "dataset": dataset, "partition": partition, "unit": str(unit)}
                entry = journal.append(connection, "run", **facts, software=running)
                connection.execute(insert(runs).values(**facts, entry=entry))
            earlier = select(func.count()).select_from(runs).where(*same_records, runs.c.entry < entry)
            return int(connection.scalar(earlier) or 0)

        return self.database.write(work)

    def resume_run(self, run_id: str, unit: Unit = RECORD) -> None:
        """Resume a run that was entered before.

        Raises:
            LedgerError: the ledger does not hold the run, or with another unit of privacy; or its balances contradict
                its charges.
        """

        def work(connection: Connection) -> None:
            self._check_balances(connection)
            before = connection.scalar(select(runs.c.unit).where(runs.c.run_id == run_id))
            if before is None:
                raise LedgerError(
                    f"ledger {self.name} does not hold run {run_id}, so it is not the one that the run charged; name "
                    "that one, or start anew."
                )
            if before != str(unit):
                raise self._other_unit(f"run {run_id}", before, unit)

        self.database.read(work)

    def check_unit(self, dataset: str, run_id: str, unit: Unit) -> None:
        """Check that no other run on the same records had another unit of privacy, before one is planned.

        Raises:
            LedgerError: one had.
        """
        self.database.read(lambda connection: self._check_unit(connection, dataset, run_id, unit))

    def _check_unit(self, connection: Connection, dataset: str, run_id: str, unit: Unit) -> None:
        others = runs.c.dataset == dataset, runs.c.run_id != run_id, runs.c.unit != str(unit)
        if (other := connection.scalars(select(runs.c.unit).where(*others)).first()) is not None:
            raise self._other_unit(f"runs on {dataset}", other, unit)

    def _other_unit(self, held: str, before: str, unit: Unit) -> LedgerError:
        return LedgerError(
            f"ledger {self.name} holds {held} with the unit of privacy '{before}', and this run's is '{unit}': their "
            "losses are not of one thing, and do not add up. Give the task that unit; or use another ledger, or "
            "another dataset name."
        )

    def _check_balances(self, connection: Connection) -> None:
        if not charges.check_balances(connection):
            raise LedgerError(
                f"ledger {self.name} was damaged: its balances contradict its charges, so that no grant could be "
                "decided. 'fedprivacy ledger verify' says where."
            )

    def bind_keys(self, key_hashes: Mapping[str, str]) -> None:
        """Bind clients to the keys with which they first connected.

        Raises:
            AccountError: a known client has another key; or a key is or was another client's: an account would pass to
                another client, or start again at zero.
        """

        def work(connection: Connection, _: bool) -> None:
            known = {row.client_id: row.key_hash for row in connection.execute(select(keys))}
            owners = journal.key_owners(connection) if key_hashes.keys() - known.keys() else {}
            for client_id, key_hash in key_hashes.items():
                self._check_key(client_id, key_hash, known, owners)
                if client_id not in known:
                    journal.append(connection, "key", client_id=client_id, key_hash=key_hash)
                    connection.execute(insert(keys).values(client_id=client_id, key_hash=key_hash))
                    known[client_id], owners[key_hash] = key_hash, client_id

        if key_hashes:
            self.database.write(work)

    def _check_key(self, client_id: str, key_hash: str, known: Mapping[str, str], owners: Mapping[str, str]) -> None:
        if known.get(client_id, key_hash) != key_hash:
            raise AccountError(
                f"client {client_id} comes with another key than ledger {self.name} knows: somebody may have taken its "
                f"name. If it renewed its key: 'fedprivacy ledger rebind {client_id} KEY.pub'."
            )
        if owners.get(key_hash, client_id) != client_id:
            raise AccountError(
                f"client {client_id} comes with a key of {owners[key_hash]}, so its records have an account already. "
                f"Register it under that name; if {owners[key_hash]} replaced that key, somebody may have stolen it."
            )

    def rebind_key(self, client_id: str, key_hash: str) -> None:
        """Continue a client's account under a new key. A key that was replaced is never bound again.

        Raises:
            LedgerError: the ledger does not know the client, the key is or was another client's, or the client replaced
                it before.
        """

        def work(connection: Connection, _: bool) -> None:
            owner = journal.key_owners(connection).get(key_hash)
            if owner not in (None, client_id):
                raise LedgerError(f"that key is or was {owner}'s in ledger {self.name}; give '{client_id}' its own.")
            present = connection.scalar(select(keys.c.key_hash).where(keys.c.client_id == client_id))
            if owner == client_id and present != key_hash:
                raise LedgerError(
                    f"'{client_id}' replaced that key before, in ledger {self.name}, and somebody else may hold it; "
                    "let it make a new one."
                )
            statement = update(keys).where(keys.c.client_id == client_id).values(key_hash=key_hash)
            if connection.execute(statement).rowcount == 0:
                raise LedgerError(
                    f"ledger {self.name} knows no client '{client_id}'; name one that took part in a run."
                )
            journal.append(connection, "key", client_id=client_id, key_hash=key_hash)

        self.database.write(work)

    def open_budgets(self, allowances: Mapping[str, Allowance]) -> dict[str, Allowance]:
        """Enter each dataset's budget, once for all runs.

        Returns:
            The budgets in force: one that was set by an explicit act overrides the requested one.

        Raises:
            AccountError: a dataset already has another budget or filter from an earlier run.
        """

        def work(connection: Connection, _: bool) -> dict[str, Allowance]:
            known = charges.allowances_of(connection, allowances.keys())
            for dataset_id, allowance in known.items():
                if not allowance.deliberate and allowance != allowances[dataset_id]:
                    raise AccountError(
                        f"ledger {self.name} gives dataset {dataset_id} a budget of {_words(allowance)}, and this run "
                        f"asks for {_words(allowances[dataset_id])}: a budget belongs to the dataset, over all runs. "
                        "Use the ledger's budget, change it by 'fedprivacy ledger budget set', or use another ledger."
                    )
            new = {dataset_id: a for dataset_id, a in allowances.items() if dataset_id not in known}
            if new:
                journal.append(connection, "budget", budgets={d: charges.budget_fields(a) for d, a in new.items()})
                connection.execute(insert(budgets), [charges.budget_row(d, a) for d, a in new.items()])
            return {**allowances, **known}

        return self.database.write(work)

    def set_budget(
        self, dataset_id: str, budget: PrivacyBudget, expires: datetime.datetime | None, reason: str, by: str = ""
    ) -> None:
        """Change a dataset's budget by an explicit act. Earlier charges remain: privacy loss does not expire.

        Args:
            dataset_id: the dataset.
            budget: budget over all runs, past ones included.
            expires: time from which nothing is granted; None: never.
            reason: reason, for readers of the journal.
            by: who changes it, for them, too; empty: nobody says.

        Raises:
            LedgerError: the ledger does not know the dataset.
            ValueError: the reason is empty.
        """
        if not reason.strip():
            raise ValueError("the reason is empty; say why the budget changes, for readers of the ledger.")

        def work(connection: Connection, _: bool) -> None:
            known = self._allowance(connection, dataset_id)
            allowance = Allowance(budget, known.filter, charges.in_utc(expires), deliberate=True)
            said = {"reason": reason} | ({"by": by} if by else {})
            journal.append(connection, "budget", budgets={dataset_id: charges.budget_fields(allowance)}, **said)
            changed = charges.budget_row(dataset_id, allowance)
            connection.execute(update(budgets).where(budgets.c.dataset_id == dataset_id).values(changed))

        self.database.write(work)

    def _allowance(self, connection: Connection, dataset_id: str) -> Allowance:
        known = charges.allowances_of(connection, [dataset_id])
        if dataset_id in known:
            return known[dataset_id]
        raise no_dataset(self.name, dataset_id, ())

    def accounts(self, dataset_ids: Collection[str]) -> dict[str, Account]:
        """Read each dataset's account over all runs."""
        return self.database.read(lambda connection: charges.accounts_of(connection, dataset_ids))

    def accounts_in_run(self, run_id: str, dataset_ids: Collection[str]) -> dict[str, Account]:
        """Read each dataset's account in one run."""
        return self.database.read(lambda connection: charges.accounts_in_run(connection, run_id, dataset_ids))

    def allowances(self, dataset_ids: Collection[str]) -> dict[str, Allowance]:
        """Read the budgets in force."""
        return self.database.read(lambda connection: charges.allowances_of(connection, dataset_ids))

    def units(self, dataset_ids: Collection[str]) -> dict[str, str]:
        """Read each dataset's unit of privacy; datasets that no run of this ledger has charged are missing."""
        return self.database.read(lambda connection: charges.units_of(connection, dataset_ids))

    def read_changed(self, known: Set[str], since: journal.Head, unread: Set[str]) -> charges.ChangedAccounts:
        """Read the accounts and budgets of those datasets that were written about since another reading.

        Args:
            known: datasets of interest.
            since: `head` of the other reading; if the journal does not hold it, all datasets are read.
            unread: datasets among them that are read in any case.
        """
        return self.database.read(lambda connection: charges.read_changed(connection, known, since, unread))

    def dataset_ids(self) -> list[str]:
        """List every dataset that has a budget, sorted."""
        every = select(budgets.c.dataset_id).order_by(budgets.c.dataset_id)
        return self.database.read(lambda connection: list(connection.scalars(every)))

    def steps_raised(self, since: datetime.datetime) -> dict[str, int]:
        """Sum the steps by which clients' guards raised the ledger since a moment, by dataset; others are missing."""
        own = select(charge_table.c.dataset_id, charge_table.c.steps, journal_table.c.entry)
        own = own.join_from(charge_table, journal_table).where(charge_table.c.round == 0)

        def work(connection: Connection) -> dict[str, int]:
            added: dict[str, int] = {}
            for dataset_id, steps, entry in connection.execute(own):
                if datetime.datetime.fromisoformat(json.loads(entry)["at"]) >= since:
                    added[dataset_id] = added.get(dataset_id, 0) + steps
            return added

        return self.database.read(work)

    def reserve(
        self,
        attempt: Attempt,
        event: PoissonSampledGaussian | Mapping[str, PoissonSampledGaussian],
        wanted: Mapping[str, int],
        allowed: Allowed,
        *,
        resumed: bool = False,
    ) -> dict[str, int]:
        """Charge steps before they are executed.

        Args:
            attempt: attempt that the steps are for.
            event: event of each step: one for all datasets, or one by dataset.
            wanted: wanted numbers of steps by dataset.
            allowed: function that returns how many more steps a budget allows.
            resumed: whether the run may have charged this attempt before it was stopped. Its charges are then returned
                again, and not charged again; a dataset that was charged for another event gets nothing.

        Returns:
            Reserved steps by dataset: the smaller of wanted and allowed; datasets with nothing left are missing.

        Raises:
            LedgerError: this attempt was charged before, or the database cannot be used.
        """
        events = dict.fromkeys(wanted, event) if isinstance(event, PoissonSampledGaussian) else event

        def work(connection: Connection, again: bool) -> dict[str, int]:
            before = charges.charged_steps(connection, attempt, {d: events[d] for d in wanted})
            if before and not (resumed or again):
                raise LedgerError(f"ledger {self.name}: this round of this run was charged before; nothing was added.")
            fresh = {dataset_id: steps for dataset_id, steps in wanted.items() if dataset_id not in before}
            granted = charges.within_budget(connection, fresh, allowed)
            if granted:
                charges.charge(connection, attempt, {d: (events[d], steps) for d, steps in granted.items()})
            return {dataset_id: steps for dataset_id, steps in (before | granted).items() if steps}

        reach("ledger.before-reserve")
        return self.database.write(work)

    def settle(
        self, attempt: Attempt, receipts: Mapping[str, Evidence | None] | Collection[str], state: ChargeState
    ) -> None:
        """Record the outcome of an attempt's charges.

        A reserved charge becomes `state`. A void one becomes committed if its receipt arrives after all. Charges in any
        other state do not change, so that repeated calls have no effect.

        Args:
            attempt: attempt that was charged.
            receipts: dataset_ids, each with the signed receipt of its client, if there is one.
            state: COMMITTED or VOID.
        """
        evidence = receipts if isinstance(receipts, Mapping) else dict.fromkeys(receipts)
        reach("ledger.before-settle")
        if evidence:
            self.database.write(lambda connection, _: charges.settle_charges(connection, attempt, evidence, state))

    def keep_answers(self, attempt: Attempt, given: Iterable[Answer]) -> None:
        """Store clients' answers to an attempt's questions, all of them or none.

        Repeated calls have no effect. Call it after `settle`: only answers that a receipt has confirmed are stored, and
        such a charge is never voided. A server that died between the two calls both again.

        Args:
            attempt: attempt that the questions were charged for.
            given: answers of any datasets to any of these questions.

        Raises:
            LedgerError: a dataset has no committed charge for the attempt, has given another answer before, or an
                answer is invalid.
        """
        each = list(given)
        reach("ledger.before-keep")
        if each:
            self.database.write(lambda connection, _: kept_answers.keep(connection, attempt, each))
        reach("ledger.answers-kept")

    def answers(self, question: str, dataset_ids: Collection[str]) -> dict[str, list[StoredAnswer]]:
        """Read every answer of datasets to a question, over all runs, newest last; datasets without one are missing.

        Args:
            question: canonical JSON, as it was stored.
            dataset_ids: the datasets.

        Raises:
            LedgerError: an answer contradicts the journal: it was changed in the database.
        """
        return self.database.read(lambda connection: kept_answers.answers_to(connection, question, dataset_ids))

    def asked(self, dataset_id: str = "") -> list[AskedQuestion]:
        """List every question that was charged and that anybody has answered, newest last.

        Args:
            dataset_id: dataset that was charged; empty: any.
        """
        return self.database.read(lambda connection: kept_answers.asked_questions(connection, dataset_id))

    def reconcile(self, dataset_id: str, claims: Claims) -> int:
        """Charge the steps that a client claims beyond the ledger's count: the larger of both figures counts.

        Afterwards the ledger holds at least as many steps of each run as are claimed, and of each event over all runs,
        those of no named run included. Claiming again has no effect.

        Returns:
            Number of added steps.

        Raises:
            AccountError: the claim exceeds the limit of an account, or has another neighbouring relation. Nothing is
                added.
            LedgerError: the ledger does not know the dataset.
        """

        def work(connection: Connection, _: bool) -> int:
            self._allowance(connection, dataset_id)
            added = 0
            held_of = charges.held_of(connection, dataset_id, claims)
            for (run_id, event), held in sorted(held_of.items(), key=str):
                if (claimed := claims[run_id, event]) > held:
                    charges.charge_difference(connection, dataset_id, run_id, event, claimed=claimed, held=held)
                    added += claimed - held
            if added:
                history = charges.accounts_of(connection, [dataset_id])[dataset_id].history
                if sum(history.values()) > charges.MOST_STEPS or len({event.relation for event in history}) > 1:
                    raise AccountError(
                        f"the client of dataset {dataset_id} claims steps that do not go with what ledger {self.name} "
                        f"holds: no account has more than {charges.MOST_STEPS} of them, or two neighbouring "
                        "relations. Look at its guard: 'fedprivacy guard show'."
                    )
            return added

        return self.database.write(work) if claims else 0

    def last_attempt(self, run_id: str, round: int) -> Attempt | None:
        """Return the last attempt at a round of a run; None: there was none."""
        mine = select(func.max(charge_table.c.attempt)).where(
            charge_table.c.run_id == run_id, charge_table.c.round == round
        )
        last = self.database.read(lambda connection: connection.scalar(mine))
        return Attempt(run_id, round, last) if last else None

    def charged(self, attempt: Attempt) -> set[str]:
        """Return the datasets that an attempt was charged to, unless the charge is void."""
        counts = *charges.charged_for(attempt), charge_table.c.state != ChargeState.VOID
        counted = select(charge_table.c.dataset_id).where(*counts)
        return self.database.read(lambda connection: set(connection.scalars(counted)))

    def reserved(self, run_id: str) -> dict[Attempt, set[str]]:
        """Return the datasets with a charge of a run that no receipt has confirmed, by attempt."""
        mine = charge_table.c.run_id == run_id, charge_table.c.state == ChargeState.RESERVED
        wanted = select(*(charge_table.c[name] for name in (*Attempt._fields, "dataset_id"))).where(*mine)

        def work(connection: Connection) -> dict[Attempt, set[str]]:
            found: dict[Attempt, set[str]] = {}
            for *attempt, dataset_id in connection.execute(wanted):
                found.setdefault(Attempt(*attempt), set()).add(dataset_id)
            return found

        return self.database.read(work)

    def close(self) -> None:
        """Close every connection; `with Ledger(url) as ledger:` does at its end."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _words(a: Allowance) -> str:
    return f"epsilon {a.budget.epsilon:g}, delta {a.budget.delta:g}, filter {a.filter}"
