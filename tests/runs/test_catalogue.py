"""Runs are found wherever they are recorded; what cannot be read is said, and what a ledger lacks that a run signed."""

import shutil

import pytest

from fedprivacy.ledger import LedgerError
from fedprivacy.runs.records import catalogue as catalogues
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.witnesses import WITNESS
from fedprivacy.values.runs import RunStatus
from tests.dashboard.shown import charge, record
from tests.ledger.acts import tamper
from tests.runs.store.made_up import facts, growing
from tests.runs.witnessed import Host


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A listing is made anew each time."""
    monkeypatch.setattr(catalogues, "_FRESH", 0.0)


def names(catalogue):
    return sorted(run.facts.name for run in catalogue.listing().runs)


def at(path):
    return f"sqlite:///{path}"


def test_a_run_is_found_in_its_folder_and_its_charges_wherever_its_ledger_is(tmp_path):
    """It may lie among others or be named itself; a folder whose ledger is gone has no charges to show."""
    shared, folder = at(tmp_path / "shared.db"), tmp_path / "runs"
    for name, ledger in (("given", shared), ("gone", at(tmp_path / "none" / "l.db")), ("own", "")):
        record(at(folder / name / "run.db"), facts(name, ledger=ledger), growing(["a"], 2), RunStatus.FINISHED)
    charge(shared, "given", ["a"], 3, budget=3.0, filter="adaptive")
    charge(at(folder / "own" / "ledger.db"), "own", ["a"], 2, budget=3.0, filter="adaptive")
    catalogue = Catalogue([str(folder)])
    assert names(catalogue) == ["given", "gone", "own"] and catalogue.listing().problems == []
    runs = {name: catalogue.store_of(name).run(name) for name in names(catalogue)}
    assert {name: run.charges(limit=9, offset=0)[0] for name, run in runs.items()} == {"given": 3, "gone": 0, "own": 2}
    assert [bool(run.history_of("a")) for run in runs.values()] == [True, False, True]
    assert names(Catalogue([str(folder / "given")])) == ["given"]
    assert names(Catalogue([at(folder / "own" / "ledger.db")])) == ["own"]


def made(folder):
    folder.mkdir(parents=True)
    return folder


def test_runs_of_one_ledger_are_all_found_on_postgresql_too(postgres_url):
    for name in ("one", "two"):
        record(postgres_url, facts(name), growing(["a"], 1))
    catalogue = Catalogue([postgres_url])
    assert names(catalogue) == ["one", "two"]
    record(postgres_url, facts("three"), [])
    assert names(catalogue) == ["one", "three", "two"]
    catalogue.close()


def test_a_ledger_whose_run_store_has_other_columns_names_the_runs_folders_as_the_remedy(tmp_path):
    record(at(tmp_path / "ledger.db"), facts("one"), [])
    tamper(at(tmp_path / "ledger.db"), "ALTER TABLE recorded_clients DROP COLUMN averaged")
    (problem,) = Catalogue([str(tmp_path / "ledger.db")]).listing().problems
    assert problem.endswith("or name the runs' folders in place of this ledger.")


def test_a_folder_whose_run_cannot_be_listed_is_named(tmp_path, caplog):
    record(at(tmp_path / "good" / "run.db"), facts("good"), [])
    torn, old = (made(tmp_path / name) for name in ("torn", "old"))
    (torn / "run.db").write_bytes(b"SQLite format 3" + bytes(100))
    (old / "start.json").write_text("{}")
    catalogue = Catalogue([str(tmp_path)])
    listing = catalogue.listing()
    assert names(catalogue) == ["good"]
    assert listing.folders == [f"'{old}' holds a run of an earlier version of fedprivacy; read it with that version."]
    (problem,) = listing.databases
    assert str(torn / "run.db") in problem
    assert sorted(said.message for said in caplog.records) == sorted(listing.problems)  # once
    (old / "start.json").unlink()
    (torn / "run.db").unlink()
    assert names(catalogue) == ["good"] and catalogue.listing().folders == []


def test_a_place_without_a_run_is_refused(tmp_path):
    for source in (str(tmp_path / "none.db"), at(tmp_path / "none.db")):
        with pytest.raises(LedgerError, match="where there is none"):
            Catalogue([source])
    with pytest.raises(LedgerError, match="must be an SQLite file"):
        Catalogue(["mysql://host/name"])
    with pytest.raises(LedgerError, match="password"):
        Catalogue(["postgresql+psycopg://me:secret@host/name"])
    assert Catalogue([str(tmp_path)]).listing().runs == []


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_ledger_that_holds_what_was_signed_passes_and_an_older_copy_of_it_does_not(host):
    host.run("one", "ledger")
    host.copy("ledger", "old")
    host.check("ledger")
    host.run("two", "ledger")
    newest = host.run("three", "ledger")
    host.check("ledger")
    host.copy("old", "ledger")
    with pytest.raises(LedgerError, match="nor what 1 other run signed: an older copy was put back") as error:
        host.check("ledger")
    assert f"(in {newest / WITNESS})" in str(error.value)
    for run in ("two", "three"):  # as the page says, if the newer ledger is lost for good
        (host.runs / run / WITNESS).rename(host.runs / run / "lost.json")
    host.check("ledger")


def test_a_ledger_that_moved_is_known_by_its_runs(host):
    host.run("one", "ledger")
    host.copy("ledger", "moved")
    host.check("moved")
    folder = host.run("two", "ledger")  # of which the copy knows nothing
    with pytest.raises(LedgerError, match=f"in {folder}"):
        host.check("moved")
    host.copy("ledger", "moved")
    host.run("three", "moved")
    host.check("moved")


def test_a_ledger_that_no_settings_name_is_the_simulation_s_own_or_that_of_deployments(host, monkeypatch):
    monkeypatch.setenv("HOME", str(host.folder))
    (host.folder / ".fedprivacy").mkdir()
    host.run("one", ".fedprivacy/ledger", named="")
    host.check(".fedprivacy/ledger")
    (host.folder / ".fedprivacy" / "ledger.db").unlink()
    host.check("another")
    with pytest.raises(LedgerError, match="does not hold entry"):
        host.check(".fedprivacy/ledger")
    (host.runs / "simulated").mkdir()
    folder = host.run("simulated-1", "runs/simulated/ledger", named="")
    shutil.move(folder / WITNESS, host.runs / "simulated")
    shutil.move(folder / "config.json", host.runs / "simulated")
    host.check("runs/simulated/ledger")


def test_a_witness_that_cannot_be_read_is_not_passed_over(host):
    folder = host.run("one", "ledger")
    for content in ("", "[]", '{"number": 1}'):
        (folder / WITNESS).write_text(content)
        with pytest.raises(LedgerError, match="holds no signed head; put back that file, or rename it"):
            host.check("ledger")
    host.run("two", "other")
    host.check("other")  # which it is no witness of
    (folder / "config.json").unlink()  # no run's folder
    host.check("ledger")
