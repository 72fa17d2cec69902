"""Tables as shards: what a row becomes depends on public constants and on itself, and no row makes reading fail."""

import math
import sys

import numpy as np
import pytest
import torch

import fedprivacy as fp
from fedprivacy.tasks.tables import TableError

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


def test_numbers_are_scaled_categories_one_hot_and_classes_counted(tmp_path):
    shard = fp.load_table(table(tmp_path, *USUAL, " ,f,yes", "900,m,no"), **HOW)
    assert shard.inputs.tolist() == [[1, 1, 0], [-1, 0, 1], [0, 1, 0], [3, 0, 1]]
    assert shard.targets.tolist() == [1, 0, 1, 0]
    assert (shard.inputs.dtype, shard.targets.dtype) == (torch.float32, torch.int64)


@pytest.mark.parametrize("row", UNREADABLE, ids=lambda row: repr(row[:12]))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_row_that_cannot_be_read_is_nan_and_changes_no_other(row, place, tmp_path):
    rows = [*USUAL[:place], row, *USUAL[place:]]
    alone, shard = (fp.load_table(table(tmp_path, *lines), **HOW) for lines in (USUAL, rows))
    kept = [n for n in range(3) if n != place]
    assert shard.inputs[place].isnan().all() and shard.targets[place] in (0, 1)
    assert torch.equal(shard.inputs[kept], alone.inputs) and torch.equal(shard.targets[kept], alone.targets)


def test_types_and_shapes_are_those_of_the_arguments_whatever_the_table_holds(tmp_path):
    empty = fp.load_table(table(tmp_path), **HOW)
    assert (empty.inputs.shape, empty.inputs.dtype, empty.targets.dtype) == ((0, 3), torch.float32, torch.int64)
    every = fp.load_table(table(tmp_path, "1,2,3", "x,2,3"), target="ill")
    assert every.inputs[0].tolist() == [1, 2] and every.inputs[1].isnan().all() and every.targets.tolist() == [3, 3]
    assert every.targets.dtype is torch.float32


def test_parquet_says_the_same_as_csv(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"age": [70.0, None, math.nan], "sex": ["f", "m", "f"], "ill": ["yes", "no", None]}
    parquet.write_table(pa.table(columns), tmp_path / "people.parquet")
    shard = fp.load_table(tmp_path / "people.parquet", **HOW)
    assert shard.inputs[:2].tolist() == [[1, 1, 0], [0, 0, 1]] and shard.inputs[2].isnan().all()
    assert shard.targets.tolist() == [1, 0, 0]


def test_without_pyarrow_parquet_is_a_plain_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "people.parquet").touch()
    with pytest.raises(TableError, match=r"needs pyarrow; 'pip install pyarrow', or save it as \.csv"):
        fp.load_table(tmp_path / "people.parquet", **HOW)


def test_a_class_that_was_saved_as_a_float_is_the_same_class(tmp_path):
    file = table(tmp_path, "1,2,1.0", "1,2,0")
    assert fp.load_table(file, target="ill", classes=[0, 1]).targets.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("split", "other", "parts"),
    [
        (fp.Evenly(3), fp.Evenly(4), 4),
        (fp.ByDirichlet(0.5, 3), fp.ByDirichlet(0.6, 3), 4),
        (fp.ByColumn("sex", ["f", "m"]), fp.ByColumn("sex", ["m", "f"]), 2),
    ],
)
def test_a_split_gives_each_row_to_one_client_the_same_every_time_and_its_name_tells_it(split, other, parts, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{n},{rng.choice(['f', 'm'])},{rng.choice(['no', 'yes'])}" for n in range(200)]
    file, how = table(tmp_path, *rows), HOW | {"features": ["age"]}

    def shards(split):
        sources = [fp.ShardSource(partition_id=part, num_partitions=parts) for part in range(parts)]
        return [fp.load_table(file, split=split, source=source, **how).inputs[:, 0].tolist() for source in sources]

    first = shards(split)
    assert sorted(age for shard in first for age in shard) == list(range(200))
    assert shards(split) == first != shards(other)
    assert split.describe(parts) != other.describe(parts)


def test_what_is_not_there_is_named_with_the_remedy(tmp_path):
    file = table(tmp_path, *USUAL)
    for arguments, words in (
        ({"path": tmp_path / "no.csv", "target": "ill"}, "there is no table"),
        ({"path": file, "target": "death"}, "has no column 'death'; it has age, sex, ill"),
        ({"path": file, "target": "ill", "features": ["weight"]}, "has no column 'weight'"),
    ):
        with pytest.raises(TableError, match=words):
            fp.load_table(**arguments)
    with pytest.raises(TableError, match="2 parts, and there are 3 clients; set clients to 2"):
        source = fp.ShardSource(partition_id=0, num_partitions=3)
        fp.load_table(file, split=fp.ByColumn("sex", ["f", "m"]), source=source, **HOW)
