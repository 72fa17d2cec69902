"""Points at which a process can be made to die, so that tests prove what a crash there costs.

Every step of client and server that changes what is on a disk, or what has left the process, reaches a labelled point.
`FEDPRIVACY_FAILPOINT=label` in the environment kills the process with SIGKILL when it first gets there, and `label:3`
the third time: no handler runs, no buffer is written, as if the power had failed for this process. Without the variable
a point costs one look-up. The worst that the variable can do is to end the process of the person who sets it.
"""

from __future__ import annotations

import os
import signal

CLIENT_POINTS = (
    "client.asked",
    "client.room-held",
    "guard.before-slot",
    "guard.slot-written",
    "guard.appended",
    "client.charged",
    "client.trained",
    "client.seal-written",
    "client.seal-named",
    "client.sealed",
    "client.replying",
)
"""Points of a client, in the order in which it reaches them."""

SERVER_POINTS = (
    "server.run-opened",
    "ledger.before-reserve",
    "ledger.journal-written",
    "server.reserved",
    "server.answered",
    "ledger.before-settle",
    "server.settled",
    "server.averaged",
    "server.round-recorded",
    "server.checkpoint-written",
    "server.checkpointed",
)
"""Points of a server in a round, in the order in which it reaches them."""

ANSWER_POINTS = ("ledger.before-keep", "ledger.answers-entered", "ledger.answers-kept")
"""Points of a server that handles the answers to a question, in the order in which it reaches them."""

VARIABLE = "FEDPRIVACY_FAILPOINT"

_ALL = CLIENT_POINTS + SERVER_POINTS + ANSWER_POINTS
_POINTS = frozenset(_ALL)
_times_left: dict[str, int] = {}


def arm(point: str, times: int = 1) -> None:
    """Let this process die when it reaches `point` for the `times`-th time.

    Raises:
        ValueError: there is no such point.
    """
    if point not in _POINTS:
        raise ValueError(f"{VARIABLE} names '{point}'; the points are {', '.join(_ALL)}.")
    _times_left[point] = times


def reach(point: str) -> None:
    """Die here if this point is armed."""
    if point in _times_left:
        _times_left[point] -= 1
        if _times_left[point] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


if VARIABLE in os.environ:
    _point, _, _times = os.environ[VARIABLE].partition(":")
    arm(_point, int(_times or 1))
