"""One bug: the harm that it does, the change of the code that makes it, and the tests and gates that notice it.

The catalogue's files hold bugs as a change is usually shown, under the guarantee that they break:

    # an epsilon is an upper bound, and tight

    a person's rows are accounted for as one record
    @@ fedprivacy.accounting.histories:_event_for_rows
    - RowSampledGaussian(event.sampling_rate, event.noise_multiplier, rows, event.relation)
    + event
    tests/accounting/test_persons.py::test_the_figures_of_the_guide

A bug may change several places, and have lines with several tests. `gates`, `task` and `settings` begin the lines of
what is audited.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURE = "a figure is right"
"""Broken where no guarantee is: numbers that people go by, and models that are worth training."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the code, found by meaning: where its lines stand, and how they are written, does not matter.

    Attributes:
        place: `module:Class.method`, the module alone for what stands outside functions, or a file that is not Python.
        old: an expression, or a run of statements, that is there once. A block that ends with `...` may go on.
        new: the code in its place. `...` stands for what it stood for in `old`.
    """

    place: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug that the tests must notice.

    Attributes:
        meaning: what goes wrong, for the people whose records these are.
        breaks: the guarantee that no longer holds, in the words of the table in `docs/explanation/architecture.md`.
        changes: of the code.
        tests: node ids; each must fail. As few and as cheap as will do; a test that starts a process sees no bug.
        gates: the auditor's gates that notice it, the surest first; that one must fail.
        task: the name of the audited task in `tests.privacy.audited_tasks`.
        settings: of the audited run, where the bug needs others than usual.
    """

    meaning: str
    breaks: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    gates: tuple[str, ...]
    task: str
    settings: Mapping[str, Any]

    @property
    def place(self) -> str:
        """Where the first change is."""
        return self.changes[0].place


def read(file: Path) -> Iterator[Bug]:
    """The bugs of a file."""
    breaks = ""
    for block in file.read_text().strip().split("\n\n"):
        if block.startswith("# "):
            breaks = block.removeprefix("# ")
        else:
            meaning, *lines = block.split("\n")
            yield _bug(meaning, breaks, lines)


def _bug(meaning: str, breaks: str, lines: Sequence[str]) -> Bug:
    places, tests, more = list[tuple[str, list[str], list[str]]](), list[str](), dict[str, str]()
    for line in lines:
        mark, _, text = line.partition(" ")
        if mark == "@@":
            places.append((text, [], []))
        elif mark in ("-", "+"):
            _, old, new = places[-1]
            (old if mark == "-" else new).append(text)
        elif mark.startswith("tests/"):
            tests.append(line)
        else:
            more[mark] = text
    changes = tuple(Change(place, "\n".join(old), "\n".join(new)) for place, old, new in places)
    gates = more.pop("gates", "")
    bug = Bug(
        meaning,
        breaks,
        changes,
        tuple(tests),
        tuple(gates.split(", ")) if gates else (),
        more.pop("task", "Small"),
        json.loads(more.pop("settings", "{}")),
    )
    if more or not places:
        raise ValueError(f"The bug {meaning!r} holds lines that say nothing, or changes nothing: {list(more)}")
    return bug
