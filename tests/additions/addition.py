"""An addition as a stranger makes it: texts put into files of a copy of the project, and a program that uses them.

What it takes is counted on the copy, and CONTRIBUTING.md has a table of it, which the count must agree with.
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("fedprivacy", "server", "clients", "tests", "docs")
GUIDE = ROOT / "CONTRIBUTING.md"

_FROM_THE_COPY = """
import pathlib, fedprivacy
assert pathlib.Path(fedprivacy.__file__).parent.parent == pathlib.Path.cwd(), fedprivacy.__file__
"""


@dataclass(frozen=True)
class Addition:
    """What a stranger writes.

    Attributes:
        edits: into files that are there: for each a list of (old, new) texts; the old one is there exactly once.
        files: whole ones, of the stranger's own, by folder and name.
    """

    edits: dict[str, list[tuple[str, str]]]
    files: dict[tuple[str, str], str] = field(default_factory=dict)

    def __or__(self, other):
        """Both."""
        names = [*self.edits, *(name for name in other.edits if name not in self.edits)]
        edits = {name: self.edits.get(name, []) + other.edits.get(name, []) for name in names}
        return Addition(edits, self.files | other.files)

    def made_in(self, folder):
        """A copy of the project with the addition."""
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for name, edits in self.edits.items():
            path = folder / name
            for old, new in edits:
                text = path.read_text()
                assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
                path.write_text(text.replace(old, new))
        for (room, name), text in self.files.items():
            assert not (folder / room / name).exists()
            (folder / room / name).write_text(text)
        return folder

    def run(self, folder, program):
        """What a program prints that imports the project from a copy with the addition."""
        wide = {"PYTHONPATH": str(self.made_in(folder)), "COLUMNS": "400", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _FROM_THE_COPY + program],
            cwd=folder,
            env=os.environ | wide,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def after(line, added):
    """The edit that adds a text after one that is there."""
    return line, line + added


def counted(folder):
    """Of a copy: files that changed, lines that are new in them, files that are new, and their lines."""
    changed, new = [], []
    for path in sorted(folder.rglob("*")):
        original = ROOT / path.relative_to(folder)
        if path.suffix == ".pyc" or not path.is_file():
            continue
        if not original.exists():
            new.append(len(path.read_text().splitlines()))
        elif (there := path.read_bytes()) != (before := original.read_bytes()):
            texts = before.decode().splitlines(), there.decode().splitlines()
            lines = difflib.unified_diff(*texts, n=0, lineterm="")
            changed.append(sum(line.startswith("+") and not line.startswith("+++") for line in lines))
    return len(changed), sum(changed), len(new), sum(new)


def promised(name):
    """What the table in CONTRIBUTING.md says of an addition, in the same order."""
    (row,) = re.findall(rf"^\| \[?{name}\b.*?\|(.*)\|$", GUIDE.read_text(), flags=re.MULTILINE)
    return tuple(map(int, row.split("|")))
