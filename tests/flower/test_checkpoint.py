"""A checkpoint is read back as it was saved, and names what it lacks.

Kills at every moment: tests/faults. Runs that are stopped and go on: tests/flower/test_every_way.py.
"""

import json
import random
import shutil
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from safetensors.numpy import save_file

from fedprivacy._support.random_state import RandomState
from fedprivacy.commands.app import app
from fedprivacy.flower import PrivateStrategy
from fedprivacy.flower.server.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    load_checkpoint,
    read_state,
    save_checkpoint,
    unkept_attributes,
    write_state,
)
from fedprivacy.runs.records.folder import RunFolderError, read_config, read_lines
from fedprivacy.runs.settings.configuration import ConfigError
from tests.commands.running import unwrapped
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.runs import stop_once_in_round_two
from tests.terminal import CliRunner


def test_an_app_that_cannot_go_on_does_not_start_anew_instead(tmp_path):
    with pytest.raises(ConfigError, match=f"resume is '{tmp_path}', but this app starts every run anew"):
        PrivateStrategy(FedAvg(), plan_of(BLOBS, resume=str(tmp_path)))


def a_checkpoint(**changes):
    arrays = {"z": np.arange(6, dtype=np.float32).reshape(2, 3).T, "a": np.zeros(0), "empty shape": np.array(1.5)}
    return replace(
        Checkpoint(
            run_id="run",
            round=3,
            earlier_runs=2,
            arrays=arrays,
            average={"z": arrays["z"] + 1},
            iterates=3,
            clipping_norms={"client-0": 0.1 + 0.2},
            left_out=frozenset({"client-1"}),
            clock=0.1 + 0.2,
            strategy={},
            random=RandomState.now(),
        ),
        **changes,
    )


STATE = {
    "none": None,
    "true": True,
    "whole": 3,
    "inf": float("inf"),
    "text": "a/b",
    "numpy's": np.float64(0.1),
    "array": np.array([1, 2], np.int64),
    "momentum": [np.zeros((2, 2), np.float32), np.array([True, False])],
    "empty": [],
    "moments": {"z": np.ones(2), "a": np.zeros(3)},
    "record": ArrayRecord({"z": Array(np.ones(2)), "a": Array(np.zeros(3, np.float32))}),
}


