"""The newest signed head of the ledger, in the run's folder: away from the ledger, it bears witness to it."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedprivacy._support.durable import write_durably
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.journal import SignedHead, check_ancestor, sign_head
from fedprivacy.ledger.verify import read_witness

WITNESS = "ledger-checkpoint.json"
"""Name of its file."""


class LedgerWitness:
    """Signs where the ledger's journal ends, after every round, and remembers what it signed.

    Args:
        ledger: that the run charges.
        key: of the run; None: nothing is signed.
        folder: of the run; None: what is signed is kept in the ledger alone.
        goes_on: whether the run was begun before. It goes on on the ledger that it knew.

    Raises:
        LedgerError: the ledger of a run that goes on no longer holds what was signed.
    """

    def __init__(self, ledger: Ledger, key: Ed25519PrivateKey | None, folder: Path | None, *, goes_on: bool) -> None:
        self._ledger = ledger
        self._key = key
        self._file = folder / WITNESS if folder else None
        self._newest: SignedHead | None = None
        if goes_on and self._file is not None and self._file.exists():
            known = self._newest = read_witness(self._file)
            ledger.database.read(lambda connection: check_ancestor(connection, ledger.name, known))

    def sign(self) -> None:
        """Sign where the journal ends, and leave a copy in the run's folder.

        Raises:
            LedgerError: the ledger no longer holds what was signed after the last round.
        """
        if self._key is None:
            return
        self._newest = sign_head(self._ledger.database, self._key, self._newest)
        if self._newest is not None and self._file is not None:
            write_durably(self._file, (json.dumps(self._newest._asdict()) + "\n").encode())
