"""What the doctor says: in a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import nn

from fedprivacy.commands.doctor.subjects import ModelError, Patient
from fedprivacy.gradients.checks.doctor import Diagnosis, diagnose, frozen_problems
from fedprivacy.gradients.checks.problems import Problem, grouped
from fedprivacy.gradients.checks.structure import made_private
from fedprivacy.values.wording import count_text

IMPORT = "from fedprivacy.gradients import made_private"

_MEANS = {
    "vmap": "vmap: exact, but slow for want of a rule, see fedprivacy.gradients.register_rule",
    "loop": "loop: exact, but slow: one backward pass for each record",
}
_SHOWN_LAYERS = 8


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit to the doctor.

    Attributes:
        patient: who was examined.
        model: as it is.
        diagnosis: of `model`.
        mended: what `made_private` makes of it; None if that was not asked for, or would mend nothing.
        after: the diagnosis of `mended`.
    """

    patient: Patient
    model: nn.Module
    diagnosis: Diagnosis
    mended: nn.Module | None = None
    after: Diagnosis | None = None


def visit(patient: Patient, *, fix: bool) -> Visit:
    """Examine a patient, and what `made_private` makes of it if `fix` is set.

    Raises:
        ModelError: `made_private` cannot copy the model.
    """
    model, other = patient.build(), patient.build()
    diagnosis = _examined(patient, model, other)
    if not (fix and diagnosis.fixable):
        return Visit(patient, model, diagnosis)
    try:
        mended = made_private(model)
    except Exception as error:
        raise ModelError(f"made_private cannot copy {patient.name}: {error}") from error
    return Visit(patient, model, diagnosis, mended, _examined(patient, mended, made_private(other)))


def as_json(seen: Visit) -> dict[str, Any]:
    """Everything as JSON types."""
    fixed = None
    if seen.after is not None:
        fixed = {"import": IMPORT, "place": seen.patient.place, "line": seen.patient.mended} | _facts(seen.after)
    return {"model": seen.patient.name} | _facts(seen.diagnosis) | {"fixed": fixed}


def page(seen: Visit, program: str, typed: str) -> Group:
    """Everything for a terminal.

    Args:
        seen: the visit.
        program: how the user calls this program.
        typed: the whole command line that the user typed.
    """
    patient = seen.patient
    parts = list(_findings(patient.name, patient, seen.diagnosis))
    if seen.after is not None:
        code = Text(f"{IMPORT}\n{patient.mended}", style="green")
        parts += [_text("\n[bold]made_private makes of it:[/]"), Padding(_changes(seen), (0, 0, 1, 4))]
        parts += _findings("The mended model", patient, seen.after)
        place = escape(patient.place)
        parts += [_text(f"\n[bold]Paste this[/] at the top of the file and {place}:"), Padding(code, (0, 4))]
    return Group(*parts, _text(f"\nNext: {_next(seen, program, typed)}"))


def _examined(patient: Patient, model: nn.Module, other: nn.Module) -> Diagnosis:
    diagnosis = diagnose(model, patient.example)
    return dataclasses.replace(diagnosis, problems=(*diagnosis.problems, *frozen_problems(model, other)))


def _facts(diagnosis: Diagnosis) -> dict[str, Any]:
    problems = [dataclasses.asdict(problem) for problem in diagnosis.problems]
    return {"sound": diagnosis.sound} | dataclasses.asdict(diagnosis) | {"problems": problems}


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
    grid.add_row("checked", Text(_checked(patient, diagnosis)))
    if diagnosis.means:
        means = _MEANS.get(diagnosis.means, diagnosis.means)
        grid.add_row("gradients", f"{means}, once it is mended" if serious else means)
    yield grid


def _changes(seen: Visit) -> Text:
    """The mended model as PyTorch prints it, with the lines in green that are new."""
    known = set(repr(seen.model).splitlines())
    lines = [Text(line, style="" if line in known else "green") for line in repr(seen.mended).splitlines()]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def _text(words: str) -> Text:
    """With markup, but without emoji: file.py:warning:... is a name."""
    return Text.from_markup(words, emoji=False)


def _checked(patient: Patient, diagnosis: Diagnosis) -> str:
    if patient.example is None:
        return f"its layers; not how it behaves: {patient.run_with}"
    if not diagnosis.ran:
        return "its layers; how it behaves shows once they are mended"
    shape = ",".join(str(size) for size in patient.example.inputs.shape[1:])
    return f"its layers, and how it behaves on made-up records of shape {shape or 'none'} with {patient.run_with}"


def _table(problems: tuple[Problem, ...]) -> Table:
    table = Table("layer", "problem", "fix", show_lines=True)
    table.columns[0].overflow = "fold"
    for layers, problem in grouped(problems):
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
    if not diagnosis.sound:
        return "mend by hand what is named here, then ask the doctor again."
    if patient.example is None:
        return f"[bold]{escape(typed)} --input-shape 3,32,32[/] runs it on made-up records."
    if patient.is_task:
        return f"[bold]{escape(program)} plan --task {escape(patient.name)}[/] shows what training it costs."
    return "make it a task, as docs/how-to/own-task.md shows."
