"""`fedprivacy doctor`, from the command line, as a user types it."""

import json
import re
from pathlib import Path

import pytest

from tests.commands.running import fedprivacy

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "own-task.md"

NETS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.25))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.first(x) - self.first(x).mean(0))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(30, 8), nn.Linear(8, 1)

    def forward(self, ids):
        return self.head(self.words(ids).mean(1))
"""

TASK = """
from torch import nn
from fedprivacy.tasks.cancer import Cancer


class Mine(Cancer):
    name = "mine"

    def model(self):
        net = nn.Sequential(nn.Linear(30, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        return net
"""


@pytest.fixture
def doctor(tmp_path):
    """The command, in a folder with models and tasks, without the spaces of its layout: (output, errors)."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "tasks.py").write_text(TASK)

    def run(*arguments, code):
        done = fedprivacy("doctor", *arguments, cwd=tmp_path, code=code, columns=80)
        return " ".join(done.stdout.split()), done.stderr

    return run


def report(doctor, *arguments, code):
    return json.loads(doctor(*arguments, "--json", code=code)[0])


NET = ("nets.py:Net", "--input-shape", "1,8,8")


def test_every_problem_has_its_layer_and_fix_and_what_to_paste_fits_the_terminal_and_changes_no_file(doctor, tmp_path):
    printed, _ = doctor(*NET, code=1)
    for words in (
        *("nets.py:Net cannot be trained with DP-SGD: 2 problems", "once it is mended", "--fix shows the mended model"),
        *("parameters 243 trained, 0 frozen", "features.1", "is a BatchNorm2d, whose", "use GroupNorm (--fix)"),
    ):
        assert words in printed, words
    printed = fedprivacy("doctor", *NET, "--fix", cwd=tmp_path, code=1, columns=80).stdout
    for words in ("GroupNorm(4, 16", "Dropout(p=0.0", "The mended model is sound", "\n    model = made_private(Net())"):
        assert words in printed, words
    assert "from fedprivacy.gradients import made_private" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert {path.name for path in tmp_path.iterdir()} <= {"nets.py", "tasks.py", "__pycache__"}
    assert (tmp_path / "nets.py").read_text() == NETS


@pytest.mark.exhaustive
def test_what_is_pasted_into_a_task_makes_it_sound(doctor, tmp_path):
    pasted = report(doctor, "tasks.py:Mine", "--fix", code=1)["fixed"]
    assert pasted["sound"] and pasted["method"]
    line = int(re.search(r"in line (\d+) of tasks.py", pasted["place"])[1]) - 1
    assert TASK.splitlines()[line].strip() == "return net"
    assert pasted["line"] == "return made_private(net)"
    (tmp_path / "mended.py").write_text(pasted["import"] + TASK.replace("return net", pasted["line"]))
    assert report(doctor, "mended.py:Mine", code=0)["sound"]


def test_a_model_that_mixes_records_when_it_is_run_is_to_be_mended_by_hand(doctor):
    found = report(doctor, "nets.py:Centred", "--input-shape", "6", "--fix", code=1)
    assert [(p["layer"], p["kind"], p["fixable"]) for p in found["problems"]] == [("", "mixes-records", False)]
    assert found["fixed"] is None and not report(doctor, "nets.py:Centred", code=0)["ran"]


TABLES = """
import pandas, torch, fedprivacy as fp

class Guessing(fp.Task):
    recipe = fp.Recipe(clients=2, delta=1e-3)
    def model(self): return torch.nn.Linear(1, 2)
    def shard(self, source):
        rows = pandas.read_csv((source.folder or __import__("pathlib").Path(__file__).parent) / "people.csv")
        return fp.Shard(torch.tensor(rows[["age"]].to_numpy()).float(), torch.tensor((rows.ill == 1).to_numpy()).long())

class Careful(Guessing):
    def shard(self, source):
        file = (source.folder or __import__("pathlib").Path(__file__).parent) / "people.csv"
        return fp.load_table(file, target="ill", classes=[0, 1])

class Words(Guessing):
    def model(self): return torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Flatten(), torch.nn.Linear(6, 2))
    def shard(self, source): return fp.Shard(torch.ones(9, 2).long(), torch.ones(9).long())

class Lost(Words):
    def shard(self, source): return fp.Shard(torch.ones(9, 2).long(), torch.full((9,), 5), null=False)

class Said(Words):
    def shard(self, source): return fp.Shard(torch.ones(9, 2).long(), torch.ones(9).long(), null=False)
"""


@pytest.fixture
def tables(doctor, tmp_path):
    (tmp_path / "tables.py").write_text(TABLES)
    (tmp_path / "people.csv").write_text("age,ill\n" + "".join(f"{40 + n},{n % 2}\n" for n in range(30)))
    return doctor


@pytest.mark.exhaustive
def test_a_reader_that_lets_one_cell_change_other_records_is_found_with_the_column(tables, tmp_path):
    found = report(tables, "tables.py:Guessing", code=1)
    assert not found["sound"] and not found["problems"]
    assert {(one["column"], one["what"]) for one in found["cells"]["misread"]} == {
        ("age", "reading fails for everybody"),
        ("ill", "other records change"),
    }
    printed, _ = tables("tables.py:Guessing", code=1)
    assert "column 'ill': a text in one cell, and other records change" in printed
    assert "fedprivacy.load_table" in printed and "The model of tables.py:Guessing is sound" in printed
    assert report(tables, "tables.py:Careful", code=0)["cells"]["columns"] == 2
    elsewhere = tmp_path / "client"
    elsewhere.mkdir()
    (elsewhere / "people.csv").write_text("age,ill,sex\n" + "".join(f"{40 + n},{n % 2},f\n" for n in range(30)))
    assert report(tables, "tables.py:Guessing", "--data-folder", str(elsewhere), code=1)["cells"]["columns"] == 3
    tables("tables.py:Careful", "--data-folder", "nowhere", code=2)


@pytest.mark.exhaustive
def test_the_owner_is_told_which_cells_cannot_be_read_and_whole_numbers_must_say_which_rows_are_null(tables, tmp_path):
    (tmp_path / "people.csv").write_text("age,ill\n" + "".join(f'"{40 + n},5",{n % 2}\n' for n in range(30)))
    (sheet,) = report(tables, "tables.py:Careful", code=1)["sheets"]
    assert (sheet["rows"], sheet["readable"]) == (30, 0) and sheet["unreadable"][0]["remedy"] == 'decimal=","'
    printed, _ = tables("tables.py:Careful", code=1)
    assert "for you alone" in printed and "30 cells, a number with a decimal comma, like '99,9'" in printed
    assert "null=False if none does" in report(tables, "tables.py:Words", code=1)["null_rows"]
    assert "does not say which rows are null" in tables("tables.py:Words", code=1)[0]
    assert report(tables, "tables.py:Said", code=0)["null_rows"] == ""
    assert "9 of 9 records that were tried have no gradient" in tables("tables.py:Lost", code=1)[0]
    assert "set allow_null = True in the task" in tables("tables.py:Lost", code=1)[0]


def test_the_task_of_the_how_to_is_examined_without_its_table(doctor, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    (tmp_path / "patients.py").write_text(code)
    assert "doctor patients.py:Patients" in HOW_TO.read_text()
    assert "task.shard() fails (TableError: " in doctor("patients.py:Patients", code=0)[0]
    assert not report(doctor, "patients.py:Patients", code=0)["ran"]
    assert report(doctor, "patients.py:Patients", "--input-shape", "3", code=0)["ran"]


def test_what_makes_gradients_slow_is_shown_with_its_line(doctor, tmp_path):
    source = NETS.replace(
        "return self.head(self.words(ids).mean(1))",
        "return self.head(self.words(ids * 1 if ids.any() else ids).mean(1))",
    )
    (tmp_path / "slow.py").write_text(source)
    obstacle = report(doctor, "slow.py:Text", "--input-shape", "12", "--input-integers", code=0)["obstacle"]
    line = 1 + next(i for i, line in enumerate(source.splitlines()) if "ids.any()" in line)
    assert obstacle["place"].endswith(f"slow.py:{line}")
    printed, _ = doctor("slow.py:Text", "--input-shape", "12", "--input-integers", code=0)
    assert "slow because" in printed and f"slow.py:{line}" in printed.replace(" ", "") and "torch.where" in printed
    assert report(doctor, "nets.py:Text", "--input-shape", "12", "--input-integers", code=0)["obstacle"] is None
