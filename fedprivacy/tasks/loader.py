"""From a name, a built-in task's or `path/to/file.py:name`, to a task; what a task is called, and which are allowed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from numbers import Real
from pathlib import PurePath
from typing import TypeGuard

import torch
from torch import nn

from fedprivacy._support import sources
from fedprivacy.tasks.augmentation import Augmentation
from fedprivacy.tasks.built_in import BUILT_IN, DEFAULT_TASK
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.task import NO_TABLE, Score, Shard, ShardSource, Task, check_null, relation_of
from fedprivacy.values.evaluation import MOST_SCORES, RECORDS
from fedprivacy.values.wording import count_text

OBJECT = "object:"
"""Begins the name of a task that was given as an object; the name of its class follows."""

_WORDS: dict[int, set[str]] = {}
"""By which names each task was loaded; by `id`, since what was loaded stays for the life of the process."""


class TaskError(sources.SourceError):
    """A task that cannot be found or is not one, with the remedy."""


@cache
def load_task(name: str, sha256: str | None = None) -> Task:
    """Load a built-in task by name, or one from `path/to/file.py:name` or `package.module:name`; once in a process.

    `name` after the colon is a task or a callable without arguments that returns one, for example a class. Whoever
    chooses the name chooses what is imported and called: a client takes it from its own configuration alone, and only
    compares a server's word with it (`allowed_tasks`).

    Args:
        name: of the task.
        sha256: of the file that it names, in hexadecimal; None: any file will do.

    Raises:
        TaskError: says what was looked for and what to write instead.
    """
    if name.startswith(OBJECT):
        made = name.removeprefix(OBJECT)
        raise TaskError(f"task is '{name}', which only the program that made it has; give the object again, {made}().")
    if name not in BUILT_IN and not sources.is_source(name):
        raise TaskError(f"task is '{name}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
    try:
        found = sources.load("task", BUILT_IN.get(name, name), sha256)
    except sources.SourceError as error:
        raise TaskError(str(error)) from error
    task = _made(found, name) if callable(found) else found
    _check_complete(task, f"task is '{name}'")
    _WORDS.setdefault(id(task), set()).add(name)
    return task


def agreed(word: str | None, task: Task | None) -> Task:
    """The one task that a configuration names and a program brings.

    Args:
        word: in the configuration; None: it names none.
        task: an object; None: what is named is loaded.

    Raises:
        TaskError: there is no such task, the object is none, or the two are not the same.
    """
    if task is None:
        return load_task(word or DEFAULT_TASK)
    _check_complete(task, f"the task is an object of class {type(task).__name__}")
    if word is not None and word not in _words(task):
        raise TaskError(
            f"task is '{word}' in the configuration, and {_words(task)[0]} was given beside it; leave out one of them."
        )
    return task


def word_of(task: Task) -> str:
    """What a configuration calls a task: the name by which it was loaded, or one that says that it was not."""
    return _words(task)[0]


@contextmanager
def method_of(task: Task, call: str) -> Iterator[None]:
    """Tell of whatever a task's method raises in one line, with the line of the task's file, as a `TaskError`.

    Args:
        task: the task.
        call: the method, and for whom it is called: "shard() for client-0".
    """
    try:
        yield
    except Exception as error:
        file = inspect.getsourcefile(type(task))
        raise TaskError(f"task {task.name}: {call} fails: {sources.told(error, file)}.") from error


def model_of(task: Task) -> nn.Module:
    """A new model of the task.

    Raises:
        TaskError: it makes none.
    """
    with method_of(task, "model()"):
        model = task.model()
    if not isinstance(model, nn.Module):
        raise TaskError(f"task {task.name}: model() returns a {type(model).__name__}; return a torch.nn.Module.")
    return model


def metrics_of(task: Task, model: nn.Module) -> dict[str, float]:
    """What the task measures of a model on the server's public records; empty if it measures nothing.

    Raises:
        TaskError: it fails, or what it returns is not numbers by name with the task's metric among them.
    """
    with method_of(task, "evaluate()"), torch.no_grad():
        found = task.evaluate(model.eval())
    example = f"return numbers by name, for example {{'{task.metric}': 0.5}}"
    if not isinstance(found, Mapping):
        raise TaskError(f"task {task.name}: evaluate() returns a {type(found).__name__}; {example}.")
    for name, value in found.items():
        if not (isinstance(name, str) and isinstance(value, Real)):
            raise TaskError(f"task {task.name}: evaluate() returns a {type(value).__name__} for {name!r}; {example}.")
    if found and task.metric not in found:
        raise TaskError(
            f"task {task.name}: evaluate() returns {', '.join(found)} and not its metric, {task.metric}; return that "
            f"too, or set the task's metric, for example metric = '{next(iter(found))}'."
        )
    return {name: float(value) for name, value in found.items()}


def scores_of(task: Task) -> dict[str, Score]:
    """What local evaluation measures of each record, by name.

    Raises:
        TaskError: `scores` fails, or returns something else than scores by name.
    """
    with method_of(task, "scores()"):
        scores = dict(task.scores() if hasattr(task, "scores") else Task.scores(task))
    if not scores or not all(isinstance(n, str) and isinstance(s, Score) for n, s in scores.items()):
        raise TaskError(f"task {task.name}: scores() must return fedprivacy.Score objects by name, one at least.")
    if len(scores) > MOST_SCORES:
        raise TaskError(
            f"task {task.name}: scores() returns {len(scores)} scores; return {MOST_SCORES} at most, and better few: "
            "they share the sensitivity."
        )
    if RECORDS in scores:
        raise TaskError(f"task {task.name}: a score is called '{RECORDS}', as their number is; call it otherwise.")
    return scores


def offers_held_out(task: Task) -> bool:
    """Whether the task holds records out for simulated clients: it has a `held_out` of its own."""
    method = getattr(task, "held_out", Task.held_out)
    return getattr(method, "__func__", method) is not Task.held_out


def shard_of(task: Task, source: ShardSource) -> Shard:
    """A client's records, as the promise that its task makes needs them: null rows say nothing any more.

    Raises:
        TypeError: `shard` returns something else.
        ValueError: nothing says which rows are null, and zero-out is promised: a row that stands for a record which
            cannot be read would be trained on.
        Exception: whatever `shard` raises.
    """
    shard = task.shard(source)
    if not isinstance(shard, Shard):
        raise TypeError(f"it returns a {type(shard).__name__}; return fedprivacy.Shard(inputs, targets)")
    check_null(shard, relation_of(task))
    return shard.present()


def held_out_of(task: Task, source: ShardSource) -> Shard:
    """A simulated client's held-out records.

    Raises:
        TaskError: `held_out` fails, or returns something else.
    """
    with method_of(task, f"held_out() for part {source.partition_id}"):
        records = task.held_out(source)
    if not isinstance(records, Shard):
        raise TaskError(f"task {task.name}: held_out() returns a {type(records).__name__}; return a fedprivacy.Shard.")
    return records.present()


def augmentation_of(task: Task) -> Augmentation:
    """How views of the task's records are made.

    Raises:
        TaskError: the task does not say, or says it in another way.
    """
    augmentation = getattr(task, "augmentation", None)
    if not isinstance(augmentation, Augmentation):
        raise TaskError(
            f"task {task.name} has no augmentation, of which augmentation-multiplicity takes views; leave it open, or "
            "give the task one: augmentation = fedprivacy.tasks.shifted(pixels=1)."
        )
    return augmentation


def offers_table(task: Task) -> bool:
    """Whether questions can be asked of the task's records: it has a `table` of its own."""
    method = getattr(task, "table", Task.table)
    return getattr(method, "__func__", method) is not Task.table


