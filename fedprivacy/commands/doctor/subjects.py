"""From what a user names, a task or whatever makes a model, to a model and the shape of its records."""

from __future__ import annotations

import ast
import inspect
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy._support.sources import SourceError, is_source, load
from fedprivacy.gradients.checks.doctor import Example
from fedprivacy.runs.configuration import FIELDS
from fedprivacy.tasks import ShardSource, Task
from fedprivacy.tasks.built_in import BUILT_IN
from fedprivacy.tasks.loader import lacking


class ModelError(ValueError):
    """What the user named is not there, or makes no model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is to be examined.

    Attributes:
        name: as the user wrote it.
        build: makes the model.
        is_task: whether it is a task.
        example: the shape of its records and its loss; None: only its layers can be looked at.
        run_with: what the model is run with, or why it cannot be, for people.
        place: where in the user's code the model is made.
        mended: that line, with `made_private`.
    """

    name: str
    build: Callable[[], nn.Module]
    is_task: bool
    example: Example | None
    run_with: str
    place: str
    mended: str


def find(name: str, input_shape: str = "", *, integers: bool = False) -> Patient:
    """The task or the model that a user names.

    Args:
        name: a built-in task, `path/to/file.py:Name` or `package.module:Name`.
        input_shape: of one record, "3,32,32"; "": a task's records tell.
        integers: whether records of that shape are integers.

    Raises:
        ModelError: there is no such file, module or name in it, or it makes no model; or the shape is none.
    """
    shape = _shape(input_shape)
    if integers and not shape:
        raise ModelError("input-integers is set without a shape; give --input-shape, for example 64.")
    if name not in BUILT_IN and not is_source(name):
        raise ModelError(f"model is '{name}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:Name.")
    source = BUILT_IN.get(name, name)
    module_name, _, attribute = source.rpartition(":")
    found = _called(name, module_name, lambda: load("model", source))
    made_already = isinstance(found, nn.Module | Task) and not isinstance(found, type)
    build = found if callable(found) and not made_already else lambda: found
    made = _called(name, module_name, build)
    if isinstance(made, Task):
        example = _example(made.loss, shape, integers) if shape else None
        return _task(name, made, partial(_built, name, module_name, made.model), example)
    if isinstance(made, nn.Module):
        example = _example(_cross_entropy, shape, integers) if shape else None
        again = partial(_built, name, module_name, build)
        return _model(name, again, attribute if made_already else f"{attribute}()", example)
    kind, missing = type(made).__name__, ", ".join(lacking(made))
    raise ModelError(f"model is '{name}', which makes a value of type {kind}: no nn.Module, and a task has {missing}.")


def _shape(words: str) -> tuple[int, ...] | None:
    if not words:
        return None
    sizes = words.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise ModelError(f"input-shape is '{words}'; give the sizes of one record's axes, for example 3,32,32.")
    return tuple(int(size) for size in sizes)


def _called(name: str, module_name: str, function: Callable[[], Any]) -> Any:
    """What the user's code returns.

    Raises:
        ModelError: it is not there; or what it raises, with the line.
    """
    try:
        return function()
    except SourceError as error:
        raise ModelError(str(error)) from error
    except Exception as error:
        own = Path(module_name).resolve()
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == own]
        place = f"line {lines[-1]} of {module_name}" if lines else f"making '{name}'"
        raise ModelError(f"{place} raises {type(error).__name__}: {error}") from error


def _built(name: str, module_name: str, function: Callable[[], Any]) -> nn.Module:
    """A new model, in the mode in which it is trained."""
    made = _called(name, module_name, function)
    if not isinstance(made, nn.Module):
        raise ModelError(f"model is '{name}', whose model() makes a value of type {type(made).__name__}, no nn.Module.")
    return made.train()


def _task(name: str, task: Task, build: Callable[[], nn.Module], example: Example | None) -> Patient:
    run_with = "class numbers and the task's loss"
    if example is None:
        example, run_with = _from_shard(task)
    place, mended = _returned(task.model)
    return Patient(name=name, build=build, is_task=True, example=example, run_with=run_with, place=place, mended=mended)


def _from_shard(task: Task) -> tuple[Example | None, str]:
    """The shape of a simulated client's records: of no record a value, and of the shard no size."""
    clients = FIELDS["clients"].default
    assert isinstance(clients, int)  # the setting has a default
    try:
        shard = task.shard(ShardSource(partition_id=0, num_partitions=clients))
    except Exception as error:
        why = f"task.shard() raises {type(error).__name__} ({str(error).strip()})"
        return None, f"{why}: give the shape of one record, --input-shape 3,32,32"
    return Example(loss=task.loss, inputs=shard.inputs[:0], targets=shard.targets[:0]), "the task's loss"


def _model(name: str, build: Callable[[], nn.Module], expression: str, example: Example | None) -> Patient:
    return Patient(
        name=name,
        build=build,
        is_task=False,
        example=example,
        run_with="cross entropy" if example else "give the shape of one record, --input-shape 3,32,32",
        place=f"where you make {expression.rstrip('()')}",
        mended=f"model = made_private({expression})",
    )


def _example(loss: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], integers: bool) -> Example:
    inputs = torch.zeros(0, *shape, dtype=torch.int64 if integers else torch.float32)
    return Example(loss=loss, inputs=inputs, targets=torch.zeros(0, dtype=torch.int64))


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of each record; a class of score 0 is added, so that a model with one output has two classes."""
    scores = functional.pad(outputs.reshape(len(outputs), -1), (0, 1))
    return functional.cross_entropy(scores, targets, reduction="none")


def _returned(method: Callable[[], nn.Module]) -> tuple[str, str]:
    """Where a task's `model()` returns, and that line with `made_private`."""
    try:
        lines, first = inspect.getsourcelines(method)
        path = Path(inspect.getsourcefile(method) or "")
    except (OSError, TypeError):
        return "in the task's model()", "return made_private(...)"
    returns = [node for node in ast.walk(ast.parse(textwrap.dedent("".join(lines)))) if isinstance(node, ast.Return)]
    if len(returns) != 1 or returns[0].value is None:
        return f"in {path.name}, what model() returns", "return made_private(...)"
    place = f"in line {first + returns[0].lineno - 1} of {path.name}"
    value = returns[0].value
    if isinstance(value, ast.Call) and value.args:
        return f"{place}, with its arguments for the dots", f"return made_private({ast.unparse(value.func)}(...))"
    return place, f"return made_private({ast.unparse(value)})"
