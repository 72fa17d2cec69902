"""The client's own account of what its shard has spent, in one file that no crash makes forget.

`Guard` is what a client uses. Beneath it lie `log` (durable bytes), `tally` (what they mean and add up to) and `seals`
(updates kept to be sent again).
"""

from typing import TYPE_CHECKING

from fedprivacy._support.lazy import when_asked

if TYPE_CHECKING:
    from fedprivacy.guard.errors import (
        AlreadyChargedError,
        BudgetExhaustedError,
        ForeignGrantError,
        GuardError,
        InvalidGrantError,
        LogBusyError,
        LogDamagedError,
        LogError,
        LogWriteError,
        OldGuardError,
        SealError,
    )
    from fedprivacy.guard.guard import KEPT_UPDATES, Guard, names_a_run
else:  # the command line imports this package, and most commands need no accounting
    __getattr__ = when_asked(__name__, "errors", "guard")

__all__ = [
    "KEPT_UPDATES",
    "AlreadyChargedError",
    "BudgetExhaustedError",
    "ForeignGrantError",
    "Guard",
    "GuardError",
    "InvalidGrantError",
    "LogBusyError",
    "LogDamagedError",
    "LogError",
    "LogWriteError",
    "OldGuardError",
    "SealError",
    "names_a_run",
]
