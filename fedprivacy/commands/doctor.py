"""`fedprivacy doctor`: finds the model that a user names, has it diagnosed, and says what to do.

What is named is a task, or whatever makes a model; what is said is a page for a terminal, or JSON.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy._support.imports import command, installed
from fedprivacy._support.sources import SourceError, is_source, load, names_file
from fedprivacy.gradients.doctor import Diagnosis, Example, diagnose, frozen_problems
from fedprivacy.gradients.engine import GradientEngine
from fedprivacy.gradients.structure import Problem, group_problems, made_private, replacements
from fedprivacy.runs.usable import Usable, null_records, usable_in_training
from fedprivacy.tasks import ShardSource, Task
from fedprivacy.tasks.identity import BUILT_IN, DEFAULT_TASK
from fedprivacy.tasks.loader import open_task
from fedprivacy.tasks.one_cell import READERS, Trial, try_cells
from fedprivacy.tasks.opened import is_task, lacking
from fedprivacy.tasks.sheet import Sheet, collecting_sheets
from fedprivacy.training.machine import Machine
from fedprivacy.values.wording import count_text

IMPORT = "from fedprivacy.gradients import made_private"

_METHODS = {
    "vmap": "vmap: exact, but slow: every record's gradient is written out",
    "loop": "loop: exact, but slow: one backward pass for each record",
}
_NONE = Usable(0, 0)
_SHOWN_LAYERS = 8
_GIVE_SHAPE = "give the shape of one record, --input-shape 3,32,32"


class ModelError(ValueError):
    """The object that the user named is not there, or makes no model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """The model to examine, under the name that the user wrote.

    Attributes:
        task: of the model; None: there is none.
        folder: a client's data folder, of whose tables one cell after another is changed; None: there is none.
        folder_given: whether the user named it.
        example: the shape of its records and its loss; None: only its layers can be looked at.
        run_with: what the model is run with, or why it cannot be, for people.
        place: where in the user's code the model is made.
        mended: that line, with `made_private`.
    """

    name: str
    build: Callable[[], nn.Module]
    task: Task | None
    folder: Path | None
    folder_given: bool
    example: Example | None
    run_with: str
    place: str
    mended: str


def find(name: str, input_shape: str = "", *, integers: bool = False, folder: Path | None = None) -> Patient:
    """The task or the model that a user names.

    Args:
        name: of a task, or of whatever makes a model.
        input_shape: that of one record, "3,32,32"; "": a task's records tell.
        integers: whether such records are whole numbers.
        folder: a client's data folder; None: that of the task's file, if the task reads a table there.

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
    found = _call(name, module_name, lambda: load("model", source))
    made_already = isinstance(found, nn.Module | Task) and not isinstance(found, type)
    build = found if callable(found) and not made_already else lambda: found
    made = _call(name, module_name, build)
    if folder is not None and not (is_task(made) and folder.is_dir()):
        raise ModelError(f"data-folder is '{folder}'; name a client's data folder, and a task that reads it.")
    if is_task(made):
        loss, build, run_with = made.loss, made.model, "class numbers and the task's loss"
        place, mended = _return_line(made.model)
    elif isinstance(made, nn.Module):
        loss, run_with = _cross_entropy, "cross entropy"
        place = f"where you make {attribute}"
        mended = f"model = made_private({attribute if made_already else f'{attribute}()'})"
    else:
        kind, missing = type(made).__name__, ", ".join(lacking(made))
        raise ModelError(
            f"model is '{name}', which makes a value of type {kind}: no nn.Module, and a task has {missing}."
        )
    example = _example(loss, shape, integers) if shape else None
    if example is None:
        example, run_with = _from_shard(made) if is_task(made) else (None, _GIVE_SHAPE)
    return Patient(
        name=name,
        build=partial(_build_model, name, module_name, build),
        task=made if is_task(made) else None,
        folder=folder or (Path(module_name).resolve().parent if is_task(made) and names_file(source) else None),
        folder_given=folder is not None,
        example=example,
        run_with=run_with,
        place=place,
        mended=mended,
    )


def _shape(words: str) -> tuple[int, ...] | None:
    if not words:
        return None
    sizes = words.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise ModelError(f"input-shape is '{words}'; give the sizes of one record's axes, for example 3,32,32.")
    return tuple(int(size) for size in sizes)


def _call(name: str, module_name: str, function: Callable[[], Any]) -> Any:
    """The result of the user's code; a ModelError says that it is not there, or what it raises, with the line."""
    try:
        return function()
    except SourceError as error:
        raise ModelError(str(error)) from error
    except Exception as error:
        own = Path(module_name).resolve()
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == own]
        place = f"line {lines[-1]} of {module_name}" if lines else f"making '{name}'"
        raise ModelError(f"{place} raises {type(error).__name__}: {error}") from error


