"""Runs for dashboards to show, and a dashboard that listens."""

import contextlib
import threading
import time

import uvicorn
from starlette.testclient import TestClient

from fedprivacy.dashboard.security import Door
from fedprivacy.dashboard.service import Server
from fedprivacy.dashboard.web_app import dashboard_app
from fedprivacy.ledger import Allowance, ChargeState, Ledger
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.store import RECORD, RunRecording
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.runs import RunStatus
from tests.runs.store.made_up import DELTA, facts, finished, growing, spent

EVENT = PoissonSampledGaussian(0.1, 1.5, NeighbouringRelation.ZERO_OUT)
TOKEN = "a-token-of-more-than-16-characters"


def record(url, its_facts, records, status=None, *, charged=None, filter="adaptive"):
    """A run in the store of its folder, or of a ledger, which is made if there is none.

    With `charged`, the ledger holds the clients' budgets and the charges of so many rounds, too.
    """
    if not url.endswith(f"/{RECORD}"):
        Ledger(url).close()
    if charged is not None:
        budget = next(one.budget_epsilon for one in records[-1].spent.values())
        charge(url, its_facts.run_id, records[-1].spent, charged, budget=budget, filter=filter)
    recording = RunRecording(url, its_facts)
    for one in records:
        recording.add(one)
    if status:
        recording.end(status)
    recording.flush()
    recording.close()


def charge(url, run_id, names, rounds, *, budget, filter):
    """The run's budgets and charges in its ledger, the last round's without receipts."""
    ledger = Ledger(url)
    ledger.open_run(run_id, "digits", "some parts")
    datasets = [f"digits/{name}" for name in names]
    ledger.open_budgets(dict.fromkeys(datasets, Allowance(PrivacyBudget(budget, DELTA), filter)))
    for number in range(1, rounds + 1):
        ledger.reserve(Attempt(run_id, number), EVENT, dict.fromkeys(datasets, 2), lambda *_: 2)
        if number < rounds:
            ledger.settle(Attempt(run_id, number), datasets, ChargeState.COMMITTED)
    ledger.close()


def troubled():
    """Rounds in which clients fail, refuse, fall silent and run out of budget."""
    names = ("well", "spent", "refusing", "failing", "silent", "=cmd()")
    accounts = [
        [spent(n, 0.2 * (r + 1), rounds=r, steps_left=0 if n == "spent" and r > 1 else 6) for n in names]
        for r in range(4)
    ]
    failures = {"refusing": "guard-unusable", "failing": "wrong-shape:0.weight", "silent": "no-reply"}
    return [
        finished(0, accounts[0]),
        finished(1, accounts[1]),
        finished(2, accounts[2], failures=failures, unreconciled=["silent"], accuracy=0.6, loss=1.5),
        finished(3, accounts[3], failures=failures, unreconciled=["silent"], accuracy=0.7, loss=1.25),
    ]


def some_runs(folder):
    """A folder with three runs: one that is finished, one in trouble that goes on, one that has not begun."""
    names = [f"client-{n:02d}" for n in range(30)]
    url = f"sqlite:///{folder / 'done' / 'ledger.db'}"
    record(url, facts("done", rounds=12, seed=0), growing(names, 12), RunStatus.FINISHED, charged=3)
    url = f"sqlite:///{folder / 'troubled' / 'ledger.db'}"
    record(url, facts("troubled", rounds=8), troubled(), charged=0)
    record(f"sqlite:///{folder / 'begun' / 'ledger.db'}", facts("begun"), [])
    return folder


def asking(*sources, token=None):
    """Asks a dashboard of these stores, without a network. Nothing is bundled, so it has no Vega."""
    app = dashboard_app(Catalogue([str(source) for source in sources]), Door(token))
    return TestClient(app, base_url="http://localhost")


@contextlib.contextmanager
def serving(*sources, token=None):
    """The address of a dashboard that listens."""
    app = dashboard_app(Catalogue([str(source) for source in sources]), Door(token))
    config = uvicorn.Config(app, port=0, log_config=None, log_level="warning", ws="none", timeout_graceful_shutdown=3)
    server = Server(config, app.state.listeners, lambda: None)
    socket = config.bind_socket()
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
