"""The house stands as designed: imports point one way, and one module is the only door out of a client."""

import ast
import graphlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedprivacy.runs.configuration import FIELDS

ROOT = Path(__file__).parent.parent
FLOORS = (
    ("_support",),
    ("values",),
    ("tasks", "gradients", "accounting", "trackers", "participation"),
    ("training",),
    ("questions",),
    ("ledger", "guard"),
    ("figures",),
    ("runs",),
    ("flower",),
    ("audit",),
    ("server",),
    ("reproductions",),
    ("deploy",),
    ("commands",),
)
"""The rooms of the package, the lowest floor first. A room imports from lower floors and from itself."""

FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
FLOWER = FLOOR["flower"]
DOORS = {"__init__", "__main__"}  # the front door, and `python -m fedprivacy`, open onto every room


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


HOUSE = modules("fedprivacy")


def name_of(path):
    return str(path.relative_to(ROOT))


def room_of(path):
    return path.relative_to(ROOT / "fedprivacy").parts[0].removesuffix(".py")


def imports(path):
    """Top-level names and full names of everything that a module imports, wherever in the module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages(path):
    return {name.split(".")[0] for name in imports(path)}


def rooms_entered(path):
    return {name.split(".")[1] for name in imports(path) if name.startswith("fedprivacy.")} & FLOOR.keys()


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in modules("fedprivacy")}
    assert rooms - DOORS == FLOOR.keys()


@pytest.mark.parametrize("path", modules("fedprivacy"), ids=name_of)
def test_imports_point_downwards(path):
    own = room_of(path)
    if own not in DOORS:
        assert all(room == own or FLOOR[room] < FLOOR[own] for room in rooms_entered(path))
    assert not packages(path) & {"server", "clients", "simulations", "tests", "benchmarks"}


def test_no_module_imports_itself_by_a_detour():
    """Whole modules at once, wherever in them the import stands: what is put off is still a circle."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in HOUSE}
    graph = {name: imports(path) & names.keys() - {name} for name, path in names.items() if path.stem not in DOORS}
    sorter = graphlib.TopologicalSorter({name: needed & graph.keys() for name, needed in graph.items()})
    sorter.prepare()  # raises graphlib.CycleError, which names the circle


@pytest.mark.parametrize(("package", "other"), [("server", "clients"), ("clients", "server")])
def test_server_and_clients_never_import_one_another(package, other):
    assert modules(package)
    assert not any({other, "simulations"} & packages(path) for path in modules(package))


@pytest.mark.parametrize("path", modules("fedprivacy"), ids=name_of)
def test_below_the_bridge_nothing_knows_flower_or_the_web(path):
    if FLOOR.get(room_of(path), FLOWER) < FLOWER:
        assert not packages(path) & {"flwr", "fastapi", "ray", "typer"}


@pytest.mark.parametrize("room", ["values", "tasks", "gradients", "accounting", "training", "questions"])
def test_mathematics_knows_no_database(room):
    for path in modules(f"fedprivacy/{room}"):
        assert not packages(path) & {"sqlalchemy", "rich"}


def test_accounting_needs_neither_torch_nor_dp_accounting():
    for path in modules("fedprivacy"):
        assert not packages(path) & {"dp_accounting", "opendp"}
    for path in modules("fedprivacy/accounting"):
        assert not packages(path) & {"torch", "sklearn"}


def test_values_carry_no_engine():
    """Whoever reads a run needs numpy at most."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules("fedprivacy/values")]
    heavy = "{'torch', 'flwr', 'sqlalchemy', 'scipy', 'altair', 'rich'}"
    code = f"import sys, {', '.join(names)}; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_only_the_door_builds_a_client_s_replies():
    """In the modules that run on a client, no other than `release` constructs a Message."""
    for path in modules("fedprivacy/flower/client"):
        if path.stem != "release":
            tree = ast.parse(path.read_text())
            calls = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
            assert not {"Message", "RecordDict", "ArrayRecord", "MetricRecord", "Error"} & set(calls)


def test_flower_s_run_config_has_exactly_the_settings_of_a_run():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["flwr"]["app"]["config"]) == set(FIELDS)
