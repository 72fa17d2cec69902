"""The state between two asynchronous rounds: the clients that train, and the update that each of them will send.

The clock is simulated, so a client is trained when it is dispatched, and its update is kept until it would arrive. All
of this is in the checkpoint: a training that was charged and done is not repeated.
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
    """The update that a client will send, or the reason why it will send none.

    Attributes:
        attempt: the attempt that was charged for it.
        weight: public weight of its update in the average.
        clipping_norm: clipping norm that its next step would have; None: it is unknown how far its training came.
        difference: its last minus its first model, flat, shape [d], in the model's own type; None: no usable update.
        failure: the reason why there is no update, as a constant code; empty: there is one.
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
        training: clients that train, or are not yet known to have gone away.
        pending: the updates of those that were charged, by client_id.
    """

    training: tuple[Dispatch, ...] = ()
    pending: Mapping[str, Pending] = field(default_factory=dict)

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The JSON part of the state, a dictionary for each client."""
        return [asdict(dispatch) | self._charged(dispatch.client_id) for dispatch in self.training]

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The array part of the state: differences by client_id."""
        each = {client_id: pending.difference for client_id, pending in self.pending.items()}
        return {client_id: difference for client_id, difference in each.items() if difference is not None}

    @classmethod
    def of(cls, run_id: str, facts: list[dict[str, Any]], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Restore the state of a run from its `facts` and `arrays`.

        Raises:
            KeyError: a fact or an array is missing.
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