def _build_model(name: str, module_name: str, function: Callable[[], Any]) -> nn.Module:
    """A new model, in the modes in which it is made: it is trained in them."""
    made = _call(name, module_name, function)
    if not isinstance(made, nn.Module):
        raise ModelError(f"model is '{name}', whose model() makes a value of type {type(made).__name__}, no nn.Module.")
    return made


def _from_shard(task: Task) -> tuple[Example | None, str]:
    """The shape of a simulated client's records: of no record a value, and of the shard no size."""
    try:
        with collecting_sheets():
            shard = task.shard(ShardSource(partition_id=0, num_partitions=task.recipe.clients))
    except Exception as error:
        return None, f"task.shard() fails ({type(error).__name__}: {str(error).strip()}): {_GIVE_SHAPE}"
    inputs, targets = shard.blank
    return Example(loss=task.loss, inputs=inputs, targets=targets), "the task's loss"


def _example(loss: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], integers: bool) -> Example:
    inputs = torch.zeros(0, *shape, dtype=torch.int64 if integers else torch.float32)
    return Example(loss=loss, inputs=inputs, targets=torch.zeros(0, dtype=torch.int64))


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each record; a class of score 0 is added, so that a model with one output has two classes."""
    scores = functional.pad(outputs.reshape(len(outputs), -1), (0, 1))
    return functional.cross_entropy(scores, targets, reduction="none")


def _return_line(method: Callable[[], nn.Module]) -> tuple[str, str]:
    """The line at which a task's `model()` returns, and that line with `made_private`."""
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


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit to the doctor: a patient's model as it is, and its diagnosis.

    `mended` is what `made_private` makes of it, and `after` the diagnosis of that; both are None if it was not asked
    for, or would mend nothing. `cells` is the trial of how a task reads its tables, `null` what is to be said of its
    null rows, empty if nothing, `sheets` are the local sheets of the tables, and `usable` the records that count.
    """

    patient: Patient
    model: nn.Module
    diagnosis: Diagnosis
    mended: nn.Module | None = None
    after: Diagnosis | None = None
    cells: Trial | None = None
    null: str = ""
    sheets: tuple[Sheet, ...] = ()
    usable: Usable = _NONE

    @property
    def sound(self) -> bool:
        """True if the model can be trained with DP-SGD, the task reads each record by itself, and most count."""
        return self.diagnosis.sound and not self.null and not (self.cells and self.cells.misread) and not self.void

    @property
    def void(self) -> bool:
        """True if more than half of the records count for nothing, and the task does not allow it."""
        return self.usable.mostly_void and not getattr(self.patient.task, "allow_null", False)

    @property
    def replacements(self) -> list[str]:
        """Number of layers of each kind that `made_private` replaced, and by what."""
        return [] if self.mended is None else replacements(self.model, self.mended)


def visit(patient: Patient, *, fix: bool) -> Visit:
    """Examine a patient, and what `made_private` makes of it if `fix` is set.

    Raises:
        ModelError: `made_private` cannot copy the model, or nothing can be tried in the folder that the user named.
    """
    model, other = patient.build(), patient.build()
    diagnosis = _examine(patient, model, other)
    sheets, usable = _count_records(patient, diagnosis)
    cells, null = _try_tables(patient, sheets), _unsaid(patient)
    seen = Visit(patient, model, diagnosis, cells=cells, null=null, sheets=sheets, usable=usable)
    if not (fix and diagnosis.fixable):
        return seen
    try:
        mended = made_private(model)
    except Exception as error:
        raise ModelError(f"made_private cannot copy {patient.name}: {error}") from error
    return dataclasses.replace(seen, mended=mended, after=_examine(patient, mended, made_private(other)))


def _try_tables(patient: Patient, sheets: tuple[Sheet, ...]) -> Trial | None:
    """The trial of the task's tables; None: there is none to try."""
    if patient.task is None or patient.folder is None:
        return None
    trial = try_cells(patient.task, patient.folder)
    if trial.untried and patient.folder_given and not sheets:
        raise ModelError(f"data-folder is '{patient.folder}', and nothing can be tried there: {trial.untried}.")
    return None if trial.untried else trial


