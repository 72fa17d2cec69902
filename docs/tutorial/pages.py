"""Runs pages with code: writes below each block what it prints and shows, and draws figures.

python docs/tutorial/pages.py           # ten minutes: the averaging attack asks more than a thousand times
python docs/tutorial/pages.py PAGE...   # only these
"""

from __future__ import annotations

import ast
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
NOTEBOOKS = tuple(sorted((ROOT / "docs" / "notebooks").glob("[1-9]*.md")))
PAGES = (
    *sorted(FOLDER.glob("[1-9]*.md")),
    *NOTEBOOKS,
    ROOT / "docs" / "how-to" / "questions.md",
    ROOT / "docs" / "explanation" / "sharp-edges.md",
)

BLOCK = re.compile(r"```(python|sh)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
"""Of which kind a block is, what it says, and what the page says that it prints."""

SHOWN = re.compile(r"!\[[^\]]*\]\(\.\./images/(notebook-[\w-]+)\.svg\)")
"""Name of a figure that a block shows."""

SCRIPT = "python "
"""How a block begins that runs a script of the repository."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page whose code and commands have run.

    Attributes:
        text: of the page.
        names: what its code has defined; under `script`, what its script has.
        printed: what each block has printed; as in a notebook, also the value of its last line.
        drawn: the pictures that blocks have shown, in their order.
    """

    text: str
    names: Names
    printed: Sequence[str]
    drawn: Sequence[str]

    @classmethod
    def run(cls, path: Path, *, scripts: bool = False) -> Page:
        """Run a page from top to bottom, in the folder where we are.

        Args:
            path: of the page.
            scripts: whether scripts are run, which take minutes. If not, what the page says that they print is kept.
        """
        text, names, printed, drawn = path.read_text(), dict[str, Any](), [], []
        for kind, block, said in BLOCK.findall(text):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                if kind == "python":
                    drawn += _run_cell(block, path.name, names)
                elif not block.startswith(SCRIPT):
                    out.write(_typed(block))
                elif scripts:
                    names["script"] = _run_script(block.removeprefix(SCRIPT))
                else:
                    out.write(said)
            printed.append(out.getvalue())
        return cls(text, names, printed, drawn)

    @property
    def said(self) -> list[str]:
        """What the page says that each block prints."""
        return [said for _, _, said in BLOCK.findall(self.text)]

    @property
    def shown(self) -> list[str]:
        """Names of the figures that the page says its blocks show."""
        return SHOWN.findall(self.text)

    def corrected(self) -> str:
        """The page with what its blocks have printed."""
        printed = iter(self.printed)
        return BLOCK.sub(lambda block: _block(block[1], block[2], next(printed)), self.text)


def _block(kind: str, block: str, printed: str) -> str:
    return f"```{kind}\n{block}```\n" + f"\n```text\n{printed}```\n" * bool(printed)


def _run_cell(block: str, page: str, names: dict[str, Any]) -> list[str]:
    """Run a block, print the value of its last line as a notebook shows it, or return it if it is a picture."""
    *before, last = ast.parse(block).body
    if not isinstance(last, ast.Expr):
        exec(compile(block, page, "exec"), names)
        return []
    exec(compile(ast.Module(before, []), page, "exec"), names)
    value = eval(compile(ast.Expression(last.value), page, "eval"), names)
    if hasattr(value, "_repr_svg_"):
        return [for_both_themes(value._repr_svg_())]
    if value is not None:
        sys.stdout.write(f"{value!r}\n")
    return []


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


def renew(*chosen: Path) -> None:
    """Run every page, or those chosen, correct what they say, and draw their figures."""
    with tempfile.TemporaryDirectory() as elsewhere:
        pages = {}
        for path in chosen or PAGES:
            with contextlib.chdir(tempfile.mkdtemp(dir=elsewhere)):
                pages[path] = Page.run(path, scripts=True)
    drawn = {}
    for path, page in pages.items():
        path.write_text(page.corrected(), encoding="utf-8")
        drawn |= dict(zip(page.shown, page.drawn, strict=True))
    by_name = {path.name: page for path, page in pages.items()}
    drawn |= {name: picture(draw(by_name[page].names)) for name, (page, draw) in FIGURES.items() if page in by_name}
    for name, svg in drawn.items():
        (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    renew(*(Path(each).resolve() for each in sys.argv[1:]))
