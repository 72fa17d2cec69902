"""Tasks: what is loaded, and under which name; what a faulty one is told; those of the package; and one's own."""

import importlib.util
import json
import os
import py_compile
import re
from hashlib import sha256

import numpy as np
import pandas as pd
import pytest
import torch

import fedprivacy as fp
from fedprivacy.tasks import ShardSource, TaskError, load_task
from fedprivacy.tasks.cancer import MEASUREMENTS
from fedprivacy.tasks.cells import TableError
from fedprivacy.tasks.loader import allowed_tasks, open_task
from fedprivacy.tasks.opened import is_task
from tests.commands.running import fedprivacy
from tests.flower.blobs import Blobs
from tests.house import ROOT

# --- a data owner's list of tasks ---

TASK = "from tests.flower.blobs import Blobs\nclass Mine(Blobs):\n    name = 'mine'\n"


def test_a_file_with_its_hash_is_loaded_and_a_changed_one_is_not_run(tmp_path):
    file, entry = tmp_path / "mine.py", f"{tmp_path}/mine.py:Mine@sha256:{sha256(TASK.encode()).hexdigest()}"
    file.write_text(TASK)
    (allowed,) = allowed_tasks([entry]).values()
    assert allowed.load().name == "mine"
    (tmp_path / "changed").mkdir()
    changed = entry.replace(str(tmp_path), f"{tmp_path}/changed")
    (tmp_path / "changed" / "mine.py").write_text(TASK + "open(__file__ + '.ran', 'w')\n")
    (allowed,) = allowed_tasks([changed]).values()
    with pytest.raises(TaskError, match=r"with SHA-256 .*, but"):
        allowed.load()
    assert not (tmp_path / "changed" / "mine.py.ran").exists()


def test_what_was_hashed_is_what_runs_whatever_bytecode_lies_beside_it(tmp_path):
    """Python takes a cached file that carries the source's time and size; its content nobody has hashed."""
    file = tmp_path / "mine.py"
    other = TASK.replace("'mine'", "'evil'")
    file.write_text(other)
    py_compile.compile(str(file), importlib.util.cache_from_source(str(file)))
    stat = file.stat()
    file.write_text(TASK)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (allowed,) = allowed_tasks([f"{file}:Mine@sha256:{sha256(TASK.encode()).hexdigest()}"]).values()
    assert allowed.load().name == "mine"


@pytest.mark.parametrize(
    "entry",
    ["unknown", ":x", "mine.py:", "digits@sha256:" + "0" * 64, "a.py:B@sha256:12", "a.py:B@md5:" + "0" * 64, "a.py:B@"],
)
def test_an_entry_that_names_no_task_is_refused(entry):
    with pytest.raises(TaskError, match="task is"):
        allowed_tasks([entry])


def test_two_files_cannot_go_by_one_name():
    with pytest.raises(TaskError, match=r"two tasks go by the name 'a\.py:B'"):
        allowed_tasks(["one/a.py:B", "two/a.py:B"])


# --- faulty tasks ---

SOURCE = ShardSource(partition_id=0, num_partitions=2)


def test_an_incomplete_task_is_told_what_it_lacks(tmp_path):
    file = tmp_path / "half.py"
    file.write_text("class Half:\n    name = dataset = metric = 'half'\n    def model(self): ...\n")
    with pytest.raises(
        TaskError, match=r"lacks evaluate, loss, nominal_shard_size, partition, recipe, shard, shard_size"
    ):
        load_task(f"{file}:Half")


class Silent(fp.Task):
    """It says nothing of tables."""

    model = shard = None


def test_a_task_may_do_without_a_table_and_is_told_what_to_write_when_it_is_asked_for():
    for task in (Silent(), Blobs()):  # of our class, and of somebody's own
        assert is_task(task) and not open_task(task=task).offers("table")
        with pytest.raises(TaskError, match=rf"^task {task.name} offers no table, .*table\(self, source\).*read_table"):
            open_task(task=task).table(SOURCE)
    with pytest.raises(TableError, match="task silent offers no table"):
        Silent().table(SOURCE)


