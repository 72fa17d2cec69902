"""A host with ledgers, and with folders of runs that have signed what they hold."""

import json
import shutil
from contextlib import closing

from fedprivacy.ledger import Ledger
from fedprivacy.ledger.journal import sign_head
from fedprivacy.runs.records.witnesses import WITNESS, check_witnesses
from fedprivacy.values.attempt import Attempt
from tests.ledger.acts import ALLOWANCE, EVENT, KEY, unlimited


class Host:
    """Ledgers, and the folders of the runs that charged them."""

    def __init__(self, folder):
        self.folder, self.runs = folder, folder / "runs"

    def url(self, name):
        return f"sqlite:///{self.folder / name}.db"

    def run(self, run_id, ledger, named=None):
        """Charge a ledger; leave a witness in a folder whose settings name the ledger."""
        opened = Ledger(self.url(ledger))
        opened.open_run(run_id, "digits", "2 parts")
        opened.open_budgets({"a": ALLOWANCE})
        opened.reserve(Attempt(run_id, 1), EVENT, {"a": 1}, unlimited)
        folder = self.runs / run_id
        folder.mkdir(parents=True)
        (folder / WITNESS).write_text(json.dumps(sign_head(opened.database, KEY)._asdict()))
        settings = {"ledger": self.url(ledger) if named is None else named}
        (folder / "config.json").write_text(json.dumps({"run_id": run_id, "settings": settings}))
        opened.close()
        return folder

    def copy(self, name, to):
        shutil.copy(self.folder / f"{name}.db", self.folder / f"{to}.db")

    def check(self, ledger):
        url = self.url(ledger)
        if not Ledger.exists(url):
            return check_witnesses(None, url, self.runs)
        with closing(Ledger(url, create=False)) as opened:  # else SQLite may still write what a copy has replaced
            return check_witnesses(opened, url, self.runs)
