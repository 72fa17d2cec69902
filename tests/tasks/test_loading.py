"""A task that cannot be loaded is named, with what it lacks."""

import pytest

from fedprivacy.tasks import TaskError, load_task


def test_an_incomplete_task_is_told_what_it_lacks(tmp_path):
    file = tmp_path / "half.py"
    file.write_text("class Half:\n    name = dataset = metric = 'half'\n    def model(self): ...\n")
    with pytest.raises(
        TaskError, match=r"lacks evaluate, loss, nominal_shard_size, partition, recipe, shard, shard_size"
    ):
        load_task(f"{file}:Half")


def test_a_missing_file_or_name_is_named(tmp_path):
    with pytest.raises(TaskError, match="does not exist"):
        load_task(f"{tmp_path}/none.py:Task")
    file = tmp_path / "empty.py"
    file.write_text("")
    with pytest.raises(TaskError, match="defines no 'Task'"):
        load_task(f"{file}:Task")
