"""The house stands as designed: imports point one way, and one module is the only door out of a client."""

import ast
import tomllib
from pathlib import Path

import pytest

from fedprivacy.config import FIELDS

ROOT = Path(__file__).parent.parent
MATHEMATICS = [
    "accounting",
    "gradients",
    "budget",
    "events",
    "keystream",
    "sampling",
    "noise",
    "mechanisms",
    "optimizers",
    "adaptive",
    "dpsgd",
]


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


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


@pytest.mark.parametrize("path", modules("fedprivacy"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_library_imports_neither_server_nor_clients(path):
    if path.name != "cli.py" or path.parent.name != "fedprivacy":
        assert not packages(path) & {"server", "clients", "simulations", "tests", "benchmarks"}


@pytest.mark.parametrize(("package", "other"), [("server", "clients"), ("clients", "server")])
def test_server_and_clients_never_import_one_another(package, other):
    assert modules(package)
    assert not any({other, "simulations"} & packages(path) for path in modules(package))


@pytest.mark.parametrize("name", MATHEMATICS)
def test_mathematics_imports_no_flower_no_database_no_web(name):
    paths = modules(f"fedprivacy/{name}") or [ROOT / "fedprivacy" / f"{name}.py"]
    for path in paths:
        assert path.exists()
        assert not packages(path) & {"flwr", "sqlalchemy", "fastapi", "ray", "rich", "typer"}
        allowed = {f"fedprivacy.{part}" for part in MATHEMATICS}
        own = {name for name in imports(path) if name.startswith("fedprivacy.")}
        assert all(any(name == part or name.startswith(f"{part}.") for part in allowed) for name in own)


def test_accounting_needs_neither_torch_nor_dp_accounting():
    for path in modules("fedprivacy"):
        assert "dp_accounting" not in packages(path)
    for path in modules("fedprivacy/accounting"):
        assert not packages(path) & {"torch", "sklearn"}


def test_only_the_door_builds_a_client_s_replies():
    """In the modules that run on a client, no other than `release` constructs a Message."""
    for name in ("client", "local"):
        tree = ast.parse((ROOT / "fedprivacy" / "flower" / f"{name}.py").read_text())
        calls = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        assert not {"Message", "RecordDict", "ArrayRecord", "MetricRecord", "Error"} & set(calls)


def test_flower_s_run_config_has_exactly_the_settings_of_a_run():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["flwr"]["app"]["config"]) == set(FIELDS)
