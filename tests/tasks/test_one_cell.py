"""Every documented task and every reader of ours: one cell is changed, and all other records stay, bit for bit."""

import gzip
import re
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import fedprivacy as fp
from fedprivacy.tasks import load_task, one_cell
from fedprivacy.tasks.one_cell import CELLS

DOCS = Path(__file__).parents[2] / "docs"
ROWS = 12
MOMENTS = [datetime(2020, 1, 1)] * 20  # noqa: DTZ001 - a table has no zone


def try_cells(task, folder, patience=600.0):
    """Try every column, however slow the machine is."""
    return one_cell.try_cells(task, folder, patience)


def documented():
    """The code of every page whose task reads a table alone, by page and number.

    The page on images reads files, too, see test_images_page; a notebook's code goes over several cells.
    """
    pages = [page for page in sorted(DOCS.rglob("*.md")) if "def shard" in page.read_text()]
    for page in pages:
        if page.stem == "images" or page.parent.name == "notebooks":
            continue
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            if "def shard" in code and ".csv" in code:
                yield pytest.param(page, code, id=f"{page.stem}-{number}")


def made_up(code):
    """A table with the columns that the code names, of as many hospitals, sites and classes as it has."""
    rng = np.random.default_rng(0)
    columns = {
        "hospital": ["a", "b", "c"] * ROWS,
        "site": [0, 1, 0] * ROWS,
        "text": [f"the nurse was {word}" for word in ("kind", "cold", "again")] * ROWS,
        "label": [0, 1, 1] * ROWS,
        "readmitted": [0, 1, 0] * ROWS,
        "disease": [1, 0, 1] * ROWS,
        **{name: rng.integers(1, 100, 3 * ROWS).tolist() for name in ("age", "pressure", "stay", "chol")},
    }
    for name in re.findall(r'"(\w+)"', code):
        columns.setdefault(name, columns["age"])
    return columns


def written(file, columns):
    lines = zip(*columns.values(), strict=True)
    file.write_text("\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines), ""]))


class Tokenizer:
    """Stands for one of transformers': each text by itself, into so many ids."""

    @classmethod
    def from_pretrained(cls, folder):
        return cls()

    def __call__(self, texts, max_length, **_):
        ids = torch.tensor([[1 + sum(map(ord, text)) * (i + 1) % 10 for i in range(max_length)] for text in texts])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("page", "code"), documented())
def test_in_a_documented_task_one_cell_changes_no_other_record(page, code, tmp_path):
    code = re.sub(r"^from (peft|transformers) .*\n", "", code, flags=re.MULTILINE)
    (name,) = re.findall(r"[\w-]+\.csv", code)[:1]
    written(tmp_path / name, made_up(code))
    (tmp_path / f"{page.stem.replace('-', '_')}_cells.py").write_text(code)
    (task_name,) = re.findall(r"class (\w+)\(fp\.Task\)", code)
    task = load_task(f"{tmp_path / page.stem.replace('-', '_')}_cells.py:{task_name}")
    if "AutoTokenizer" in code:
        sys.modules[type(task).__module__].AutoTokenizer = Tokenizer
    folder = tmp_path / "hospital"
    folder.mkdir()
    written(folder / name, made_up(code))
    trial = try_cells(task, folder)
    assert not trial.misread and not trial.untried and trial.columns > 3, trial


class Own(fp.Task):
    """A task on one table, whose reader is the test's."""

    def __init__(self, read, table=None, **public):
        self.read, self._table = read, table
        for name, value in public.items():
            setattr(self, name, value)

    def model(self):
        return torch.nn.Linear(1, 2)

    def shard(self, source):
        return self.read(next(source.folder.glob("*.csv"), None) or source.folder / "people.parquet")

    def table(self, source):
        return fp.read_table(source.folder / "people.csv") if self._table is None else self._table(source.folder)


FEATURES = {"age": fp.Number(60, 10, limit=3), "sex": fp.Category(["f", "m"])}
PRIVATE = {"shard_sizes_public": False, "nominal_shard_size": 20}


def by_load_table(file):
    return fp.load_table(file, target="ill", classes=[0, 1], features=FEATURES)


def by_read_table(file):
    table = fp.read_table(file)
    inputs, labels = torch.tensor(table.numbers("age")).float()[:, None], torch.tensor(table.codes("ill", [0, 1]))
    return fp.Shard(inputs, labels, null=(labels < 0) | inputs.isnan()[:, 0])


def as_frame(file):
    import pandas as pd

    return pd.read_csv(file)


def numbers_of(column):
    import pandas as pd

    return pd.to_numeric(column, errors="coerce")


def by_pandas(file):
    rows = as_frame(file)
    return fp.Shard(torch.tensor(rows.age.to_numpy())[:, None].float(), torch.tensor((rows.ill == 1).to_numpy()).long())