def test_a_checkpoint_is_read_back_as_it_was_saved(tmp_path):
    saved = a_checkpoint(strategy=STATE)
    drawn = [random.gauss(0, 1), np.random.normal(), torch.rand(1)]
    save_checkpoint(tmp_path, a_checkpoint(round=2))
    save_checkpoint(tmp_path, saved)
    read = load_checkpoint(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    for field in fields(Checkpoint):
        if field.name not in {"arrays", "average", "strategy"}:
            assert getattr(read, field.name) == getattr(saved, field.name)
    for group in ("arrays", "average"):
        assert list(getattr(read, group)) == list(getattr(saved, group))
        np.testing.assert_equal(getattr(read, group), getattr(saved, group))
    assert [*read.strategy] == [*STATE]
    assert [type(value) for value in read.strategy.values()] == [type(value) for value in STATE.values()]
    assert list(read.strategy["record"]) == ["z", "a"] == list(read.strategy["moments"])
    assert read.strategy["record"]["a"].data == STATE["record"]["a"].data
    plain = {name: value for name, value in STATE.items() if name != "record"}
    np.testing.assert_equal({name: read.strategy[name] for name in plain}, plain)
    read.random.restore()
    assert [random.gauss(0, 1), np.random.normal(), torch.rand(1)] == drawn


def test_a_strategy_may_speak_for_itself(tmp_path):
    class Counting(FedAvg):
        rounds = frozenset()

        def state_dict(self):
            return {"rounds": np.array(sorted(self.rounds), np.int64)}

        def load_state_dict(self, state):
            self.rounds = frozenset(state["rounds"].tolist())

    first, second = Counting(), Counting()
    first.rounds = frozenset({1, 5})
    save_checkpoint(tmp_path, a_checkpoint(strategy=read_state(first)))
    write_state(second, load_checkpoint(tmp_path).strategy)
    assert second.rounds == {1, 5}


def test_a_torn_checkpoint_another_file_and_another_version_are_named_with_the_remedy(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, a_checkpoint())
    whole = (tmp_path / CHECKPOINT).read_bytes()
    for length in (0, 7, 8, 200, len(whole) // 2, len(whole) - 1):
        (tmp_path / CHECKPOINT).write_bytes(whole[:length])
        with pytest.raises(RunFolderError, match=r"checkpoint.safetensors' is not a checkpoint.*start anew"):
            load_checkpoint(tmp_path)
    save_file({"weight": np.zeros(2)}, tmp_path / CHECKPOINT)
    with pytest.raises(RunFolderError, match="is not a checkpoint"):
        load_checkpoint(tmp_path)
    monkeypatch.setattr("fedprivacy.flower.server.checkpoint._VERSION", 99)
    save_checkpoint(tmp_path, a_checkpoint())
    monkeypatch.undo()
    with pytest.raises(RunFolderError, match="its version is 99, and this is version 1"):
        load_checkpoint(tmp_path)


def test_what_no_checkpoint_keeps_of_a_strategy_is_named():
    class Speaking(SimpleNamespace):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    kept = {"number": 1, "words": "x", "nothing": None, "array": np.zeros(2), "arrays": [np.zeros(2)], "call": len}
    lost = {"names": {"a"}, "lists": [[1]], "objects": np.array([None]), "mixed": {"a": 1.0}}
    assert unkept_attributes(SimpleNamespace(**kept)) == []
    assert unkept_attributes(SimpleNamespace(**kept, **lost)) == sorted(lost)
    assert unkept_attributes(Speaking(**lost)) == []
    assert read_state(SimpleNamespace(**kept, **lost)).keys() == kept.keys() - {"call"}


def simulate(*options, code=0):
    """The command line in this process."""
    run = CliRunner().invoke(app, ["simulate", *map(str, options)], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert run.exit_code == code, run.output
    return run


def test_a_run_goes_on_from_the_command_line_with_its_own_settings_and_no_others(tmp_path, monkeypatch):
    stop_once_in_round_two(monkeypatch)
    simulate("--rounds", "4", "--clients", "4", "--strategy", "fedadam", "--out", "run", code=130)
    stopped = Path("run").rename(tmp_path / "moved")
    planned = CliRunner().invoke(app, ["plan", "--json", "--resume", str(stopped)])
    assert json.loads(planned.stdout)["noise_multiplier"] == read_config(stopped).noise_multiplier
    before = read_lines(stopped)
    refused = simulate("--resume", stopped, "--rounds", "9", "--strategy", "fedadam", "--epsilon", "5", code=2)
    assert refused.stderr.count("error:") == 2
    assert "rounds is 9, but the run goes on with its own, 4; leave rounds open" in refused.stderr
    assert "epsilon is 5.0, but the run goes on with its own, 3.0" in refused.stderr
    refused = simulate("--resume", stopped, "--client-terms", '{"client-0": {"epsilon": 1}}', code=2)
    assert "the run goes on with its own, which were left open" in unwrapped(refused.stderr)
    assert read_lines(stopped) == before
    broken = shutil.copytree(stopped, tmp_path / "broken")
    for said in ("Going on after round 1 of 4.", "All 4 rounds are finished already: nothing is run again."):
        done = simulate("--resume", stopped, "--clients", "4")  # its own setting may be repeated
        assert said in done.stderr and "after 4 rounds" in done.stdout
    assert "holds no run that could go on" in simulate("--resume", tmp_path / "nothing", code=2).stderr
    for file in broken.glob("ledger.db*"):
        file.unlink()
    failed = simulate("--resume", broken, code=2)
    assert failed.stderr.count("error:") == 1
    assert f"To go on after the last finished round: fedprivacy simulate --resume {broken}\n" in failed.stderr
    (broken / "checkpoint.safetensors").unlink()
    assert "Start anew in a new folder" in simulate("--resume", broken, code=2).stderr
