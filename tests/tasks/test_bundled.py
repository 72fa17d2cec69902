"""The built-in tasks: every record has one owner, the public ones none, and a deployed client reads the same shard."""

import functools

import numpy as np
import pytest
import torch

from fedprivacy.tasks import ShardSource, load_task
from fedprivacy.tasks.cancer import MEASUREMENTS, PUBLIC_MEANS, PUBLIC_SCALES

SPLITS = {"digits": 10, "cancer": 5}


@functools.cache
def shards(name):
    task = load_task(name)
    return [task.shard(ShardSource(partition_id=i, num_partitions=SPLITS[name])) for i in range(SPLITS[name])]


def tables(name, folder, part=1):
    """A client's table, of a simulation and from a deployed client's folder."""
    task, simulated = load_task(name), ShardSource(partition_id=part, num_partitions=SPLITS[name])
    task.write_folder(simulated, folder)
    return task.table(simulated), task.table(ShardSource(folder=folder))


def test_a_row_of_the_digits_table_is_a_record_of_the_shard(tmp_path):
    shard = shards("digits")[1]
    for table in tables("digits", tmp_path):
        assert len(table) == len(shard) and len(table.columns) == 65
        assert table.codes("digit", range(10)).tolist() == shard.targets.tolist()
        pixels = [[table.numbers(f"pixel {row},{column}") / 16 for column in range(8)] for row in range(8)]
        assert np.array_equal(np.moveaxis(pixels, 2, 0)[:, None], shard.inputs.numpy())


def test_the_columns_of_cancer_have_the_names_that_scikit_learn_gives_them():
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    assert tuple(bunch.feature_names) == MEASUREMENTS and list(bunch.target_names) == ["malignant", "benign"]


def test_a_label_that_is_none_in_a_client_s_folder_makes_nothing_fail_and_changes_no_other(tmp_path):
    features, labels = np.ones((3, 30)), np.array([0, 1, 1], np.float64)
    for label in (7, -1, np.nan, np.inf):
        features[2, 0], labels[2] = label, label
        np.savez(tmp_path / "records.npz", features=features, labels=labels)
        table = load_task("cancer").table(ShardSource(folder=tmp_path))
        assert table.texts("diagnosis") == ["malignant", "benign", ""]
        assert table.numbers("mean radius")[:2].tolist() == [1, 1]


@pytest.mark.parametrize("cell", ["?", "", "nan", "1e400", 1e300, np.nan, -7], ids=repr)
@pytest.mark.parametrize("array", ["features", "labels"])
@pytest.mark.parametrize("name", ["cancer", "digits"])
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


def test_the_split_names_itself_and_stays_the_same():
    task = load_task("digits")
    assert task.partition(10) == "10 parts, Dirichlet alpha 1, seed 42" != task.partition(9)
    assert [len(part) for part in shards("digits")] == [140, 184, 209, 131, 179, 113, 150, 88, 108, 135]


def test_the_scaling_constants_of_cancer_are_those_of_the_public_records():
    (_, _), (public, _) = load_task("cancer")._separate()
    assert np.allclose(public.mean(0), PUBLIC_MEANS, rtol=0.05)
    assert np.allclose(public.std(0), PUBLIC_SCALES, rtol=0.05)


def test_a_client_without_folder_or_part_is_told_what_to_give():
    with pytest.raises(ValueError, match="give it a folder"):
        load_task("digits").shard(ShardSource())