def standardised(file):
    shard = by_load_table(file)
    return fp.Shard(shard.inputs - shard.inputs.mean(0), shard.targets, null=False)


def leaving_out(file):
    shard = by_load_table(file)
    return fp.Shard(shard.inputs[~shard.null], shard.targets[~shard.null])


def imputing_the_median(file):
    """Nobody is missing in the first rows."""
    ages = numbers_of(as_frame(file).age)
    return fp.Shard(torch.tensor(ages.fillna(ages.median()).to_numpy())[:, None].float(), torch.zeros(len(ages)))


def after_the_row_before(file):
    """A feature of the row before, of a column that says nothing of its own row."""
    ages = numbers_of(as_frame(file).age).shift(1).fillna(0.0)
    return fp.Shard(torch.tensor(ages.to_numpy())[:, None].float(), by_read_table(file).targets)


def without_duplicates(file):
    frame = as_frame(file).astype(str).drop_duplicates(["age", "sex"])
    ages = numbers_of(frame.age).fillna(0.0)
    return fp.Shard(torch.tensor(ages.to_numpy())[:, None].float(), torch.zeros(len(frame)))


class Remembering(fp.Task):
    """A task whose model has a buffer that depends on all records that were read."""

    kept = torch.zeros(1)

    def model(self):
        model = torch.nn.Linear(1, 2)
        model.register_buffer("centre", self.kept)
        return model

    def shard(self, source):
        shard = by_read_table(source.folder / "people.csv")
        self.kept = shard.inputs.nanmean(0)
        return shard


