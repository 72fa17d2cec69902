"""A task that cannot be loaded is named, with what it lacks; and so is one whose table cannot be."""

import pytest

import fedprivacy as fp
from fedprivacy.tasks import TaskError, load_task
from fedprivacy.tasks.cells import TableError
from fedprivacy.tasks.loader import open_task
from fedprivacy.tasks.opened import is_task
from tests.flower.blobs import Blobs

SOURCE = fp.ShardSource(partition_id=0, num_partitions=2)


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
