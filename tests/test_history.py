"""A run's folder says what happened, in valid JSON, and is read back as it was."""

import json
import math

import pytest

from fedprivacy.accountant import ClientSpent
from fedprivacy.history import ROUNDS, RunFolderError, RunWriter, read_history
from fedprivacy.rounds import RoundRecord
from tests.flower.blobs import Blobs, plan_of


def record(round, epsilon=1.5, budget=3.0, accuracy=0.5, failures=None):
    spent = {"a": ClientSpent("a", epsilon, 1e-5, budget, round, 2 * round, 7, 0.5)}
    return RoundRecord(round, {"accuracy": accuracy}, spent, ("a",), failures or {})


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_rounds_are_read_back_as_they_were_written(tmp_path):
    write = RunWriter(tmp_path / "run", plan_of(Blobs(), noise_multiplier=1.0))
    records = [record(0), record(1), record(2, failures={"b": "no-reply"})]
    for one in records:
        write(one)
    history = read_history(tmp_path / "run")
    assert history.start == records[0]
    assert list(history.rounds) == records[1:]
    assert history.last == records[2]
    assert history.settings["noise-multiplier"] == 1.0


def test_what_is_not_finite_becomes_null_and_comes_back(tmp_path):
    write = RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=1.0))
    write(record(0))
    write(record(1, epsilon=math.inf, budget=math.inf, accuracy=math.nan))
    line = strict((tmp_path / ROUNDS).read_text())
    assert line["metrics"]["accuracy"] is None and line["max_epsilon"] is None
    summary = strict(json.dumps(read_history(tmp_path).summary()))
    assert summary["accuracy"] is None and summary["clients"][0]["epsilon"] is None
    assert read_history(tmp_path).last.spent["a"].epsilon == math.inf


def test_a_run_that_never_began_leaves_its_folder_free(tmp_path):
    RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=1.0))
    with pytest.raises(RunFolderError, match="holds no run"):
        read_history(tmp_path)
    write = RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=2.0))
    write(record(0))
    write(record(1))
    with pytest.raises(RunFolderError, match="already holds a run"):
        RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=1.0))
