"""Tasks: model, data, loss and metric; the protocol and the built-in ones."""

from fedprivacy.dpsgd import Shard
from fedprivacy.tasks.loading import TaskError, load_task
from fedprivacy.tasks.protocol import Recipe, ShardSource, Task, relation_of

__all__ = ["Recipe", "Shard", "ShardSource", "Task", "TaskError", "load_task", "relation_of"]
