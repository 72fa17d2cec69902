"""The weight of the product, and its ceilings: `python -m tests.budget` prints both, room by room.

    python -m tests.budget            # what each room has left of its budget
    python -m tests.budget --lower    # after taking something out: bring the ceilings in tests/budget.toml down

The ceilings only come down. To let one room grow, take its lines from another one; the total rises only in a commit
that changes nothing but `tests/budget.toml` and says why.
"""

import ast
import itertools
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.house import HOUSE, ROOT, imports, module_name, tree

FILE = Path(__file__).with_suffix(".toml")
FEATURES = Path(__file__).with_name("features.toml")
PAGES = {".js", ".css", ".html", ".jinja", ".yaml", ".yml"}
"""Kinds of files beside Python's that a room is made of."""

SLACK = 0.02
"""Part of a ceiling that may be left unused; more than that, and the ceiling comes down."""

SMALL = 110
"""Lines of a module that is small enough to join the only module that imports it."""

SHARED = 4
"""Number of field names that two classes of values have in common where one of them could be made of the other."""


class Weight(NamedTuple):
    """The size of a room, or of all rooms together."""

    lines: int
    """Lines of Python."""
    modules: int
    public_names: int
    """Functions, classes and constants of its modules whose names begin with no underscore."""
    page_lines: int
    """Lines of web pages and templates."""

    def __add__(self, other):
        return Weight(*map(sum, zip(self, other, strict=True)))


def room_of(path):
    """The room of a file of the product; `doors` for modules that stand in no room."""
    first, *rest = path.relative_to(ROOT / "fedprivacy").parts
    return first if rest else "doors"


def rooms():
    """The weight of each room of `fedprivacy`, by its name."""
    found = Counter()
    for path in (ROOT / "fedprivacy").rglob("*"):
        if path.suffix in PAGES:
            found[room_of(path), "page_lines"] += _lines(path)
    for path in HOUSE:
        room = room_of(path)
        found[room, "lines"] += _lines(path)
        found[room, "modules"] += 1
        found[room, "public_names"] += len(_public_names(path))
    return {
        room: Weight(*(found[room, each] for each in Weight._fields)) for room in sorted({room for room, _ in found})
    }


def counters():
    """Shapes of code that may only become fewer, and how often each occurs."""
    pairs = itertools.combinations(_fields_of_values(), 2)
    return {
        "values_alike": sum(len(one & other) >= SHARED for one, other in pairs),
        "small_modules_with_one_importer": len(joinable()),
        "exception_classes": sum(map(_is_exception, _classes())),
        "features": len(features()),
    }


def joinable():
    """The small modules that one module of the same room imports and no other one does, each with its importer."""
    importers = {path: [] for path in HOUSE}
    by_name = {module_name(path): path for path in HOUSE}
    for path in HOUSE:
        for name in imports(path) & by_name.keys():
            if by_name[name] != path:
                importers[by_name[name]].append(path)
    return {
        path: users[0]
        for path, users in importers.items()
        if len(users) == 1 and path.stem != "__init__" and room_of(users[0]) == room_of(path) and _lines(path) <= SMALL
    }


@cache
def features():
    """The modules and folders of each feature: the entries of `tests/features.toml`."""
    return {name: feature["where"] for name, feature in tomllib.loads(FEATURES.read_text()).items()}


def feature_of(path):
    """The features to which a module belongs by its longest entry: its own path, or a folder around it."""
    own = str(path.relative_to(ROOT / "fedprivacy"))
    fitting = {
        (len(where), name)
        for name, places in features().items()
        for where in places
        if own == where or (where.endswith("/") and own.startswith(where))
    }
    longest = max((length for length, _ in fitting), default=0)
    return [name for length, name in fitting if length == longest]


def budget():
    """The ceilings as written: `total`, `rooms` and `counters`."""
    return tomllib.loads(FILE.read_text())


def lower():
    """Bring each ceiling down to what there is, and leave alone what is above its ceiling."""
    now, old = rooms(), budget()
    total = sum(now.values(), Weight(0, 0, 0, 0))
    lines = [_HEAD, "[total]", *_lowered(total._asdict(), old["total"]), ""]
    lines += ["[counters]", *_lowered(counters(), old["counters"]), "", "[rooms]"]
    for room, weight in now.items():
        ceilings = ", ".join(_lowered(weight._asdict(), old["rooms"].get(room, {})))
        lines.append(f"{room} = {{ {ceilings} }}")
    FILE.write_text("\n".join(lines) + "\n")


_HEAD = """\
# The ceilings of the product's weight, which tests/test_budget.py compares with what there is. Nothing may stand above
# its ceiling or more than 2 % below it: `python -m tests.budget --lower` brings the ceilings down in the commit that
# takes something out. The total rises only in a commit that changes this file alone and says why.
"""


def _lowered(now, ceilings):
    return [f"{name} = {min(count, ceilings.get(name, count))}" for name, count in now.items()]


def _lines(path):
    return path.read_text().count("\n")


def _public_names(path):
    found = []
    for node in tree(path).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = {name}
            case ast.Assign(targets=targets):
                names = {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = {name}
            case _:
                names = set()
        found += (name for name in names if not name.startswith("_"))
    return found


def _classes():
    return [node for path in HOUSE for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]


def _fields_of_values():
    """The field names of each class that is a dataclass, a named tuple or a pydantic model."""
    return [
        {each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
        for node in _classes()
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        or any(ast.unparse(base) in {"NamedTuple", "BaseModel", "TypedDict"} for base in node.bases)
    ]


def _is_exception(node):
    return any(ast.unparse(base).endswith(("Error", "Exception", "Refused", "Warning")) for base in node.bases)


def table():
    """The lines of each room, its ceiling and what is left of it, and the same for the total."""
    now, ceilings = rooms(), budget()
    total = sum(now.values(), Weight(0, 0, 0, 0))
    rows = [(room, weight, ceilings["rooms"].get(room)) for room, weight in now.items()]
    rows.append(("total", total, ceilings["total"]))
    yield f"{'':14}{'lines':>9}{'of':>8}{'left':>7}{'modules':>9}{'of':>5}{'names':>7}{'of':>6}{'pages':>7}{'of':>6}"
    for room, weight, ceiling in rows:
        of = Weight(**ceiling) if ceiling else Weight(0, 0, 0, 0)
        yield (
            f"{room:14}{weight.lines:9,}{of.lines:8,}{of.lines - weight.lines:7,}{weight.modules:9}{of.modules:5}"
            f"{weight.public_names:7}{of.public_names:6}{weight.page_lines:7,}{of.page_lines:6,}"
        )
    for name, count in counters().items():
        yield f"{name.replace('_', ' '):40}{count:5} of {ceilings['counters'][name]}"


if __name__ == "__main__":
    if "--lower" in sys.argv:
        lower()
    print("\n".join(table()))
