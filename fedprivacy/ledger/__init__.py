"""The server's durable book of charges."""

from typing import TYPE_CHECKING

from fedprivacy._support.imports import names_of, when_asked
from fedprivacy.values.budget import Allowance

if TYPE_CHECKING:
    from fedprivacy.ledger.charges import NOTHING_SPENT, Account
    from fedprivacy.ledger.database import database_file, default_url, ledger_url
    from fedprivacy.ledger.errors import LedgerError
    from fedprivacy.ledger.kept_answers import Answer, AskedQuestion, StoredAnswer
    from fedprivacy.ledger.schema import ChargeState
    from fedprivacy.ledger.store import Ledger
else:  # the command line imports this package, and most commands need no database
    __getattr__ = when_asked(__name__, "errors", "schema", "database", "charges", "kept_answers", "store")
    __dir__ = names_of(__name__)

__all__ = [
    "NOTHING_SPENT",
    "Account",
    "Allowance",
    "Answer",
    "AskedQuestion",
    "ChargeState",
    "Ledger",
    "LedgerError",
    "StoredAnswer",
    "database_file",
    "default_url",
    "ledger_url",
]
