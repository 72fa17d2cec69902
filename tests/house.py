"""The package's modules, the imports in each, and the table of guarantees, read from their sources."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOORS = {"__init__", "__main__"}  # the front door, and `python -m fedprivacy`, open onto every room


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


HOUSE = modules("fedprivacy")


def name_of(path):
    """The path of a file, from the project's folder."""
    return str(path.relative_to(ROOT))


def module_name(path):
    """The name by which a module is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    """Top-level names and full names of everything that a module imports, wherever in the module."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def promises():
    """(guarantee, quick witnesses, exhaustive witnesses), as the table of the architecture names them."""
    table = (
        (ROOT / "docs/explanation/architecture.md")
        .read_text()
        .partition("## Where each guarantee is kept")[2]
        .partition("\n\n##")[0]
    )
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row.startswith("| ")]
    return [(row[0], *(re.findall(r"`(tests/[^`]+)`", cell) for cell in row[2:])) for row in rows[1:]]