class Weighing(Remembering):
    """A task whose loss has weights that depend on all records that were read."""

    def model(self):
        return torch.nn.Linear(1, 2)

    def loss(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none") * self.kept


def drawing(file):
    shard = by_read_table(file)
    return fp.Shard(shard.inputs + torch.randn(len(shard), 1), shard.targets)


@pytest.fixture
def people(tmp_path):
    columns = {"age": [40 + n for n in range(30)], "sex": ["f", "m"] * 15, "ill": [0, 1, 1] * 10}
    written(tmp_path / "people.csv", columns)
    return tmp_path


def problems(trial):
    return {(one.column, one.what) for one in trial.misread}


@pytest.mark.parametrize("read", [by_load_table, pytest.param(by_read_table, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("public", [{}, pytest.param(PRIVATE, marks=pytest.mark.exhaustive)], ids=["public", "private"])
def test_our_readers_read_each_cell_by_itself(people, read, public):
    trial = try_cells(Own(read, **public), people)
    assert (trial.columns, trial.left, trial.misread, trial.untried) == (3, 0, (), "")


def test_what_depends_on_all_records_is_found(people):
    assert problems(try_cells(Own(standardised, **PRIVATE), people)) >= {("age", "other records change")}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("read", "column", "what"),
    [
        (imputing_the_median, "age", "other records change"),
        (after_the_row_before, "ill", "another record changes than by another cell of the row"),
        (without_duplicates, "age", "the number of records, which is public, changes"),
        (leaving_out, "sex", "the number of records, which is public, changes"),
        (by_pandas, "ill", "other records change"),  # which finds out a column's type
        (by_pandas, "age", "reading fails for everybody"),
    ],
)
def test_a_fault_is_found_with_its_column(people, read, column, what):
    """The first ones show only beside certain other rows."""
    found = problems(try_cells(Own(read), people))
    assert (column, what) in found and not ("sex" in dict(found) and read is by_pandas)


@pytest.mark.parametrize("task", [Remembering, Weighing])
def test_what_reading_leaves_for_the_model_or_the_loss_is_found(people, task):
    assert problems(try_cells(task(), people)) == {("age", "what the model or the loss computes of any record changes")}


def test_a_reader_that_draws_random_numbers_is_accused_of_nothing_else(people):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert "draws random numbers" in try_cells(Own(drawing), people).untried
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.exhaustive
def test_nothing_is_written_into_the_owner_s_folder_and_a_short_row_stops_nothing(people):
    def keeping(file):
        kept = file.with_name("cache.pt")
        shard = by_load_table(file)
        torch.save(shard.inputs, kept)
        return shard

    (people / "cache.pt").write_bytes(b"the owner's own")
    with (people / "people.csv").open("a") as opened:
        opened.write("50\n")
    assert not try_cells(Own(keeping), people).misread
    assert (people / "cache.pt").read_bytes() == b"the owner's own"


@pytest.mark.parametrize(
    ("cells", "read", "words"),
    [
        ([7, 8] * 10, lambda cell, kind: str(cell) == "7", "nothing (which makes floats of its column)"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                (["a", "b"] * 10, lambda _, kind: "dictionary" in str(kind), "nothing (and categories of its column)"),
                (MOMENTS, lambda cell, _: type(cell) is not datetime, "nothing (and times in ns of its column)"),
                ([0.5, 1.5] * 10, lambda cell, _: cell == 0.5, "a text (which makes texts of its column)"),
            )
        ),
    ],
    ids=["floats", "categories", "units", "texts"],
)
def test_a_column_is_also_written_in_the_types_that_a_data_frame_gives_it(tmp_path, cells, read, words):
    """A reading that depends on its column's type lets one cell change all records."""

    def by_type(file):
        table = parquet.read_table(file)
        values = [read(cell, table["it"].type) for cell in table["it"].to_pylist()]
        return fp.Shard(torch.tensor(values)[:, None].float(), torch.tensor(table["ill"].to_pylist()), null=False)

    def ours(file):
        features = {"it": fp.Category(["7", "a", "2020-01-01", "0.5"], other=True, indicate_missing=True)}
        return fp.load_table(file, target="ill", features=features)

    parquet.write_table(pa.table({"it": cells, "ill": [0.0, 1.0] * 10}), tmp_path / "people.parquet")
    table = lambda folder: fp.read_table(folder / "people.parquet")  # noqa: E731
    assert not try_cells(Own(ours, table), tmp_path).misread
    found = {(one.cell, one.what) for one in try_cells(Own(by_type, table), tmp_path).misread if one.column == "it"}
    assert found == {(words, "other records change")}


def test_a_table_that_a_reader_refuses_by_its_types_is_said_to_be_so(tmp_path):
    parquet.write_table(pa.table({"who": [1.0, None] * 4, "ill": [0.0, 1.0] * 4}), tmp_path / "people.parquet")
    how = {"person": "who", "rows_per_person": 2, "target": "ill"}
    untried = try_cells(Own(lambda file: fp.load_table(file, **how)), tmp_path).untried
    assert "does not read a copy of people.parquet (column 'who' of " in untried and "Int64)" in untried


def test_what_cannot_be_tried_is_said(tmp_path, people):
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert "holds no .csv" in try_cells(Own(by_load_table), nothing).untried
    fixed = Own(lambda _: fp.Shard(torch.zeros(3, 1), torch.zeros(3)), lambda _: fp.Table({"a": [1, 2, 3]}))
    assert try_cells(fixed, people).untried == "the task reads no cell of people.csv"
    assert "does not read a copy of people.csv" in try_cells(Own(lambda _: 1 / 0), people).untried
    over = try_cells(Own(by_pandas), people, patience=-1.0)
    assert (over.columns, over.left) == (1, 2) and over.misread  # one is tried, however long it takes


@pytest.mark.exhaustive
def test_columns_that_may_not_be_empty_are_tried_with_what_they_can_hold(tmp_path):
    kinds = pa.schema([pa.field("age", pa.int64(), nullable=False), pa.field("ill", pa.int64(), nullable=False)])
    table = pa.table({"age": [40 + n for n in range(30)], "ill": [0, 1, 1] * 10}, kinds)
    parquet.write_table(table, tmp_path / "people.parquet")

    def read(file):
        return fp.load_table(file, target="ill", classes=[0, 1])

    task = Own(read, lambda folder: fp.read_table(folder / "people.parquet"))
    assert try_cells(task, tmp_path).misread == () and try_cells(task, tmp_path).columns == 2


@pytest.mark.exhaustive
def test_no_value_of_a_record_is_told_and_none_is_left_behind(people, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(people / "temporary"))
    (people / "temporary").mkdir()
    told = " ".join(map(str, try_cells(Own(by_pandas), people).misread))
    assert "people.csv, column 'ill': " in told and "40" not in told
    assert not list((people / "temporary").iterdir())
    assert set(CELLS) >= {"a text", "nothing", "a huge number"}


@pytest.mark.parametrize("name", ["visits.csv", "visits.csv.gz"])
def test_whose_a_row_is_is_no_content_of_a_record(name, tmp_path):
    """A cell that moves a row to another person makes one person more, and the number of persons is public."""

    class Visits(fp.Task):
        unit = fp.Unit("patient", 4)

        def model(self):
            return torch.nn.Linear(1, 2)

        def shard(self, source):
            how = {"target": "ill", "classes": [0, 1], "features": ["age"]}
            return fp.load_table(source.folder / name, person="who", rows_per_person=4, **how)

    lines = [f"P{n // 2},{40 + n},{n % 2}\n" for n in range(30)]
    text = ("who,age,ill\n" + "".join(lines)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    trial = try_cells(Visits(), tmp_path)
    assert (trial.columns, trial.misread, trial.untried) == (2, (), "")
