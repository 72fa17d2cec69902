"""A task on public records in place of its private ones, so that settings can be chosen at no privacy cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedprivacy.tasks.opened import TaskError
from fedprivacy.tasks.task import Shard, ShardSource, Task


class OnPublic:
    """The model, loss and metric of a task, on public records: a sweep on them costs no privacy.

    No private record is read: neither the task's `shard` nor its `table`. Its dataset has another name, so that nothing
    is charged to the private one.

    >>> import fedprivacy as fp, torch
    >>> records = fp.Shard(torch.randn(8, 30), torch.arange(8) % 2)
    >>> tuning = fp.tasks.OnPublic(fp.tasks.Cancer(), lambda source: records, repeat=10)
    >>> tuning.name, tuning.dataset, len(tuning.shard(fp.ShardSource(partition_id=0, num_partitions=3)))
    ('cancer-on-public', 'cancer-public', 80)

    Args:
        task: task that will be trained on private records later.
        shard: function that returns a simulated client's public records, which resemble its private ones and differ
            from those of `evaluate`.
        repeat: number of copies of each record in the shard. The noise of a budget depends on the number of records:
            with fewer than a client will have, repeat them until the numbers are similar.

    Raises:
        TaskError: `repeat` is not positive; or the task standardises by a question to its private records.
    """

    table = Task.table  # offers no table: the task's own holds private records

    def __init__(self, task: Task, shard: Callable[[ShardSource], Shard], *, repeat: int = 1) -> None:
        if repeat < 1:
            raise TaskError(f"repeat is {repeat}; give 1 or more.")
        if getattr(task, "standardise", None) is not None:
            raise TaskError(
                f"task {task.name} standardises by what its private records answer, which they would be charged for; "
                "tune a task that has public numbers instead."
            )
        self.name, self.dataset = f"{task.name}-on-public", f"{task.dataset}-public"
        self._task, self._shard, self._repeat = task, shard, repeat

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the task."""
        if name.startswith("_"):  # for example while a copy is made, which has no task yet
            raise AttributeError(name)
        return getattr(self._task, name)

    def shard(self, source: ShardSource) -> Shard:
        """Return the public records, each repeated."""
        records = self._shard(source).present()
        inputs, targets = (
            rows.repeat(self._repeat, *[1] * (rows.dim() - 1)) for rows in (records.inputs, records.targets)
        )
        return Shard(inputs, targets, null=False)

    def partition(self, num_partitions: int) -> str:
        """Name the split of the public records; no private split has this name."""
        return f"public records for {self._task.partition(num_partitions)}"