def test_an_error_of_a_class_without_a_file_is_told_too():
    """As in a notebook's cell, whose classes are of no file."""
    cell = {"fp": fp, "Blobs": Blobs}
    exec("class Typed(Blobs):\n    def table(self, source):\n        raise KeyError('age')", cell)
    with pytest.raises(TaskError, match=r"table\(\) fails: KeyError: 'age' \(<string>, line 3\)"):
        open_task(task=cell["Typed"]()).table(SOURCE)


def test_a_table_that_fails_or_is_none_is_told_with_the_method():
    class Failing(Blobs):
        def table(self, source):
            return self.answer()

    task = Failing()
    for answer, words in (
        (lambda: {"age": [70]}, "table() returns a dict; return a fedprivacy.Table."),
        (lambda: fp.Table({"age": [70], "sex": []}), "table() fails: TableError: the table's columns differ in length"),
    ):
        task.answer = answer
        with pytest.raises(TaskError) as error:
            open_task(task=task).table(SOURCE)
        assert str(error.value).startswith(f"task blobs: {words}")


# --- the tasks of the package ---

SPLITS = {"digits": 10, "cancer": 5}


def tables(name, folder, part=1):
    """A client's table, of a simulation and from a deployed client's folder."""
    task, simulated = load_task(name), ShardSource(partition_id=part, num_partitions=SPLITS[name])
    task.write_folder(simulated, folder)
    return task.table(simulated), task.table(ShardSource(folder=folder))


def test_a_row_of_the_digits_table_is_a_record_of_the_shard(tmp_path):
    shard = load_task("digits").shard(ShardSource(partition_id=1, num_partitions=SPLITS["digits"]))
    for table in tables("digits", tmp_path):
        assert len(table) == len(shard) and len(table.columns) == 65
        assert table.codes("digit", range(10)).tolist() == shard.targets.tolist()
        pixels = [[table.numbers(f"pixel {row},{column}") / 16 for column in range(8)] for row in range(8)]
        assert np.array_equal(np.moveaxis(pixels, 2, 0)[:, None], shard.inputs.numpy())
    assert load_task("digits").partition(10) == "10 parts, Dirichlet alpha 1, seed 42"


def test_the_columns_of_cancer_have_the_names_that_scikit_learn_gives_them():
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    assert tuple(bunch.feature_names) == MEASUREMENTS and list(bunch.target_names) == ["malignant", "benign"]


@pytest.mark.parametrize("cell", ["?", "", "nan", "1e400", 1e300, np.nan, -7], ids=repr)
@pytest.mark.parametrize("array", ["features", "labels"])
@pytest.mark.parametrize("name", SPLITS)
def test_one_cell_of_a_client_s_archive_changes_no_other_record(name, array, cell, tmp_path):
    """Also where whoever wrote the archive made texts of all cells for one that is no number."""
    task, source = load_task(name), ShardSource(folder=tmp_path)
    task.write_folder(ShardSource(partition_id=1, num_partitions=SPLITS[name]), tmp_path)
    usual = task.shard(source)
    with np.load(tmp_path / "records.npz") as archive:
        arrays = dict(archive)
    changed = arrays[array].astype("U32" if isinstance(cell, str) else np.float64)
    changed[(5,) if array == "labels" else (5,) + (3,) * (changed.ndim - 1)] = cell
    np.savez(tmp_path / "records.npz", **arrays | {array: changed})
    shard = task.shard(source)
    others = torch.arange(len(usual)) != 5
    assert len(shard) == len(usual) and shard.null[others].sum() == 0
    assert torch.equal(shard.inputs[others], usual.inputs[others]) and shard.inputs.dtype is usual.inputs.dtype
    assert torch.equal(shard.targets[others], usual.targets[others]) and shard.targets.dtype is usual.targets.dtype
    if cell in ("?", "", "nan"):
        assert shard.null.tolist().index(True) == 5


def test_a_client_without_folder_or_part_is_told_what_to_give():
    with pytest.raises(ValueError, match="give it a folder"):
        load_task("digits").shard(ShardSource())


# --- one's own ---

HOW_TO = (ROOT / "docs/how-to/own-task.md").read_text()
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
