"""One bug: the harm that it does, the change of the code that makes it, and the tests and gates that notice it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug that the tests must notice.

    Attributes:
        meaning: what goes wrong, for the people whose records these are.
        place, old, new: the change, as in `Change`.
        breaks: the guarantee that no longer holds, from `guarantees`.
        tests: node ids; each must fail. As few and as cheap as will do; a test that starts a process sees no bug.
        gates: the auditor's gates that notice it, the surest first; that one must fail.
        task: the name of the audited task in `tests.privacy.audited_tasks`.
        settings: of the audited run, where the bug needs others than usual.
        also: further changes, for a bug that one change does not make.
    """

    meaning: str
    place: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    task: str = "Small"
    settings: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[Change, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes of the code."""
        return (Change(self.place, self.old, self.new), *self.also)
