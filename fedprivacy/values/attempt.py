"""The unit of charging: one attempt at one round of one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

QUESTIONS = "questions-"
"""Prefix of the names of runs that ask questions, and of no others: a client keeps a separate budget for them."""


def asking_for(run_id: str) -> str:
    """Return the prefix of the names of runs that ask a run's own question, before its first round."""
    return f"{QUESTIONS}{run_id}-"


class Attempt(NamedTuple):
    """The unit that a client is charged for once, by the names that the server gives; strategy, ledger and guard use
    it.

    >>> Attempt("spring", 3).again
    Attempt(run_id='spring', round=3, attempt=2)
    """

    run_id: str  # the run
    round: int  # counted from 1
    attempt: int = 1  # at this round, counted from 1; another attempt is another charge

    @classmethod
    def named_in(cls, fields: Mapping[str, Any]) -> Attempt:
        """Return the attempt that the fields of a ledger or guard entry name. Raises KeyError: one is missing."""
        return cls(*(fields[name] for name in cls._fields))

    @property
    def asks(self) -> bool:
        """True if the run asks questions."""
        return self.run_id.startswith(QUESTIONS)

    @property
    def again(self) -> Attempt:
        """The next attempt at the same round."""
        return self._replace(attempt=self.attempt + 1)

    def __str__(self) -> str:
        return f"run '{self.run_id}', round {self.round}, attempt {self.attempt}"
