"""How the user called this program, so that what is printed can be typed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def as_typed() -> str:
    """How to call this program again: by its name where the shell finds it, else by its path from here."""
    program = sys.argv[0]
    path = Path(program)
    if shutil.which(path.name) == str(path):
        return path.name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else program
