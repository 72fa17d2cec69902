"""Runs are removed with their own charges alone: ledgers decide by their journals, and in doubt nothing is deleted."""

import shutil
import sqlite3
from contextlib import closing

import pytest

import fedprivacy as fp
from fedprivacy._support import failpoints
from fedprivacy.guard import Guard
from fedprivacy.ledger import Allowance, Ledger
from fedprivacy.runs.records.folder import RunFolderError
from fedprivacy.runs.records.removal import remove_runs
from fedprivacy.values.budget import PrivacyBudget
from tests.flower.blobs import Blobs
from tests.flower.wards import Wards
from tests.guard.account import EVENT, key
from tests.processes import KILLED, in_child

QUIET = {"progress": False, "drawn": False}
BUDGET = PrivacyBudget(3.0, 1e-5)
OTHERS = "holds the ledger of 1 other run, whose charges must not be lost"
NOT_TOLD = "does not tell which runs are charged to it"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, each with a ledger of its own."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("first", "run"):
        settings = {"clients": 2, "rounds": 2, "epsilon": 3, "noise_multiplier": 20.0, "filter": "adaptive"}
        fp.simulate(Blobs(), out=str(folder / name), **settings, **QUIET)
    return folder


@pytest.fixture
def runs(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def url(folder, name="ledger.db"):
    return f"sqlite:///{folder / name}"


def sql(folder, *statements):
    with closing(sqlite3.connect(folder / "ledger.db")) as connection, connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


def charged_by_a_guest(folder, name="ledger.db"):
    with Ledger(url(folder, name)) as ledger:
        ledger.open_budgets({"guest": Allowance(BUDGET, "adaptive")})
        ledger.reserve(key(attempt=1, run_id="guest"), EVENT, {"guest": 1}, lambda *_: 1)


def begun_by_a_guest(folder):
    with Ledger(url(folder)) as ledger:
        ledger.open_run("guest", "guests", "2 parts")


def claimed_by_a_guard(folder):
    with Ledger(url(folder)) as ledger:
        ledger.reconcile(ledger.dataset_ids()[0], {("guest", EVENT): 3})


def set_by_hand(folder):
    with Ledger(url(folder)) as ledger:
        ledger.set_budget(ledger.dataset_ids()[0], PrivacyBudget(0.5, 1e-5), None, "the ward withdraws")


def hidden_in_the_tables(folder):
    charged_by_a_guest(folder)
    sql(folder, "PRAGMA foreign_keys = OFF", "DELETE FROM charges WHERE run_id = 'guest'", "DELETE FROM runs")


def guarded(folder):
    Guard(folder / "ward-3.book", BUDGET).charge(key(1), EVENT, 2)


def nested(folder):
    shutil.copytree(folder.parent / "first", folder / "older" / "first")


@pytest.mark.parametrize(
    ("do", "why"),
    [
        (charged_by_a_guest, OTHERS),
        (lambda folder: charged_by_a_guest(folder, "old books"), OTHERS),
        (begun_by_a_guest, OTHERS),
        (claimed_by_a_guard, OTHERS),
        (set_by_hand, "was set by hand"),
        (hidden_in_the_tables, NOT_TOLD),
        (lambda folder: sql(folder, "UPDATE charges SET run_id = 'mine'"), NOT_TOLD),
        (lambda folder: (folder / "ledger.db").write_bytes(b"\0" * 9000), NOT_TOLD),
        (guarded, "holds a client's guard"),
        (lambda folder: (folder / "ward.log.12ab.sealed").mkdir(), "holds a client's guard"),
        (nested, "holds (another run's folder|the ledger of 1 other run)"),
    ],
    ids=range(11),
)
def test_nothing_is_deleted_where_a_folder_holds_more_than_its_run(runs, do, why):
    do(runs / "run")
    before = sorted(runs.rglob("*"))
    with pytest.raises(RunFolderError, match=why):
        remove_runs([runs / "first", runs / "run"])
    assert [file for file in before if not file.exists() and not file.name.endswith(("-wal", "-shm"))] == []


def test_a_link_is_refused_before_anything_is_deleted_and_what_links_lead_to_stays(runs, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "ledger.db").write_bytes((runs / "run" / "ledger.db").read_bytes())
    charged_by_a_guest(elsewhere)
    (runs / "link").symlink_to(runs / "run")
    with pytest.raises(RunFolderError, match=r"link' is a link; name the folder itself, '.*run'"):
        remove_runs([runs / "first", runs / "link"])
    assert (runs / "first").is_dir() and (runs / "run").is_dir()
    (runs / "run" / "books").symlink_to(elsewhere)
    remove_runs([runs / "run", runs / "first" / ".." / "run", runs / "first"])
    assert sorted(file.name for file in runs.iterdir()) == ["link"] and (elsewhere / "ledger.db").exists()


def test_a_charge_whose_run_was_killed_before_any_list_knew_it_is_kept(runs, monkeypatch):
    """The charge and its answer are on the ledger, and the run store knows nothing of either."""
    monkeypatch.setattr("fedprivacy.simulation.ask.record_answers", lambda *_: None)
    asked = {"ledger": str(runs / "run" / "ledger.db"), "out": str(runs / "asked")}
    fp.ask(Asked(), fp.ask.count(), clients=2, epsilon=3, spend=0.5, filter="adaptive", **asked)
    assert not any(row["run"] == "asked" for row in fp.list_runs(runs))
    with pytest.raises(RunFolderError, match=OTHERS):
        remove_runs([runs / "run"])


class Asked(Blobs):
    """The same records, as a table that can be asked."""

    def table(self, source):
        return fp.Table({"x": self.shard(source).inputs[:, 0].numpy()})


@pytest.mark.exhaustive
def test_the_run_s_own_question_goes_with_it_and_another_s_keeps_it(tmp_path):
    settings = {"clients": 2, "rounds": 1, "epsilon": 3.0, "out": str(tmp_path / "run"), "filter": "adaptive"}
    fp.simulate(Wards(), **settings, **QUIET)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    remove_runs([tmp_path / "copy"])
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    asked = {"ledger": str(tmp_path / "run" / "ledger.db"), "out": str(tmp_path / "asked"), "noise_multiplier": 2000.0}
    fp.ask(Wards(), fp.ask.count(), clients=2, epsilon=3.0, filter="adaptive", **asked)
    with pytest.raises(RunFolderError, match=OTHERS):
        remove_runs([tmp_path / "run"])


def test_a_sweep_that_goes_on_keeps_what_a_stopped_run_was_charged(tmp_path):
    def swept():
        return fp.sweep(Wards(), out=tmp_path / "sweep", clients=2, rounds=1, epsilon=[3.0], jobs=1, progress=False)

    def stopped():
        failpoints.arm("server.run-opened", times=2)  # the question is charged and answered, and no round has begun
        swept()

    assert in_child(stopped) == KILLED
    (folder,) = (file.parent for file in (tmp_path / "sweep").rglob("ledger.db"))
    asked = "SELECT * FROM charges WHERE run_id LIKE 'questions-%' ORDER BY charge_id"
    before = sql(folder, asked)
    assert len(before) == 2
    assert len(swept().runs) == 1
    assert sql(folder, asked) == before


def test_the_ledger_in_a_folder_decides_whatever_characters_its_name_has(runs):
    name = "P%41"
    shutil.copytree(runs / "first", runs / "PA")  # as which a URL would read the first name
    charged_by_a_guest(runs / "run")
    (runs / "run").rename(runs / name)
    with pytest.raises(RunFolderError, match=OTHERS):
        remove_runs([runs / name])
    assert (runs / name / "ledger.db").exists()