def _count_records(patient: Patient, diagnosis: Diagnosis) -> tuple[tuple[Sheet, ...], Usable]:
    """The local sheets of the records in the patient's folder, or of a simulated client's, and how many count."""
    task, usable = patient.task, _NONE
    if task is None:
        return (), usable
    simulated = ShardSource(partition_id=0, num_partitions=task.recipe.clients)
    for source in [ShardSource(folder=patient.folder), simulated] if patient.folder else [simulated]:
        with collecting_sheets() as sheets, suppress(Exception):  # the trial of the tables says what fails
            shard = open_task(task=task).shard(source)
            usable = null_records(shard)
            usable = usable_in_training(open_task(task=task), shard) if diagnosis.sound else usable
        if sheets or usable.records:
            break
    return tuple(sheets if source.folder else ()), usable


def _unsaid(patient: Patient) -> str:
    """Explain what the task must say of its null rows; empty if nothing is missing. No value of a record is in it."""
    if patient.task is None or patient.example is None or patient.example.inputs.is_floating_point():
        return ""
    try:
        with collecting_sheets():
            open_task(task=patient.task).shard(ShardSource(partition_id=0, num_partitions=patient.task.recipe.clients))
    except ValueError as error:
        return str(error)
    except Exception:  # another shape was given than that of the task's own records
        return ""
    return ""


def this_machine() -> Machine:
    """This machine, and how it computes the gradients of the default task."""
    patient = find(DEFAULT_TASK, "1,8,8")  # the records themselves are in an extra that a node lacks
    assert patient.example is not None
    engine = GradientEngine(patient.build(), patient.example.loss)
    engine.prepare(patient.example.inputs, patient.example.targets)
    return Machine.here(engine)


def extras_text() -> str:
    """Return the extras that are installed, and a line with the command for each that is not."""
    found = installed()
    lines = [f"Extras installed: {', '.join(extra for extra in found if found[extra]) or 'none'}."]
    return "\n".join([*lines, *(f"Not installed: {each}; {command(each)}." for each in found if not found[each])])


def as_json(seen: Visit) -> dict[str, Any]:
    """Everything as JSON types."""
    fixed = None
    if seen.after is not None:
        fixed = {"import": IMPORT, "place": seen.patient.place, "line": seen.patient.mended} | _facts(seen.after)
        fixed["replaced"] = seen.replacements
    cells = None if seen.cells is None else dataclasses.asdict(seen.cells)
    facts = _facts(seen.diagnosis) | {"sound": seen.sound}
    reading = {"cells": cells, "null_rows": seen.null, "sheets": [dataclasses.asdict(sheet) for sheet in seen.sheets]}
    reading["usable"] = dataclasses.asdict(seen.usable)
    return {"model": seen.patient.name} | facts | {"fixed": fixed} | reading


def page(seen: Visit, program: str, typed: str) -> Group:
    """Everything for a terminal, given how the user calls this program, and the whole line that the user typed."""
    patient = seen.patient
    name = patient.name if seen.sound or not seen.diagnosis.sound else f"The model of {patient.name}"
    parts = [*_findings(name, patient, seen.diagnosis), *_reading(seen)]
    if seen.after is not None:
        code = Text(f"{IMPORT}\n{patient.mended}", style="green")
        replaced = escape("; ".join(seen.replacements))
        parts += [_text(f"\n[bold]made_private makes of it[/] ({replaced}):"), Padding(_changes(seen), (0, 0, 1, 4))]
        parts += _findings("The mended model", patient, seen.after)
        place = escape(patient.place)
        parts += [_text(f"\n[bold]Paste this[/] at the top of the file and {place}:"), Padding(code, (0, 4))]
    return Group(*parts, _text(f"\nNext: {_next(seen, program, typed)}"))


def _examine(patient: Patient, model: nn.Module, other: nn.Module) -> Diagnosis:
    diagnosis = diagnose(model, patient.example)
    return dataclasses.replace(diagnosis, problems=(*diagnosis.problems, *frozen_problems(model, other)))


def _facts(diagnosis: Diagnosis) -> dict[str, Any]:
    return {"sound": diagnosis.sound} | dataclasses.asdict(diagnosis)


