"""Which ledger a witness in a run's folder is of, and what a ledger that lacks it is told."""

import shutil

import pytest

from fedprivacy.ledger import LedgerError
from fedprivacy.runs.records.witnesses import WITNESS
from tests.runs.witnessed import Host


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
