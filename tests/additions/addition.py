"""An addition as a stranger makes it: texts put into files of a copy of the project."""

import difflib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("fedprivacy", "server", "clients", "tests", "docs")


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
        for name in self.edits:
            (folder / name).write_text(self.edited(name))
        for (room, name), text in self.files.items():
            assert not (folder / room / name).exists()
            (folder / room / name).write_text(text)
        return folder

    def edited(self, name):
        """The text of a file of the project with the addition's edits."""
        text = (ROOT / name).read_text()
        for old, new in self.edits[name]:
            assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
            text = text.replace(old, new)
        return text

    def counted(self):
        """Files that change, lines that are new in them, files that are new, and their lines."""
        changed = [_new_lines((ROOT / name).read_text(), self.edited(name)) for name in self.edits]
        new = [len(text.splitlines()) for text in self.files.values()]
        return len(changed), sum(changed), len(new), sum(new)


def after(line, added):
    """The edit that adds a text after one that is there."""
    return line, line + added


def _new_lines(before, now):
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), n=0, lineterm="")
    return sum(line.startswith("+") and not line.startswith("+++") for line in lines)
