"""Files as shards and tables: what a row becomes depends on public constants and on itself; none makes reading fail."""

import math
import sys
from functools import partial

import numpy as np
import pytest
import torch

import fedprivacy as fp
from fedprivacy.tasks.cells import Notation, TableError
from fedprivacy.tasks.splits import Splittable

HOW = {
    "target": "ill",
    "classes": ["no", "yes"],
    "features": {"age": fp.Number(60, 10, limit=3, missing=60), "sex": fp.Category(["f", "m"])},
}
USUAL = ["70,f,yes", "50,m,no"]
UNREADABLE = [
    "old,f,yes", "1e999,f,yes", "nan,f,no", "70,x,yes", "70,,yes", "70,f,perhaps", "70,f,", "70,f", "70,f,yes,1",
    '"70,f,yes', "70,f\x00,yes", "70,\xff,no", '70,"f,yes', "70,f\r,yes", "70," + "f" * 200_000 + ",no",
]  # fmt: skip


def table(folder, *rows):
    file = folder / "people.csv"
    file.write_bytes("\n".join(["age,sex,ill", *rows, ""]).encode("latin-1"))
    return file


@pytest.mark.parametrize("row", UNREADABLE, ids=lambda row: repr(row[:12]))
@pytest.mark.parametrize("place", [0, 2])
def test_a_row_that_cannot_be_read_is_null_and_changes_no_other(row, place, tmp_path):
    rows = [*USUAL[:place], row, *USUAL[place:]]
    alone, shard = (fp.load_table(table(tmp_path, *lines), **HOW) for lines in (USUAL, rows))
    kept = [n for n in range(3) if n != place]
    assert shard.inputs[place].isnan().all() and shard.null.tolist() == [n == place for n in range(3)]
    assert torch.equal(shard.inputs[kept], alone.inputs) and torch.equal(shard.targets[kept], alone.targets)
    by_column = read(table(tmp_path, *rows))
    assert len(by_column) == 3 and [by_column[n] for n in kept] == read(table(tmp_path, *USUAL))


def test_without_pyarrow_parquet_is_a_plain_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "people.parquet").touch()
    with pytest.raises(TableError, match=r"needs pyarrow; 'pip install pyarrow', or save it as \.csv"):
        fp.load_table(tmp_path / "people.parquet", **HOW)


# --- what a cell becomes ---

NAN = [math.nan]


@pytest.mark.parametrize(
    ("reader", "cells"),
    [
        (fp.Number(60, 15, limit=2), {"60": [0.0], "90": [2.0], "91": [2.0], "30": [-2.0], "-999": [-2.0], "": NAN}),
        (fp.Number(60, 15), {"999": [62.6], "-840": [-60.0], "inf": NAN, "": NAN}),
        (fp.Number(60, 15, indicate_missing=True), {"": [0.0, 1.0], "60": [0.0, 0.0], "x": [math.nan, 0.0]}),
        (fp.Number(60, 15, missing=75, indicate_missing=True), {"": [1.0, 1.0], "75": [1.0, 0.0]}),
        (fp.Date(since="2000-01-01"), {"2000-01-01": [0.0], "1999-12-31": [-1.0], "2000-01-02T23:59:59": [1.0]}),
        (fp.Date(1.0, 2.0, since="2000-01-01"), {"2000-01-08": [3.0], "": NAN, "2000-13-01": NAN}),
        (fp.Category(["f", "m"]), {"f": [1.0, 0.0], "m": [0.0, 1.0], "x": NAN * 2, "": NAN * 2}),
        (fp.Category(["f", "m"], other=True), {"x": [0.0, 0.0, 1.0], "f": [1.0, 0.0, 0.0], "": NAN * 3}),
        (fp.Category(["f", "m"], indicate_missing=True), {"": [0.0, 0.0, 1.0], "f": [1.0, 0.0, 0.0], "x": NAN * 3}),
        (fp.Category(["f", "m"], missing="m", indicate_missing=True), {"": [0.0, 1.0, 1.0], "m": [0.0, 1.0, 0.0]}),
        (fp.Category(["f"], other=True, indicate_missing=True), {"": [0.0, 0.0, 1.0], "x": [0.0, 1.0, 0.0]}),
    ],
    ids=repr,
)
def test_a_cell_becomes_what_its_reader_says(reader, cells):
    for cell, inputs in cells.items():
        np.testing.assert_allclose(reader.inputs(cell), inputs, err_msg=repr(cell))


def test_a_code_s_beginning_is_compared_in_whatever_way_cells_are_written():
    codes, either = fp.Category(["E10", "E11"], prefix=3), Notation(".", True, ("NA",))
    assert codes.inputs("e11.9", either) == [0.0, 1.0] and codes.inputs("E10.1", either) == [1.0, 0.0]
    assert all(map(math.isnan, codes.inputs("e11.9")))


@pytest.mark.parametrize(("unit", "days"), [("days", 1.0), ("months", 146_097 / 4800), ("years", 146_097 / 400)])
def test_months_and_years_are_of_mean_length(unit, days):
    """Four hundred years have 146,097 days; a small share of that shows after a lifetime."""
    reader = fp.Date(since="1600-01-01", unit=unit)
    assert reader.inputs("2000-01-01") == [pytest.approx(146_097 / days, rel=1e-12)]
    assert reader.inputs("1600-01-31") == [pytest.approx(30 / days, rel=1e-12)]


def test_a_person_s_class_is_that_of_the_first_row():
    persons = np.repeat(np.arange(60), 3)
    targets = np.random.default_rng(0).integers(0, 2, 180)
    first = targets[::3].repeat(3)
    parts, expected = (fp.ByDirichlet(0.3).rows(Splittable({}, each, persons), 3) for each in (targets, first))
    assert [part.tolist() for part in parts] == [part.tolist() for part in expected]
    assert sorted(np.concatenate(parts)) == list(range(180))


