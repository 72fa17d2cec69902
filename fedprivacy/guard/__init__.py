"""The client's own account of what its shard has spent, in one file that survives crashes.

A client uses `Guard`. It builds on `log` (durable bytes), `tally` (their meaning and sums) and `seals` (updates kept to
be sent again).
"""

from typing import TYPE_CHECKING

from fedprivacy._support.imports import from_homes
from fedprivacy.guard.errors import AlreadyChargedError as AlreadyChargedError
from fedprivacy.guard.errors import BudgetExhaustedError as BudgetExhaustedError
from fedprivacy.guard.errors import GuardError as GuardError
from fedprivacy.guard.errors import InvalidGrantError as InvalidGrantError
from fedprivacy.guard.errors import LogDamagedError as LogDamagedError
from fedprivacy.guard.errors import LogError as LogError
from fedprivacy.guard.errors import LogWriteError as LogWriteError
from fedprivacy.guard.errors import NoRoomError as NoRoomError
from fedprivacy.guard.errors import QuestionsExhaustedError as QuestionsExhaustedError
from fedprivacy.guard.errors import SealError as SealError

if TYPE_CHECKING:
    from fedprivacy.guard.guard import KEPT_UPDATES as KEPT_UPDATES
    from fedprivacy.guard.guard import Guard as Guard
    from fedprivacy.guard.guard import names_a_run as names_a_run
else:  # the command line imports this package, and most commands need no accounting
    __getattr__ = from_homes(__name__, dict.fromkeys(("KEPT_UPDATES", "Guard", "names_a_run"), "guard"))
