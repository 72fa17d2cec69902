"""Import of the guard of an earlier version, an SQLite file, whose charges must not be lost."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from fedprivacy._support.durable import name_durably
from fedprivacy.accounting import DEFAULT_FILTER
from fedprivacy.guard import log, seals
from fedprivacy.guard.errors import RelationChangedError, UnitChangedError
from fedprivacy.guard.tally import ChargeEntry, TallyFile, fingerprint, now
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.event_codec import from_row
from fedprivacy.values.unit import RECORD

_CHARGES = (
    "SELECT dataset_id, run_id, round, attempt, steps, sampling_rate, noise_multiplier, relation, epsilon, delta, "
    "filter FROM charges LEFT JOIN budgets USING (dataset_id) WHERE state != 'void' ORDER BY charge_id"
)

"""A charge without a budget counts like any other."""

_ATTEMPTS = 2**32
"""Number of attempts reserved for one data set of an old guard: more than any run has made."""

_NO_DELTA = 1e-5
"""Delta of a charge for which the old guard recorded no budget: it limits nothing."""


def adopt(old: Path, file: Path) -> int:
    """Bring the charges of an old guard into a log, then rename the old guard.

    In a log with an account, the account's filter applies to them: an import changes no promise. Each charge gets its
    own attempt, derived from the old file and the data set, so that none replaces another.

    After an interruption it can be repeated: the old guard keeps its name until all of it is in the log, and nothing
    may be charged until then.

    Returns:
        Number of imported charges. The log is created if it does not exist.

    Raises:
        RelationChangedError: the charges have another neighbouring relation than the log, or several.
        UnitChangedError: the log's unit of privacy is not a record, which was the only one then.
        LogError: the log is busy, damaged or not writable.
        sqlite3.Error: the old file is not a guard.
    """
    charges = list(_read(old))
    seals.refuse_if_gone(file)
    log.create(file)
    kept = TallyFile(file)
    with kept.transaction() as write:
        if charges and kept.tally.unit != RECORD:
            raise UnitChangedError(file, kept.tally.unit, RECORD)
        for charge in charges:
            promised = kept.tally.relation or charges[0].event.relation
            if charge.event.relation is not promised:
                raise RelationChangedError(file, promised, charge.event.relation)
        for charge in charges:
            if charge.attempt not in kept.tally.charges:
                own = kept.tally.allowance
                write(replace(charge, allowance=replace(charge.allowance, filter=own.filter)) if own else charge)
    name_durably(old, old.with_name(f"{old.name}.adopted"))
    return len(charges)


def _read(old: Path) -> Iterator[ChargeEntry]:
    with closing(sqlite3.connect(f"file:{old}?mode=ro", uri=True)) as connection:
        source = old.read_bytes()
        for dataset, run_id, round, attempt, steps, *event, epsilon, delta, filter in connection.execute(_CHARGES):
            digest = sha256(str(dataset).encode() + source).digest()
            own = attempt + _ATTEMPTS * (1 + int.from_bytes(digest[:3]))
            budget = PrivacyBudget(math.inf if epsilon is None else epsilon, _NO_DELTA if delta is None else delta)
            allowance = Allowance(budget, filter or DEFAULT_FILTER)
            yield ChargeEntry(Attempt(run_id, round, own), from_row(event), steps, fingerprint(""), allowance, now())
