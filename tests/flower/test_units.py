"""A dataset has one unit of privacy for ever, and all that states an epsilon of it names the unit."""

import json
import re
from io import StringIO

import pytest
from rich.console import Console

import fedprivacy as fp
from fedprivacy.commands.app import app
from fedprivacy.commands.certificate_page import certificate_html, spent_words
from fedprivacy.commands.outcome import client_table
from fedprivacy.guard import LogError
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.certificate import certify
from fedprivacy.runs.records.folder import read_history
from fedprivacy.runs.records.store import RunStore, url_in
from fedprivacy.trackers.tracker import guarantee
from tests.dashboard.shown import asking
from tests.flower.visits import Visits
from tests.house import ROOT
from tests.terminal import CliRunner

BY_PERSON, BY_ROW = Visits(), Visits(unit=fp.Unit(), most_rows=None)
WORDS = "patient (at most 4 rows)"
OF_PEOPLE = {
    "user-level: all records of a person at once",
    " open wherever real people's records are used",
    "Trusted with records are the hosts that hold them, with the program that their owners installed there",
}
"""Phrases of a report by patient that still speak of records: none of them names a unit of privacy."""


def run(tmp_path, task, name, **settings):
    return fp.simulate(
        task, out=tmp_path / name, seed=1, progress=False, ledger=f"sqlite:///{tmp_path / 'ledger.db'}", **settings
    )


@pytest.mark.exhaustive
def test_a_run_by_another_unit_is_refused_on_the_ledger_of_the_first(tmp_path, undrawn):
    run(tmp_path, BY_ROW, "first", spend=0.5)
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    before = ledger.accounts(ledger.dataset_ids())
    words = r"the unit of privacy 'record', and this run's is 'patient \(at most 4 rows\)'"
    with pytest.raises(fp.ConfigError, match=f"{words}.*use another ledger, or another dataset name"):
        run(tmp_path, BY_PERSON, "then", spend=0.5)
    with pytest.raises(fp.ConfigError, match=words):
        fp.plan(BY_PERSON, spend=0.5, ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    assert ledger.accounts(ledger.dataset_ids()) == before


@pytest.mark.exhaustive
def test_a_shard_s_own_account_is_by_row_or_by_person(tmp_path):
    settings = {"epsilon": 3.0, "delta": 1e-3, "steps": 2, "sampling_rate": 0.3, "account": tmp_path / "account.log"}
    by_person, by_row = (task.shard(fp.ShardSource(partition_id=0, num_partitions=3)) for task in (BY_PERSON, BY_ROW))

    def train(shard):
        return fp.train(BY_PERSON.model(), BY_PERSON.loss, shard, batch_size=18, progress=False, **settings)

    train(by_person)
    with pytest.raises(LogError, match=r"the unit of privacy 'person \(at most 4 rows\)', and the task's is 'record'"):
        train(by_row)
    settings["account"] = tmp_path / "other.log"
    train(by_row)
    with pytest.raises(LogError, match=r"the unit of privacy 'record', and the task's is 'person \(at most 4 rows\)'"):
        train(by_person)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run by person, and its ledger."""
    folder = tmp_path_factory.mktemp("units")
    return run(folder, BY_PERSON, "run"), f"sqlite:///{folder / 'ledger.db'}"


@pytest.mark.exhaustive
def test_a_run_s_folder_report_and_store_name_its_unit(done):
    finished, url = done
    assert json.loads((finished.folder / "config.json").read_text())["unit"] == WORDS
    assert read_history(finished.folder).unit == WORDS
    page = finished.report.read_text()
    assert f"zero-out relation, unit {WORDS}, seen by the server" in page
    assert f'<tr><th scope="row">unit of privacy</th><td>{WORDS}</td></tr>' in page
    assert f"The task's unit of privacy is {WORDS}: everything that the shard holds of one" in page
    for promise in ("patient-level differential privacy", "about <strong>one patient</strong> of one client"):
        assert promise in page
    told = re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL).partition("<h2>Configuration")[0]
    assert set(re.findall(r"[^.>]*\brecords?\b[^.<]*", told)) <= OF_PEOPLE
    console = Console(file=StringIO(), width=200)
    console.print(client_table(read_history(finished.folder)))
    assert f"zero-out relation, unit {WORDS}. Epsilon is" in console.file.getvalue()
    (recorded,) = RunStore(url_in(finished.folder)).runs()
    assert recorded.facts.unit == WORDS
    assert guarantee(recorded.facts)["unit"] == WORDS
    ask = asking(url)
    (listed,) = ask.get("/api/v1/runs").json()["runs"]
    shown = ask.get(f"/api/v1/runs/{listed['run_id']}").json()
    assert shown["unit"] == listed["unit"] == WORDS
    assert f"what one {WORDS} of a client says" in shown["guarantee"]
    assert f'unit="{WORDS}"' in ask.get("/metrics").text
    for certificate in certify(Ledger(url), (), "00" * 32):
        assert spent_words(certificate).endswith(f"at delta 1e-3, unit {WORDS}")
        assert f"{WORDS}: everything that the shard holds of one" in certificate_html(certificate, "a.json")


@pytest.mark.exhaustive
def test_a_plan_names_the_unit_only_where_it_is_no_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def shown(*options, command=("plan",)):
        return " ".join(CliRunner().invoke(app, [*command, *options]).output.split())

    task = ["--task", f"{ROOT / 'tests' / 'flower' / 'visits.py'}:Visits"]
    assert f"at delta 0.001 (budget epsilon 3), unit {WORDS}:" in shown(*task)
    assert f"after 3 rounds, unit {WORDS}" in shown(*task, "--quiet")
    assert f'"unit": "{WORDS}"' in shown(*task, "--json")
    assert ", unit" not in shown("--quiet")
    asking = shown(*task, command=("ask", "count", "--plan"))
    assert "number of patients" in asking and f"of 3 at delta 1e-3, unit {WORDS}. Nothing was asked" in asking
    assert "at delta 1e-4. Nothing" in shown("--task", "cancer", command=("ask", "count", "--plan"))
