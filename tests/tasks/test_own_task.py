"""The how-to for one's own task works as it is written."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedprivacy.tasks import ShardSource, load_task
from tests.commands.running import fedprivacy

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
        run = fedprivacy(*arguments, "--seed", 1, "--json", cwd=tmp_path)
    summary = json.loads(run.stdout)
    assert summary["accuracy"] > 0.75
    assert 1.9 < summary["max_epsilon"] <= 2.0
    assert len(summary["clients"]) == 3


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
