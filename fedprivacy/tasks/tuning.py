"""A task on public records in the place of its private ones, so that settings can be chosen without spending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedprivacy.tasks.loader import TaskError
from fedprivacy.tasks.task import Shard, ShardSource, Task


class OnPublic:
    """The same model, loss and metric, on records that are public: what a sweep chooses on them costs no privacy.

    No private record is read: neither the task's `shard` nor its `table`. Its dataset has another name, so that nothing
    is charged to the private one.

    >>> import fedprivacy as fp, torch
    >>> records = fp.Shard(torch.randn(8, 30), torch.arange(8) % 2)
    >>> tuning = fp.tasks.OnPublic(fp.tasks.Cancer(), lambda source: records, repeat=10)
    >>> tuning.name, tuning.dataset, len(tuning.shard(fp.ShardSource(partition_id=0, num_partitions=3)))
    ('cancer-on-public', 'cancer-public', 80)

    Args:
        task: what is to be trained on private records later.
        shard: of a simulated client, public records like its private ones; those that `evaluate` looks at are others.
        repeat: how many times each of them stands in the shard. The noise that a budget needs counts by the number of
            records: with fewer than a client will have, repeat them until they are about as many.

    Raises:
        TaskError: `repeat` is not positive; or the task asks its private records how to standardise them.
    """

    table = Task.table  # which is none: the task's own is of private records

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
        """Everything else is the task's."""
        if name.startswith("_"):  # such as while a copy is being made, which has no task yet
            raise AttributeError(name)
        return getattr(self._task, name)

    def shard(self, source: ShardSource) -> Shard:
        """The public records, each as often as it is repeated."""
        records = self._shard(source).present()
        inputs, targets = (
            rows.repeat(self._repeat, *[1] * (rows.dim() - 1)) for rows in (records.inputs, records.targets)
        )
        return Shard(inputs, targets, null=False)

    def partition(self, num_partitions: int) -> str:
        """Of the public records, under a name that no private split has."""
        return f"public records for {self._task.partition(num_partitions)}"
