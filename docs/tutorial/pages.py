"""Runs pages with code: writes below each block what it prints, and draws the tutorial's figures.

python docs/tutorial/pages.py    # three minutes: the averaging attack asks more than a thousand times
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import altair as alt
from figures import FIGURES, Names
from typer.testing import CliRunner

from fedprivacy.commands.app import app
from fedprivacy.figures.style import for_both_themes, to_svg

FOLDER = Path(__file__).parent.resolve()
ROOT = FOLDER.parents[1]
IMAGES = ROOT / "docs" / "images"
PAGES = (
    *sorted(FOLDER.glob("[1-9]*.md")),
    ROOT / "docs" / "how-to" / "questions.md",
    ROOT / "docs" / "explanation" / "sharp-edges.md",
)

BLOCK = re.compile(r"```(python|sh)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
"""Of which kind a block is, what it says, and what the page says that it prints."""

SCRIPT = "python "
"""How a block begins that runs a script of the repository."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page whose code and commands have run.

    Attributes:
        text: of the page.
        names: what its code has defined; under `script`, what its script has.
        printed: what each block has printed.
    """

    text: str
    names: Names
    printed: Sequence[str]

    @classmethod
    def run(cls, path: Path, *, scripts: bool = False) -> Page:
        """Run a page from top to bottom, in the folder where we are.

        Args:
            path: of the page.
            scripts: whether scripts are run, which take minutes. If not, what the page says that they print is kept.
        """
        text, names, printed = path.read_text(), dict[str, Any](), []
        for kind, block, said in BLOCK.findall(text):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                if kind == "python":
                    exec(compile(block, path.name, "exec"), names)
                elif not block.startswith(SCRIPT):
                    out.write(_typed(block))
                elif scripts:
                    names["script"] = _run_script(block.removeprefix(SCRIPT))
                else:
                    out.write(said)
            printed.append(out.getvalue())
        return cls(text, names, printed)

    @property
    def said(self) -> list[str]:
        """What the page says that each block prints."""
        return [said for _, _, said in BLOCK.findall(self.text)]

    def corrected(self) -> str:
        """The page with what its blocks have printed."""
        printed = iter(self.printed)
        return BLOCK.sub(lambda block: _block(block[1], block[2], next(printed)), self.text)


def _block(kind: str, block: str, printed: str) -> str:
    return f"```{kind}\n{block}```\n" + f"\n```text\n{printed}```\n" * bool(printed)


def _typed(commands: str) -> str:
    """What commands print, in a terminal of 100 characters."""
    lines: list[str] = []
    for command in commands.splitlines():
        with mock.patch.object(sys, "argv", ["fedprivacy"]):  # as they call themselves
            done = CliRunner(env={"COLUMNS": "100"}).invoke(app, shlex.split(command)[1:], catch_exceptions=False)
        if done.exit_code:
            raise RuntimeError(f"{command}: {done.output}")
        lines += done.stdout.splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _run_script(command: str) -> dict[str, Any]:
    """What a script defines."""
    file, *arguments = shlex.split(command)
    with mock.patch.object(sys, "argv", [file, *arguments]):
        return runpy.run_path(str(ROOT / file), run_name="__main__")


def picture(chart: alt.LayerChart) -> str:
    """As it is kept: for bright pages and dark ones."""
    return for_both_themes(to_svg(chart))


def renew() -> None:
    """Run every page, correct what it says, and draw its figures."""
    with tempfile.TemporaryDirectory() as elsewhere:
        pages = {}
        for path in PAGES:
            with contextlib.chdir(tempfile.mkdtemp(dir=elsewhere)):
                pages[path.name] = Page.run(path, scripts=True)
    for path in PAGES:
        path.write_text(pages[path.name].corrected(), encoding="utf-8")
    for name, (page, draw) in FIGURES.items():
        (IMAGES / f"{name}.svg").write_text(picture(draw(pages[page].names)), encoding="utf-8")


if __name__ == "__main__":
    renew()
