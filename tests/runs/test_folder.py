"""A run's folder says what happened, in valid JSON, and is read back as it was."""

import json
import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from fedprivacy.runs.records.folder import (
    CONFIG,
    RUN_FILE,
    RunFolderError,
    RunWriter,
    read_config,
    read_history,
    read_lines,
)
from fedprivacy.runs.records.store import RECORD, RunStore, url_in
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.runs import RoundResult
from fedprivacy.values.spent import ClientSpent
from tests.flower.blobs import Blobs, plan_of

CHARGED = {PoissonSampledGaussian(0.5, 1.5): 4, PoissonSampledGaussian(1.0, 9.0): 1}


def record(round, epsilon=1.5, budget=3.0, accuracy=0.5, failures=None):
    spent = {"a": ClientSpent("a", epsilon, 1e-5, budget, round, 2 * round, 7, 0.5, 1.5)}
    return RoundResult(round, {"accuracy": accuracy}, spent, ("a",), failures or {})


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_rounds_are_read_back_as_they_were_written_and_what_is_not_finite_is_null(tmp_path):
    write = RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=1.0))
    unbounded = record(2, epsilon=math.inf, budget=math.inf, failures={"a": "no-reply"})
    unbounded = replace(unbounded, participants=(), most_charged=CHARGED)
    records = [record(0), record(1), unbounded, record(3, accuracy=math.nan)]
    for one in records:
        write(one)
    history = read_history(tmp_path)
    assert history.start == records[0] and list(history.rounds[:2]) == records[1:3]
    assert history.settings["noise-multiplier"] == 1.0
    lines = [strict(line) for line in read_lines(tmp_path)[1:]]
    assert lines[1]["max_epsilon"] is None and lines[2]["metrics"]["accuracy"] is None
    assert strict(json.dumps(history.summary()))["accuracy"] is None


def stopped(folder, rounds=3):
    """A run of which so many rounds are written."""
    plan = plan_of(Blobs(), epsilon=2.0, rounds=5)
    write = RunWriter(folder, plan)
    for round in range(rounds + 1):
        write(record(round))
    write.close()
    return plan


def test_what_is_written_is_read_at_once_and_a_run_that_is_killed_loses_nothing_of_it(tmp_path):
    """From a copy of the files as they are while the run goes on, as a killed process leaves them."""
    folder = tmp_path / "P%41 a?mode=ro b#1"
    write = RunWriter(folder, plan_of(Blobs(), epsilon=2.0, rounds=5))
    for number in range(4):
        write(record(number))
        assert read_history(folder).last == record(number)
        shutil.copytree(folder, tmp_path / f"killed-{number}")
        assert read_history(tmp_path / f"killed-{number}").last == record(number)
    write.close()
    assert {path.name for path in folder.iterdir()} == {CONFIG, RUN_FILE, RECORD}, "one whole file, without a log"


def test_a_run_of_an_earlier_version_is_refused_and_not_overwritten_and_one_that_lost_a_round_does_not_go_on(tmp_path):
    (tmp_path / "start.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"it is of an earlier version.*without run\.db; read it with that"):
        read_history(tmp_path)
    with pytest.raises(RunFolderError, match="earlier version"):
        RunWriter(tmp_path, plan_of(Blobs(), epsilon=2.0, rounds=5))
    (tmp_path / "start.json").unlink()
    plan = stopped(tmp_path)
    with pytest.raises(RunFolderError, match=r"run.db' does not hold rounds 1 to 4.*start anew in a new folder"):
        RunWriter(tmp_path, plan, resume_from=4)
    with pytest.raises(RunFolderError, match=r"nowhere' holds no run; name a folder"):
        RunWriter(tmp_path / "nowhere", plan, resume_from=1)
    assert len(read_history(tmp_path).rounds) == 3


def test_two_new_runs_that_begin_in_one_folder_are_not_both_begun(tmp_path):
    """The second would delete the rounds of the first, which are charged."""
    first = RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=1.0))
    with pytest.raises(RunFolderError, match="is still going on, in another process"):
        RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=2.0))
    records = [record(0), record(1)]
    for one in records:
        first(one)
    with pytest.raises(RunFolderError, match="already holds a run"):
        RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=2.0))
    history = read_history(tmp_path)
    assert [history.start, *history.rounds] == records and history.settings["noise-multiplier"] == 1.0


def test_a_store_that_was_only_begun_holds_no_run_and_is_in_nobody_s_way(tmp_path):
    """Another process may look at the folder just before the tables are there, or the run was killed then."""
    RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=1.0)).close()
    (tmp_path / RECORD).write_bytes(b"")
    assert read_lines(tmp_path) == [] and RunStore(url_in(tmp_path)).runs() == []
    with pytest.raises(RunFolderError, match="holds no run"):
        read_history(tmp_path)
    write = RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=2.0))
    write(record(0))
    write(record(1))
    assert read_history(tmp_path).rounds == (record(1),)


def test_a_copy_of_the_file_alone_has_all_rounds_though_a_page_reads_them_at_the_end(tmp_path):
    plan = stopped(tmp_path)
    last = RunWriter(tmp_path, plan, resume_from=3)
    with closing(sqlite3.connect(tmp_path / RECORD, isolation_level=None)) as reader:
        reader.execute("SELECT count(*) FROM recorded_results").fetchall()
        last(record(4))
        last.close()
        (tmp_path / "copy").mkdir()
        shutil.copy(tmp_path / RECORD, tmp_path / "copy")
    assert read_lines(tmp_path / "copy") == read_lines(tmp_path) and len(read_lines(tmp_path)) == 5


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_a_folder_without_a_configuration_is_named(text, tmp_path):
    if text is not None:
        (tmp_path / CONFIG).write_text(text)
    with pytest.raises(RunFolderError, match="holds no run that could go on"):
        read_config(tmp_path)