# --- by column ---


def read(file, columns=("age", "sex", "ill")):
    """All that is read of each row: comparable numbers, codes and texts."""
    whole = fp.read_table(file)
    numbers = [whole.numbers(name).view(np.int64).tolist() for name in columns]
    codes = [whole.codes(name, ["f", "yes", 70, "x"]).tolist() for name in columns]
    rows = list(zip(*numbers, *codes, *(whole.texts(name) for name in columns), strict=True))
    assert len(rows) == len(whole)
    return rows


@pytest.mark.parametrize("line", ["", " ", "\r", '""', "?", "70,1", '"'])
def test_with_one_column_an_empty_cell_is_a_record_too(line, tmp_path):
    file = tmp_path / "ages.csv"
    for end in ("", "\n"):
        file.write_text("\n".join(["age", "70", line, "50"]) + end)
        assert np.array_equal(fp.read_table(file).numbers("age"), [70, np.nan, 50], equal_nan=True)
    file.write_text(f"age\n70\n{line}\n")
    assert len(fp.read_table(file)) == 2


def parquet(folder, columns):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), folder / "people.parquet")
    return fp.read_table(folder / "people.parquet")


def unreadable_columns():
    """Columns of Arrow, the second cell of which Python cannot hold, and what the first one says."""
    import pyarrow as pa

    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], "i4").tobytes()), pa.py_buffer(b"f\xff")]
    )
    day = pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32())
    moment = pa.array([0, 2**62], pa.int64()).view(pa.timestamp("us"))
    return {"text": (text, "f"), "day": (day, "1970-01-01"), "moment": (moment, "1970-01-01")}


@pytest.mark.parametrize("kind", ["text", "day", "moment"])
def test_in_parquet_a_cell_that_python_cannot_hold_makes_nothing_fail(kind, tmp_path):
    column, word = unreadable_columns()[kind]
    whole = parquet(tmp_path, {"age": [70, 50], "it": column})
    assert whole.texts("it") == [word, ""] and whole.codes("it", [word]).tolist() == [0, -1]
    shard = fp.load_table(tmp_path / "people.parquet", target="age", features={"it": fp.Category([word])})
    assert shard.inputs[0].tolist() == [1] and shard.null.tolist() == [False, True]


@pytest.mark.parametrize(
    ("split", "other"),
    [
        (fp.Evenly(3), fp.Evenly(4)),
        (fp.ByDirichlet(0.5, 3), fp.ByDirichlet(0.6, 3)),
        (fp.ByColumn("sex", ["f", "m"]), fp.ByColumn("sex", ["m", "f"])),
    ],
)
def test_a_client_s_table_has_the_records_of_its_shard_and_the_split_s_name_tells_it(split, other, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{n},{rng.choice(['f', 'm'])},{rng.choice(['no', 'yes', '?'])}" for n in range(200)]
    file = table(tmp_path, *rows, "1", "2,f,yes,4")
    named = {"target": "ill", "classes": ["no", "yes"]}
    seen = 0
    for part in range(2):
        how = {"split": split, "source": fp.ShardSource(partition_id=part, num_partitions=2)}
        shard, whole = fp.load_table(file, features=["age"], **named, **how), fp.read_table(file, **named, **how)
        kept = ~shard.null.numpy()
        assert len(shard) == len(whole) and whole.numbers("age")[kept].tolist() == shard.inputs[kept, 0].tolist()
        assert whole.codes("ill", named["classes"])[kept].tolist() == shard.targets[kept].tolist()
        if not isinstance(split, fp.ByDirichlet):  # nothing else goes by the target
            assert fp.read_table(file, **how).texts("age") == whole.texts("age")
        seen += len(whole)
    assert seen == (200 if isinstance(split, fp.ByColumn) else 202)
    assert split.describe(2) != other.describe(2)


def test_a_split_by_the_target_is_told_which_it_is(tmp_path):
    source = fp.ShardSource(partition_id=0, num_partitions=2)
    with pytest.raises(TableError, match="ByDirichlet splits by the target; name target and classes as for the shard"):
        fp.read_table(table(tmp_path, *USUAL), split=fp.ByDirichlet(0.5), source=source)


@pytest.mark.parametrize("row", ["70,f,yes", "50,m,no"])
def test_the_last_row_with_a_value_can_go_without_making_reading_fail(row, tmp_path):
    file = table(tmp_path, *["50,m,no"] * 40_000, row)  # read in parts, of which the first has no such row
    shard = fp.load_table(file, only={"sex": "f"}, **HOW)
    assert shard.inputs.tolist() == [[1, 1, 0]] * row.startswith("70") and shard.inputs.shape[1] == 3


@pytest.mark.parametrize("loaded", [fp.read_table, partial(fp.load_table, target="ill")], ids=["table", "shard"])
def test_what_is_not_there_is_named_with_the_remedy(loaded, tmp_path):
    file = table(tmp_path, *USUAL)
    with pytest.raises(TableError, match="there is no table"):
        loaded(tmp_path / "no.csv")
    for missing in ({"target": "death"}, {"only": {"death": 1}}):
        with pytest.raises(TableError, match="has no column 'death'; it has age, sex, ill"):
            loaded(file, **missing)
    with pytest.raises(TableError, match="has no column 'weight'"):
        fp.load_table(file, target="ill", features=["weight"])
    source = fp.ShardSource(partition_id=0, num_partitions=3)
    with pytest.raises(TableError, match="2 parts, and there are 3 clients; set clients to 2"):
        loaded(file, split=fp.ByColumn("sex", ["f", "m"]), source=source)