def _findings(name: str, patient: Patient, diagnosis: Diagnosis) -> Iterator[RenderableType]:
    serious = [problem for problem in diagnosis.problems if not problem.warning]
    if serious:
        count = count_text(len(serious), "problem")
        yield _text(f"[bold red]{escape(name)} cannot be trained with DP-SGD: {count}[/]")
    elif diagnosis.ran:
        yield _text(f"[bold green]{escape(name)} is sound[/]")
    else:
        yield _text(f"[bold yellow]{escape(name)}: nothing is wrong with its layers; it was not run[/]")
    if diagnosis.problems:
        yield _table(diagnosis.problems)
    grid = Table.grid(padding=(0, 2))
    grid.add_row("parameters", f"{diagnosis.trained:,} trained, {diagnosis.frozen:,} frozen")
    grid.add_row("checked", Text(_checks_text(patient, diagnosis)))
    if diagnosis.method:
        method = _METHODS.get(diagnosis.method, diagnosis.method)
        grid.add_row("gradients", f"{method}, once it is mended" if serious else method)
    if diagnosis.obstacle:
        place, what, remedy = diagnosis.obstacle.place, diagnosis.obstacle.what, diagnosis.obstacle.remedy
        grid.add_row("slow because", Text(f"{place}\n{what}" if place else what))
        grid.add_row("faster", Text(remedy))
    for refusal in diagnosis.refused:
        grid.add_row("not used", Text(refusal))
    yield grid


def _reading(seen: Visit) -> Iterator[RenderableType]:
    """Lines about the task's own reading of its records."""
    grid = Table.grid(padding=(0, 2))
    if seen.null:
        yield _text("\n[bold red]The task does not say which rows are null[/]")
        grid.add_row("null rows", Text(seen.null))
    if seen.cells is not None and seen.cells.misread:
        yield _text("\n[bold red]One record decides what the task reads of others[/]")
        for misread in seen.cells.misread:
            grid.add_row("records", Text(str(misread)))
        grid.add_row("remedy", READERS)
    elif seen.cells is not None:
        tried = f"{count_text(seen.cells.columns, 'column')} tried"
        tried += f", {seen.cells.left} left out for want of time" if seen.cells.left else ""
        grid.add_row("records", f"each is read by itself: {tried}, one cell changed at a time in {seen.patient.folder}")
    for sheet in seen.sheets:
        grid.add_row("for you alone", Text("\n".join(sheet.lines)))
    for line in seen.usable.lines():
        grid.add_row("for you alone", Text(line))
    if seen.void:
        yield _text("\n[bold red]More than half of the records count for nothing[/]")
        grid.add_row("remedy", "mend them, or set allow_null = True in the task to train on the others")
    if grid.row_count:
        yield grid


def _changes(seen: Visit) -> Text:
    """The mended model as PyTorch prints it, with the lines in green that are new."""
    known = set(repr(seen.model).splitlines())
    lines = [Text(line, style="" if line in known else "green") for line in repr(seen.mended).splitlines()]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def _text(words: str) -> Text:
    """Text with markup, but without emoji: file.py:warning:... is a name."""
    return Text.from_markup(words, emoji=False)


def _checks_text(patient: Patient, diagnosis: Diagnosis) -> str:
    if patient.example is None:
        return f"its layers; not how it behaves: {patient.run_with}"
    if not diagnosis.ran:
        return "its layers; how it behaves shows once they are mended"
    shape = ",".join(str(size) for size in patient.example.inputs.shape[1:])
    return f"its layers, and how it behaves on made-up records of shape {shape or 'none'} with {patient.run_with}"


def _table(problems: tuple[Problem, ...]) -> Table:
    table = Table("layer", "problem", "fix", show_lines=True)
    table.columns[0].overflow = "fold"
    for layers, problem in group_problems(problems):
        warning = "[yellow]warning:[/] " if problem.warning else ""
        fix = " [green](--fix)[/]" if problem.fixable else ""
        what, remedy = escape(problem.what), escape(problem.remedy)
        table.add_row(Text(_names(layers)), _text(f"{warning}{what}"), _text(f"{remedy}{fix}"))
    return table


def _names(layers: list[str | None]) -> str:
    names = ["(the loss)" if layer is None else layer or "(the model)" for layer in layers]
    hidden = len(names) - _SHOWN_LAYERS
    return "\n".join(names if hidden <= 1 else [*names[:_SHOWN_LAYERS], f"and {hidden} more (--json)"])


def _next(seen: Visit, program: str, typed: str) -> str:
    patient, diagnosis = seen.patient, seen.diagnosis
    if seen.after is not None:
        return "paste it" + (", mend the rest by hand" if not seen.after.sound else "") + ", then ask the doctor again."
    if diagnosis.fixable:
        return f"[bold]{escape(typed)} --fix[/] shows the mended model, and what to paste."
    if not seen.sound:
        return "mend by hand what is named here, then ask the doctor again."
    if patient.example is None:
        return f"[bold]{escape(typed)} --input-shape 3,32,32[/] runs it on made-up records."
    if patient.task is not None:
        return f"[bold]{escape(program)} plan --task {escape(patient.name)}[/] shows what training it costs."
    return "make it a task, as docs/how-to/own-task.md shows."
