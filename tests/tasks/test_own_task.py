"""The how-to for one's own task works as it is written."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedprivacy.tasks import ShardSource, load_task

HOW_TO = (Path(__file__).parents[2] / "docs" / "how-to" / "own-task.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL)


@pytest.mark.exhaustive
def test_the_how_to_runs_as_written(tmp_path):
    (commands,) = re.findall(r"```sh\n(.*?)```", HOW_TO, re.DOTALL)
    (tmp_path / "patients.py").write_text(CODE)
    rng = np.random.default_rng(0)
    age, stay = rng.normal(60, 15, 900), rng.gamma(2, 2.5, 900)
    table = {"hospital": rng.choice(["a", "b", "c", "public"], 900), "age": age, "pressure": rng.normal(130, 20, 900)}
    pd.DataFrame(table | {"stay": stay, "readmitted": (age / 15 + stay / 4 > 5.5).astype(int)}).to_csv(
        tmp_path / "patients.csv"
    )
    for command in commands.splitlines():
        program, *arguments = command.split()
        assert program == "fedprivacy"
        ours = [sys.executable, "-m", "fedprivacy", *arguments, "--seed", "1", "--json"]
        run = subprocess.run(ours, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["accuracy"] > 0.75
    assert 1.9 < summary["max_epsilon"] <= 2.0
    assert len(summary["clients"]) == 3


def test_in_the_how_to_a_record_that_cannot_be_read_changes_no_other_and_makes_nothing_fail(tmp_path):
    (tmp_path / "patients_read.py").write_text(CODE)
    task = load_task(f"{tmp_path}/patients_read.py:Patients")

    def shard(*rows):
        (tmp_path / "patients.csv").write_text("\n".join(["age,pressure,stay,readmitted", *rows]))
        return task.shard(ShardSource(folder=tmp_path))

    usual = ["70,120,3,1", "50,140,9,0"]
    alone = shard(*usual)
    for row in ("x,120,3,1", ",,,0", "1e999,1,1,1", "'; DROP,1,1,0", "70,120,3,yes", "70,120,3,", "70,120,3,7"):
        with_row = shard(*usual, row)
        assert torch.equal(with_row.inputs[:2], alone.inputs) and torch.equal(with_row.targets[:2], alone.targets)
        assert with_row.inputs.dtype is alone.inputs.dtype and with_row.null.tolist() == [False, False, True]


def test_in_the_how_to_a_client_s_table_has_its_shard_s_records_and_those_that_cannot_be_read(tmp_path):
    (tmp_path / "patients_asked.py").write_text(CODE)
    rows = ["a,70,120,3,1", "b,50,140,9,0", "public,1,1,1,1", "a,?,130,4,0", "a,60,130,4,perhaps"]
    (tmp_path / "patients.csv").write_text("\n".join(["hospital,age,pressure,stay,readmitted", *rows]))
    task = load_task(f"{tmp_path}/patients_asked.py:Patients")
    for source, ages in (
        (ShardSource(partition_id=0, num_partitions=3), [70, np.nan, 60]),
        (ShardSource(partition_id=2, num_partitions=3), []),
        (ShardSource(folder=tmp_path), [70, 50, 1, np.nan, 60]),
    ):
        table = task.table(source)
        assert len(table) == len(task.shard(source)) == len(ages)
        assert np.array_equal(table.numbers("age"), ages, equal_nan=True)
