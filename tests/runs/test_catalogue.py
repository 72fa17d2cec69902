"""Runs are found wherever they are recorded, also those that begin later, and what cannot be read is said."""

import json
from pathlib import Path

import pytest

from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.runs.records import catalogue as catalogues
from fedprivacy.runs.records.catalogue import Catalogue, default_sources, url_of
from fedprivacy.values.runs import RunStatus
from tests.dashboard.shown import record
from tests.ledger.acts import tamper
from tests.runs.store.made_up import facts, growing


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A listing is made anew each time."""
    monkeypatch.setattr(catalogues, "_FRESH", 0.0)


def names(catalogue):
    return sorted(run.facts.name for run in catalogue.listing().runs)


def at(path):
    return f"sqlite:///{path}"


def test_a_folder_s_runs_are_found_when_they_begin(tmp_path):
    record(at(tmp_path / "one" / "ledger.db"), facts("one"), growing(["a"], 1), RunStatus.FINISHED)
    catalogue = Catalogue([str(tmp_path)])
    assert names(catalogue) == ["one"]
    record(at(tmp_path / "two" / "ledger.db"), facts("two"), [])
    assert names(catalogue) == ["one", "two"]
    assert catalogue.store_of("two").run("two") and catalogue.store_of("three") is None


def test_a_run_with_a_ledger_elsewhere_is_found_by_its_folder(tmp_path):
    """It may lie among others or be named itself; folders whose ledger is gone, or that have none, do not hide it."""
    shared, folder = tmp_path / "elsewhere" / "shared.db", tmp_path / "runs"
    catalogue = Catalogue([str(made(folder))])
    assert names(catalogue) == []
    for name, ledger in (("given", shared), ("gone", tmp_path / "none" / "l.db"), ("own", ""), ("wrong", 7)):
        named = {"settings": {"ledger": at(ledger) if isinstance(ledger, Path) else ledger}}
        (made(folder / name) / "config.json").write_text(json.dumps(named))
    assert names(catalogue) == []
    record(at(shared), facts("given"), growing(["a"], 1), RunStatus.FINISHED)
    assert names(catalogue) == names(Catalogue([str(folder / "given")])) == ["given"]
    assert names(Catalogue([str(folder / "own")])) == []


def made(folder):
    folder.mkdir(parents=True)
    return folder


def test_a_file_a_url_and_a_folder_with_a_ledger_of_its_own_each_once(tmp_path):
    for name in ("file", "url", "folder"):
        record(at(tmp_path / name / "ledger.db"), facts(name), [])
    sources = [str(tmp_path / "file" / "ledger.db"), at(tmp_path / "url" / "ledger.db"), str(tmp_path / "folder")]
    assert names(Catalogue(sources)) == names(Catalogue([*sources, str(tmp_path)])) == ["file", "folder", "url"]


def test_runs_of_one_ledger_are_all_found_on_postgresql_too(postgres_url):
    for name in ("one", "two"):
        record(postgres_url, facts(name), growing(["a"], 1))
    catalogue = Catalogue([postgres_url])
    assert names(catalogue) == ["one", "two"]
    record(postgres_url, facts("three"), [])
    assert names(catalogue) == ["one", "three", "two"]
    catalogue.close()


def test_what_changes_is_seen_and_what_does_not_is_not_read_again(tmp_path, monkeypatch):
    url = at(tmp_path / "one" / "ledger.db")
    record(url, facts("one"), growing(["a"], 1), RunStatus.FINISHED)
    catalogue = Catalogue([str(tmp_path)])
    catalogue.listing()
    looked = []
    real = catalogues.RunStore.runs
    monkeypatch.setattr(catalogues.RunStore, "runs", lambda store: looked.append(1) or real(store))
    catalogue.listing()
    assert not looked
    record(url, facts("one"), growing(["a"], 4))
    assert catalogue.listing().runs[0].last.round == 4 and len(looked) == 1


def test_a_ledger_of_an_earlier_version_is_named_and_hides_no_other(tmp_path):
    record(at(tmp_path / "good" / "ledger.db"), facts("good"), [])
    (tmp_path / "old").mkdir()
    Ledger(old := at(tmp_path / "old" / "ledger.db")).close()
    tamper(old, "UPDATE alembic_version SET version_num = '0002'")
    listing = Catalogue([str(tmp_path)]).listing()
    assert [run.facts.name for run in listing.runs] == ["good"]
    (problem,) = listing.problems
    assert "has revision 0002" in problem and "old" in problem


def test_a_folder_whose_run_cannot_be_listed_is_named(tmp_path, caplog):
    record(at(tmp_path / "good" / "ledger.db"), facts("good"), [])
    torn, lost, kept = (made(tmp_path / name) / "config.json" for name in ("torn", "lost", "kept"))
    torn.write_text('{"settings": ')
    lost.write_text(json.dumps({"run_id": "lost", "settings": {"ledger": at(tmp_path / "gone.db")}}))
    kept.write_text(json.dumps({"run_id": "good", "settings": {"ledger": ""}}))  # its ledger is named otherwise
    catalogue = Catalogue([str(tmp_path)])
    listing = catalogue.listing()
    assert names(catalogue) == ["good"] and listing.databases == []
    first, second = sorted(listing.problems)
    assert str(torn) in second and "cannot be read (JSONDecodeError" in second
    assert first == f"'{lost.parent}' holds a run whose ledger is not here; name that ledger, too."
    assert sorted(said.message for said in caplog.records) == [first, second]  # once
    record(at(tmp_path / "gone.db"), facts("lost"), [])
    torn.write_text(json.dumps({"settings": {"ledger": ""}}))
    assert names(catalogue) == ["good", "lost"] and catalogue.listing().problems == []


def test_a_place_without_a_run_is_refused(tmp_path):
    for source in (str(tmp_path / "none.db"), at(tmp_path / "none.db")):
        with pytest.raises(LedgerError, match="where there is none"):
            Catalogue([source])
    with pytest.raises(LedgerError, match="must be an SQLite file"):
        Catalogue(["mysql://host/name"])
    with pytest.raises(LedgerError, match="password"):
        Catalogue(["postgresql+psycopg://me:secret@host/name"])
    assert Catalogue([str(tmp_path)]).listing().runs == []


def test_by_default_this_folder_s_runs_and_the_deployments_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_sources() == []
    (tmp_path / "runs").mkdir()
    file = tmp_path / "home" / ".fedprivacy" / "ledger.db"
    record(at(file), facts("deployed"), [])
    assert default_sources() == ["runs", str(file)]
    assert url_of(str(file)) == at(file)