def table_of(task: Task, source: ShardSource) -> Table:
    """A client's records by column, which questions are asked of.

    Raises:
        TaskError: the task offers no table, `table` fails, or it returns something else.
    """
    if not offers_table(task):
        raise TaskError(NO_TABLE.format(name=task.name))
    with method_of(task, "table()"):
        table = task.table(source)
    if not isinstance(table, Table):
        raise TaskError(f"task {task.name}: table() returns a {type(table).__name__}; return a fedprivacy.Table.")
    return table


def check_scores(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Score some records, whose outputs and targets these are, each [batch, ...].

    Raises:
        TaskError: a score fails, is not one number for each record, or depends on more than the record.
    """
    for name, score in scores_of(task).items():
        with method_of(task, f"score '{name}'"):
            found = score.measure(outputs.clone(), targets.clone())
        if not isinstance(found, torch.Tensor) or found.shape != targets.shape[:1]:
            shape = list(found.shape) if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
            records = count_text(len(targets), "record")
            raise TaskError(
                f"task {task.name}: score '{name}' returns {shape} for {records}; return one number for each, shape "
                "[batch]."
            )
        pairs = zip(outputs.split(1), targets.split(1), strict=True)
        with method_of(task, f"score '{name}' of one record"):
            alone = torch.cat([score.measure(output.clone(), target.clone()) for output, target in pairs])
        rounding = 1e-4 * (score.most - score.least)
        if not torch.allclose(found.double(), alone.double(), rtol=1e-4, atol=rounding, equal_nan=True):
            raise TaskError(
                f"task {task.name}: score '{name}' of a record is another one when it is taken again, without the "
                "others; compute it from the record's output and target alone, and draw no random numbers."
            )


def _made(maker: Callable[[], Task], name: str) -> Task:
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise TaskError(
            f"task is '{name}', which cannot be made without arguments ({error}); give each a default."
        ) from error
    except ValueError:  # a built-in function that does not tell
        pass
    try:
        return maker()
    except Exception as error:
        raise TaskError(f"task is '{name}', which cannot be made: {sources.told(error)}.") from error


def _words(task: Task) -> list[str]:
    return sorted(_WORDS.get(id(task), ())) or [f"{OBJECT}{type(task).__name__}"]


def _check_complete(task: object, named: str) -> None:
    if isinstance(task, type):  # it has every member of a task, and is none
        raise TaskError(f"the task is the class {task.__name__} and no object of it; write {task.__name__}().")
    if missing := lacking(task):
        raise TaskError(f"{named}, which lacks {', '.join(missing)}; see fedprivacy.Task.")


_OPTIONAL = {"augmentation", "held_out", "scores", "standardise", "table"}
"""Members of a task that a class of somebody's own may do without: then it has `Task`'s."""


def is_task(value: object) -> TypeGuard[Task]:
    """Whether an object is a task, of whatever class."""
    return not isinstance(value, type) and not lacking(value)


def lacking(task: object) -> list[str]:
    """What an object would need to be a task."""
    members = {*Task.__annotations__, *(member for member in vars(Task) if not member.startswith("_"))} - _OPTIONAL
    missing = sorted(member for member in members if not hasattr(task, member))
    return missing if isinstance(task, Hashable) else [*missing, "__hash__"]


@dataclass(frozen=True, slots=True)
class AllowedTask:
    """One task that a client may work on: what a server must call it, and the source and SHA-256 of what is loaded."""

    name: str
    source: str
    sha256: str | None

    @classmethod
    def of(cls, entry: str) -> AllowedTask:
        """The task that an entry of the configuration names: a source, for a file optionally with `@sha256:HEX`.

        Raises:
            TaskError: the entry names none.
        """
        source, at, sha256 = entry.partition("@")
        if at and not (sources.names_file(source) and re.fullmatch("sha256:[0-9a-fA-F]{64}", sha256)):
            raise TaskError(
                f"task is '{entry}'; after a file, and only there, write @sha256: and 64 hexadecimal digits."
            )
        if source not in BUILT_IN and not sources.is_source(source):
            raise TaskError(f"task is '{entry}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
        return cls(public_name(source), source, sha256.removeprefix("sha256:").lower() if at else None)

    def load(self) -> Task:
        """The task. Raises what `load_task` does, for example because the file is another one."""
        return load_task(self.source, self.sha256)


def allowed_tasks(entries: Iterable[str]) -> dict[str, AllowedTask]:
    """The tasks that entries of the configuration name, by what a server must call them.

    Raises:
        TaskError: an entry names none, or two go by one name.
    """
    allowed: dict[str, AllowedTask] = {}
    for task in map(AllowedTask.of, entries):
        if task.name in allowed:
            raise TaskError(f"two tasks go by the name '{task.name}'; give one of the files another name.")
        allowed[task.name] = task
    return allowed


def public_name(source: str) -> str:
    """What a task is called between hosts: a file goes by its own name, without its folders; any other as it is."""
    file, colon, attribute = source.rpartition(":")
    return f"{PurePath(file).name}{colon}{attribute}" if sources.names_file(source) else source
