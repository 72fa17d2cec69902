"""The client's own guard: it charges first, then lets training run, and trusts no server.

Formal guarantee: whatever grants a server sends, over all runs, the updates that leave this client are
(epsilon, delta)-differentially private for the client's own budget, provided that the client trains what it charged,
once, that a trained step is what its event says, and that the data owner fixes the budget before anything is released.
The charge is on disk before a record is read; a crash afterwards leaves it standing. A file that may have lost a charge
to a fault allows nothing more, nor does an older copy in its place while the updates sealed since lie beside it. There
is one account for one file, whatever a server calls its task or the client, and all processes that use it share it.

If the owner also sets a budget for questions, the answers of all runs that ask are by themselves (epsilon_q,
delta_q)-differentially private for it, as an interaction with an adversary who chooses questions by earlier answers.
Questions may also depend on what training released; then the answers add no more than that, and all releases, answers
and updates together, stay within the whole budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from fedprivacy._support.durable import NO_ROOM, Room, free_bytes
from fedprivacy.accounting import DEFAULT_FILTER, FILTERS, UNLIMITED
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import executed_events
from fedprivacy.guard import log, seals
from fedprivacy.guard.errors import (
    AlreadyChargedError,
    BudgetExhaustedError,
    InvalidGrantError,
    LogError,
    LogWriteError,
    NoRoomError,
    QuestionsExhaustedError,
    SealError,
    old_guard_error,
)
from fedprivacy.guard.tally import (
    ChargeEntry,
    CorrectionEntry,
    RelationEntry,
    SealedEntry,
    Tally,
    TallyFile,
    Write,
    counts_as_question,
    fingerprint,
    now,
    renewals,
)
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.events import (
    UNNAMED,
    Event,
    History,
    NeighbouringRelation,
    PoissonSampledGaussian,
    is_unsampled_gaussian,
)
from fedprivacy.values.unit import RECORD, Unit

LONGEST_RUN_ID = 128
"""Maximum number of characters of a run's name; an entry with a longer one might not fit the log's slot."""

KEPT_UPDATES = 4
"""Number of sealed updates kept on the disk, over all runs: a server asks again for the newest, if for any. The one
with the newest charge is kept as well: see `fedprivacy.guard.seals`.
"""

_OLD_NAMES = ("odometer.db", "odometer.log")
"""Names of guards of older forms: beside one of them, no account begins at zero."""

_LARGEST_COUNT = 2**63 - 1
_NOTHING: Mapping[Event, int] = MappingProxyType({})


class Guard:
    """One client's account of its own shard.

    Formal guarantee: `charge` returns only if the whole history on file, with the charge, is one that the filter
    allows within the budget, and only after the charge is on the disk. Steps that were charged are never counted as
    fewer, by any process and after any crash; steps that a server's ledger counts beyond them are added.

    Args:
        file: the client's own file, on a disk that outlives the process; one for each shard. It is created if it does
            not exist, but only in an existing folder: a missing disk must not start a new account.
        budget: the data owner's budget over all runs. A changed one is the owner's own act: it is in force from the
            next charge on, and recorded with it.
        filter: name of the filter that enforces it; empty: that of the file's last charge, or `usual` before the first.
            Another one than before is refused: a filter keeps its promise for steps that it has counted from the first,
            and a change may depend on what those steps released.
        usual: see `filter`.
        unit: the unit of privacy that everything is charged for here. It is recorded before the first charge, and an
            account keeps it.

    Raises:
        ValueError: there is no such filter, or it cannot keep this budget.
        LogWriteError: the file cannot be created.
        LogDamagedError: the file is missing or an older copy, but updates that it sealed exist.
        LogError: the file is a guard of an older form, or one lies beside it; it has another name, too; or there are
            sealed updates, and it cannot be read.
    """

    def __init__(
        self, file: Path, budget: PrivacyBudget, filter: str = "", *, usual: str = DEFAULT_FILTER, unit: Unit = RECORD
    ) -> None:
        if filter and filter not in FILTERS:
            raise ValueError(f"filter is '{filter}'; choose one of {', '.join(FILTERS)}.")
        self._named_filter, self._usual_filter = filter, usual
        self._budget, self._unit = budget, unit
        FILTERS[filter or usual](budget)  # raises if it cannot keep the budget
        self._kept = TallyFile(file)
        self._file = file = self._kept.file
        sealed = sealed_beside(file)
        log.create(file)
        if sealed:
            with self._kept.transaction():
                pass  # finds an older copy in the file's place now; later calls do so again

    def charge(
        self,
        attempt: Attempt,
        event: PoissonSampledGaussian,
        steps: int,
        *,
        run_key: str = "",
        elsewhere: History = _NOTHING,
        of_questions: PrivacyBudget | None = None,
    ) -> None:
        """Record the charge durably, all of it or nothing.

        Args:
            attempt: attempt to charge; it can be charged once.
            event: mechanism of one local step.
            steps: number of local steps of the round, at least 1.
            run_key: key of the run's server, as any text. A run stays with the key of its first charge.
            elsewhere: this client's charges over all runs by the server's ledger, this grant included. If it counts
                more than this file, the larger figure counts from now on, even if the grant is refused. If it counts
                less, this is noted with the charge.
            of_questions: budget of all runs that ask, within the whole budget; None: all of it. The same filter keeps
                it, over all charges for such runs, with or without this argument, and over steps that a server's ledger
                counted beyond this file and that may have been questions. It does not limit runs that train.

        Raises:
            InvalidGrantError: a name is too long or not printable, a count is out of range, a question samples
                records, or the run was opened under another key. Nothing is written.
            AlreadyChargedError: this attempt was charged before. Nothing is written.
            BudgetExhaustedError: fewer than `steps` steps are left. Nothing is charged.
            QuestionsExhaustedError: fewer are left for questions, though not of the whole budget. Nothing is charged.
            MechanismChanged: the history holds another event and the filter cannot mix. Nothing is written.
            ValueError: `elsewhere` mixes neighbouring relations, which no filter composes. Nothing is written.
            LogError: the account is for another neighbouring relation or another unit of privacy, or another filter
                kept the earlier charges: nothing is written. Or the file is busy, damaged or not writable; then the
                text says whether anything may count.
        """
        _check_grant(attempt, event, steps, elsewhere)
        signer = fingerprint(run_key)
        limit = of_questions if attempt.asks else None
        while True:
            with self._kept.transaction():
                _check_new(self._kept.tally, attempt, signer)
                self._check_promise(event.relation)
                before = self._account()
            # A quota may take seconds, and other processes wait for the file only `log.PATIENCE` seconds.
            corrections = list(_corrections(before, attempt, event, steps, elsewhere))
            left = before.steps_left(event, corrections)
            may_be_asked = before.may_be_asked(event, corrections, limit) if limit else UNLIMITED
            with self._kept.transaction() as write:
                self._check_promise(event.relation)
                if len(self._kept.tally.entries) != before.entries:  # another process charged in the meantime
                    continue
                self._write_promise(write, event.relation, needed=self._unit != RECORD)
                for correction in corrections:  # corrections that no filter can compose were refused above
                    write(correction)
                if left < steps:
                    raise BudgetExhaustedError(
                        f"This client's own budget, epsilon {self._budget.epsilon} at delta {self._budget.delta} in "
                        f"{self._file}, allows {left} more steps of {event}, and the grant asks for {steps}. Grant "
                        "fewer; a larger budget is the data owner's decision alone, and weakens what was promised."
                    )
                if limit and may_be_asked < steps:
                    raise QuestionsExhaustedError(self._file, limit, event, may_be_asked, steps)
                beyond = before.beyond(event, steps, elsewhere)
                write(ChargeEntry(attempt, event, steps, signer, before.allowance, now(), beyond))
                return

    @contextmanager
    def room(self, size: int) -> Iterator[Room]:
        """Hold room on the disk for a charge, its sealed update and what is entered of both; call it before `charge`.

        Within, a charge can be sealed however full the disk gets, if its update has at most `size` bytes. The file
        system must be able to allocate ahead, see `fedprivacy._support.durable`.

        Raises:
            NoRoomError: there is no room. Nothing was charged.
            LogError: the file is busy, damaged or not writable.
        """
        with ExitStack() as held:
            with self._kept.transaction():
                try:
                    room = held.enter_context(seals.room_for(self._file, self._kept.identity, size))
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise LogWriteError(self._file, error, undone=True) from error
                    free = free_bytes(self._file.parent)
                    raise NoRoomError(self._file, size + seals.ENTRIES_ROOM, free) from error
            yield room

    def seal(self, attempt: Attempt, update: bytes, room: Room | None = None) -> None:
        """Store an update durably, so that it can be sent again after a crash; call it before the update leaves.

        Only the newest `KEPT_UPDATES` stay on the disk, and the one with the newest charge. Sealing the same update
        again has no effect.

        Args:
            attempt: attempt that was charged.
            update: what is about to leave.
            room: what `room` held for it; None: nothing, so that a full disk may refuse it.

        Raises:
            SealError: the attempt was not charged, or another update is sealed for it.
            LogWriteError: the disk refuses. The charge stands, and the update is not sealed.
            LogError: the file is busy or damaged.
        """
        digest = sha256(update).hexdigest()
        with self._kept.transaction() as write:
            tally = self._kept.tally
            if attempt not in tally.charges:
                raise SealError(f"{attempt} was not charged; charge it before training.")
            before = tally.sealed.get(attempt)
            if before is not None and before.sha256 != digest:
                raise SealError(f"{attempt} has another sealed update; send that one, or charge a new attempt.")
            if before is not None:
                return
            name = tally.names[attempt]
            file = self._kept.folder / name
            try:
                seals.write(file, update, room)
            except OSError as error:
                raise LogWriteError(file, error, undone=True) from error
            write(SealedEntry(attempt, name, digest, now()))
            newest = [kept.name for kept in islice(reversed(tally.sealed.values()), KEPT_UPDATES)]
            with suppress(OSError):  # an old update that cannot be deleted is harmless
                seals.keep_only(self._kept.folder, newest, tally.places)

    def sealed_update(self, attempt: Attempt, *, run_key: str = "") -> bytes | None:
        """Return the sealed update, to be sent again for free; None if there is none, or it is no longer whole.

        Args:
            attempt: attempt that was charged for it.
            run_key: key of the server that asks, as for `charge`: a server gets only its own runs' updates.

        Raises:
            InvalidGrantError: the run was opened under another key.
            LogError: the file is busy, damaged or not writable.
        """
        with self._kept.transaction():
            _check_run_key(self._kept.tally, attempt, fingerprint(run_key))
            entry = self._kept.tally.sealed.get(attempt)
        return None if entry is None else seals.read(self._kept.folder / entry.name, entry.sha256)

    def adopt_update(self, attempt: Attempt) -> bytes | None:
        """Return the update that was written, but not entered as sealed, and enter it; None: there is none.

        A crash came in between, or an older copy of the log was put back, and the update may have left.

        Raises:
            LogError: the file is busy, damaged or not writable, or the update cannot be read.
        """
        with self._kept.transaction() as write:
            tally = self._kept.tally
            if attempt not in tally.charges or attempt in tally.sealed:
                return None
            file = self._kept.folder / tally.names[attempt]
            try:
                update = file.read_bytes()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise LogWriteError(file, error, undone=True) from error
            write(SealedEntry(attempt, file.name, sha256(update).hexdigest(), now()))
        return update

    def history(self) -> dict[Event, int]:
        """Return the number of steps of each event over all runs, corrections included.

        Raises LogError as `sealed_update` does.
        """
        with self._kept.transaction():
            return dict(self._kept.tally.history)

    def check(self, relation: NeighbouringRelation) -> None:
        """Refuse an account that another filter, another relation or another unit was promised for; nothing is written.

        Raises:
            LogError: the next charge under this relation would be refused; or as `sealed_update` does.
        """
        with self._kept.transaction():
            self._allowance(self._kept.tally)
            self._check_promise(relation)

    def promise(self, relation: NeighbouringRelation) -> None:
        """Record durably the account's relation and unit, before a size is disclosed that only this relation allows.

        Raises:
            LogError: the account has another one already; or as `sealed_update` does.
        """
        with self._kept.transaction() as write:
            self._check_promise(relation)
            self._write_promise(write, relation)

    def by_run(self) -> dict[str, dict[Event, int]]:
        """Count the steps of each event by run; corrections, whose runs are not known, under `UNNAMED`.

        Raises LogError as `sealed_update` does.
        """
        with self._kept.transaction():
            entries = list(self._kept.tally.entries)
        runs: dict[str, dict[Event, int]] = {}
        for entry in entries:
            run = runs.setdefault(entry.attempt.run_id if isinstance(entry, ChargeEntry) else UNNAMED, {})
            run[entry.event] = run.get(entry.event, 0) + entry.steps
        return runs

    def charges(self) -> list[ChargeEntry]:
        """List every charge, in order, without corrections. Raises LogError as `sealed_update` does."""
        with self._kept.transaction():
            return list(self._kept.tally.charges.values())

    @property
    def renewals(self) -> int:
        """Number of former accounts that lie beside the file, see `fedprivacy.guard.tally`."""
        return renewals(self._file)

    def quota(self, event: PoissonSampledGaussian) -> int:
        """Return how many more steps of an event the budget allows.

        Raises:
            MechanismChanged: the history holds another event and the filter cannot mix.
            LogError: as `check` does.
        """
        return self._open_account(event.relation).steps_left(event, [])

    def noise_multiplier(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> float:
        """Return the smallest noise multiplier with which the budget allows `steps` more steps.

        Raises:
            ValueError: there is none.
            LogError: as `check` does.
        """
        account = self._open_account(relation)
        return filter_of(account.allowance).noise_multiplier(sampling_rate, steps, relation, account.history)

    def _open_account(self, relation: NeighbouringRelation) -> _Account:
        with self._kept.transaction():
            self._check_promise(relation)
            return self._account()

    def _allowance(self, tally: Tally) -> Allowance:
        """Return the budget and its filter. Raises LogError: another filter has kept it so far."""
        usual = self._named_filter or self._usual_filter
        last = tally.allowance.filter if tally.allowance else usual
        if self._named_filter not in ("", last):
            raise LogError(
                f"filter is '{self._named_filter}', and {self._file} has been kept by '{last}' so far: changed in the "
                f"middle, neither keeps its promise. Write filter = '{last}' again; {self._another_account}, whose "
                "epsilon and delta add to those of this one."
            )
        return Allowance(self._budget, last)

    def _check_promise(self, relation: NeighbouringRelation) -> None:
        tally = self._kept.tally
        if tally.relation not in (None, relation):
            raise LogError(
                f"{self._file} promises {tally.relation}, and what the task makes public is for {relation}: whether "
                "the number of records is public cannot change in the middle. Work on a task with the same "
                f"shard_sizes_public; {self._another_account}, whose epsilon and delta add to those of this one. A "
                "number that was public stays known: what both promise together is for the zero-out relation."
            )
        if tally.relation is not None and tally.unit != self._unit:
            raise LogError(
                f"{self._file} promises the unit of privacy '{tally.unit}', and the task's is '{self._unit}': what one "
                "of the two has spent says nothing of the other, and does not add up. Work on a task with the same "
                f"unit; {self._another_account}: it is then promised beside this one, and for those whom both "
                "protect, their epsilon and delta add."
            )

    @property
    def _another_account(self) -> str:
        return f"or begin another account, 'fedprivacy guard renew {self._file}'"

    def _write_promise(self, write: Write, relation: NeighbouringRelation, *, needed: bool = True) -> None:
        """Record the first promise of an account, if it is needed: charges alone promise a record."""
        if needed and self._kept.tally.relation is None:
            write(RelationEntry(relation, now(), self._unit))

    def _account(self) -> _Account:
        tally = self._kept.tally
        return _Account(len(tally.entries), dict(tally.history), dict(tally.asked), self._allowance(tally))


@dataclass(frozen=True, slots=True)
class _Account:
    """A snapshot of the tally in one transaction, by which a charge is decided."""

    entries: int
    history: Mapping[Event, int]
    asked: Mapping[Event, int]
    allowance: Allowance

    def beyond(self, event: Event, steps: int, elsewhere: History) -> int:
        """Return how many steps of this account a ledger lacks that states `elsewhere` with a grant."""
        stated = {
            charged: count - (steps if charged == event else 0) for charged, count in executed_events(elsewhere).items()
        }
        return sum(max(0, own - stated.get(charged, 0)) for charged, own in self.history.items()) if stated else 0

    def steps_left(self, event: Event, corrections: Sequence[CorrectionEntry]) -> int:
        """Return how many more steps of an event the budget allows, once the corrections count."""
        corrected = {correction.event: correction.server_steps for correction in corrections}
        return filter_of(self.allowance).quota({**self.history, **corrected}, event)

    def may_be_asked(self, event: Event, corrections: Sequence[CorrectionEntry], limit: PrivacyBudget) -> int:
        """Return how many more steps of an event the owner allows for questions, once the corrections count."""
        asked = dict(self.asked)
        for correction in filter(counts_as_question, corrections):
            asked[correction.event] = asked.get(correction.event, 0) + correction.steps
        return filter_of(replace(self.allowance, budget=limit)).quota(asked, event)


def _corrections(
    account: _Account, attempt: Attempt, event: Event, steps: int, elsewhere: History
) -> Iterator[CorrectionEntry]:
    """Reconcile two accounts by the larger figure: neither can have counted a step that was not paid for."""
    for charged, with_grant in executed_events(elsewhere).items():
        client_steps = account.history.get(charged, 0)
        server_steps = with_grant - (steps if charged == event else 0)
        if server_steps > client_steps:
            yield CorrectionEntry(attempt, charged, client_steps, server_steps, account.allowance, now())


def sealed_beside(file: Path) -> set[str]:
    """Return the names of the updates that a guard's file has sealed, if an account may continue, or begin, in this
    file.

    Raises:
        LogError: as `Guard` does.
    """
    file = file.resolve()
    for old in map(file.with_name, _OLD_NAMES):
        if old != file and (old.exists() or old.is_symlink()):
            raise old_guard_error(old)
    try:
        if file.exists():
            return set(seals.bearing_witness(file, log.identity_of(file)))
        seals.refuse_if_gone(file)
    except OSError as error:
        raise LogWriteError(file, error, undone=True) from error
    return set()


def names_a_run(run_id: str) -> bool:
    """Return whether a guard can hold a run by this name: 1 to `LONGEST_RUN_ID` characters, all of them printable."""
    return 0 < len(run_id) <= LONGEST_RUN_ID and run_id.isprintable()


def _check_grant(attempt: Attempt, event: Event, steps: int, elsewhere: History) -> None:
    if not names_a_run(attempt.run_id):
        raise InvalidGrantError(
            f"run_id has {len(attempt.run_id)} characters; choose 1 to {LONGEST_RUN_ID}, all of them printable."
        )
    if attempt.asks and not is_unsampled_gaussian(event):
        raise InvalidGrantError(
            f"run '{attempt.run_id}' asks questions, and the event is {event}; a question is asked of all records, by "
            "Gaussians of sampling rate 1."
        )
    _check_count("round", attempt.round, 0)
    _check_count("attempt", attempt.attempt, 0)
    _check_count("steps", steps, 1)
    try:
        counts = executed_events(elsewhere).values()
    except (ValueError, OverflowError) as error:
        raise InvalidGrantError(f"elsewhere: {error}") from error
    for count in counts:
        _check_count("elsewhere", count, 0)


def _check_count(name: str, count: int, least: int) -> None:
    if not isinstance(count, int) or not least <= count <= _LARGEST_COUNT:
        raise InvalidGrantError(f"{name} is {count!r:.40}; choose an integer from {least} to {_LARGEST_COUNT}.")


def _check_new(tally: Tally, attempt: Attempt, signer: str) -> None:
    _check_run_key(tally, attempt, signer)
    if attempt in tally.charges:
        raise AlreadyChargedError(
            f"{attempt} was charged before. Send its sealed update again; to train again, the server must grant a new "
            "attempt."
        )


def _check_run_key(tally: Tally, attempt: Attempt, signer: str) -> None:
    opened = tally.run_keys.get(attempt.run_id, signer)
    if opened != signer:
        raise InvalidGrantError(
            f"run '{attempt.run_id}' was opened under the key {opened[:16]}, and this grant comes with {signer[:16]} "
            "(SHA-256). Ask the server's operator: a run keeps its key, and another server's run another name."
        )
