"""What is under way between two asynchronous rounds: the clients that train, and what each of them will send.

The clock is simulated, so a client is trained when it is dispatched, and its update kept until it would arrive. All of
it is in the checkpoint: what was charged and trained is not trained again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedprivacy.participation import Dispatch
from fedprivacy.values.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Pending:
    """What a client will send, or why it will send nothing.

    Attributes:
        attempt: what was charged for it.
        weight: of its update in the average, public.
        clipping_norm: that its next step would have; None: nothing says how far its training came.
        difference: its end minus its start, flat, shape [d], in the model's own type; None: there is no usable update.
        failure: why there is none, as a constant code; empty: there is one.
    """

    attempt: Attempt
    weight: float
    clipping_norm: float | None
    difference: NDArray[np.floating[Any]] | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Underway:
    """The state of an asynchronous run beside its model.

    Attributes:
        training: who trains, or is not yet known to have gone away.
        pending: what they will send, by client_id: of those that were charged.
    """

    training: tuple[Dispatch, ...] = ()
    pending: Mapping[str, Pending] = field(default_factory=dict)

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What JSON can hold of it, a dictionary for each client."""
        return [asdict(dispatch) | self._charged(dispatch.client_id) for dispatch in self.training]

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The rest, by client_id."""
        each = {client_id: pending.difference for client_id, pending in self.pending.items()}
        return {client_id: difference for client_id, difference in each.items() if difference is not None}

    @classmethod
    def of(cls, run_id: str, facts: list[dict[str, Any]], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What was taken apart into `facts` and `arrays`, of the run with this name.

        Raises:
            KeyError: something is missing.
        """
        training = tuple(Dispatch(**{name: each[name] for name in Dispatch.__slots__}) for each in facts)
        return cls(
            training,
            {
                each["client_id"]: Pending(
                    Attempt(run_id, each["round"], each["attempt"]),
                    each["weight"],
                    each["clipping_norm"],
                    None if each["failure"] else arrays[each["client_id"]],
                    each["failure"],
                )
                for each in facts
                if "attempt" in each
            },
        )

    def _charged(self, client_id: str) -> dict[str, Any]:
        if (pending := self.pending.get(client_id)) is None:
            return {}
        own = {name: getattr(pending, name) for name in ("weight", "clipping_norm", "failure")}
        return {"attempt": pending.attempt.attempt} | own
