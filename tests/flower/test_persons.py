"""Whole runs by person: what counts records counts persons, and a person costs what a record costs."""

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
from tests.flower.visits import PATIENTS, M, Visits
from tests.house import ROOT
from tests.terminal import CliRunner

pytestmark = pytest.mark.usefixtures("undrawn")


WORDS = "patient (at most 4 rows)"


def run(folder, task=None, out="run", **settings):
    """A run, on the ledger of its folder."""
    ledger = f"sqlite:///{folder / 'ledger.db'}"
    return fp.simulate(task or Visits(), seed=1, out=folder / out, progress=False, ledger=ledger, **settings)


DRAWN = Visits(rows_per_step=2, person_gradient="sum")


@pytest.mark.parametrize("task", [Visits(public=False), pytest.param(DRAWN, marks=pytest.mark.exhaustive)])
def test_a_person_costs_what_a_record_costs(tmp_path, task):
    done = run(tmp_path, task, local_evaluation=1, augmentation_multiplicity=3)
    for client in done.clients:
        assert client["sampling_rate"] == 0.3
        stated = fp.epsilon(
            sampling_rate=0.3, noise_multiplier=client["noise_multiplier"], steps=client["steps"], delta=1e-3
        )
        assert client["epsilon"] == pytest.approx(stated, rel=1e-3)
        assert client["epsilon"] <= 3.0
    assert done.metrics["accuracy"] > 0.7
    assert abs(done.metrics["clients_records"] - 3 * PATIENTS) < PATIENTS, "persons are counted, and not visits"


def test_a_shard_that_is_not_of_the_task_s_unit_is_refused_before_anything_is_charged(tmp_path):
    for most_rows, unit, words in (
        (None, None, r"its records have up to 1 row, and the task's unit is patient \(at most 4 rows\)"),
        (2, None, r"its records have up to 2 rows, .* most_rows=4"),
        (M, fp.Unit(), r"its records are persons, .* is a row; name it: unit = fp.Unit\('patient', 4\)"),
        (1, fp.Unit(), "its records are persons, and the task's unit is a row"),
    ):
        with pytest.raises(fp.ConfigError, match=words):
            run(tmp_path, Visits(unit=unit, most_rows=most_rows))
    assert not Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").dataset_ids()


def test_a_use_of_rows_that_there_is_not_is_refused_before_anything_is_charged(tmp_path):
    for task, words in (
        (Visits(rows_per_step=5), "whose rows_per_step is 5; give a whole number from 1 to 4, the most rows"),
        (Visits(person_gradient="total"), "whose person_gradient is 'total'; choose one of mean, sum"),
        (
            Visits(unit=fp.Unit(), most_rows=None, rows_per_step=2),
            r"whose rows_per_step is 2, and a record is one row; .* in a task unit = fp.Unit\('patient', 8\)",
        ),
    ):
        with pytest.raises(fp.ConfigError, match=words):
            run(tmp_path, task)


BY_PERSON, BY_ROW = Visits(), Visits(unit=fp.Unit(), most_rows=None)


@pytest.mark.exhaustive
def test_a_run_by_another_unit_is_refused_on_the_ledger_of_the_first(tmp_path):
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


@pytest.mark.exhaustive
def test_folder_table_store_page_metrics_and_certificates_of_a_run_name_its_unit(tmp_path):
    finished, url = run(tmp_path), f"sqlite:///{tmp_path / 'ledger.db'}"
    console = Console(file=StringIO(), width=200)
    console.print(client_table(read_history(finished.folder)))
    assert f"zero-out relation, unit {WORDS}. Epsilon is" in console.file.getvalue()
    (recorded,) = RunStore(url_in(finished.folder)).runs()
    assert recorded.facts.unit == guarantee(recorded.facts)["unit"] == WORDS
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
def test_a_plan_names_the_unit_only_where_it_is_no_record():
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
