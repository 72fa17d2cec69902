"""The house stands as designed: imports point one way, one module is the only door out of a client, words are plain."""

import ast
import graphlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections import Counter

import pytest

from fedprivacy.runs.settings.configuration import FIELDS
from tests.house import DOORS, HOUSE, ROOT, imports, module_name, modules, name_of, tree

FLOORS = (
    ("_support", "values"),
    ("tasks", "gradients", "accounting", "mechanisms", "participation", "figures", "trackers"),
    ("training", "questions", "ledger", "guard"),
    ("runs",),
    ("flower",),
    ("audit", "server", "deploy", "dashboard", "single"),
    ("simulation",),
    ("commands",),
)
"""The rooms of the package, the lowest floor first. A room imports from lower floors and from itself."""

FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
FLOWER = FLOOR["flower"]


PUBLISHED = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
"""Packages that Flower's documentation names as its interface for apps."""


def room_of(path):
    return path.relative_to(ROOT / "fedprivacy").parts[0].removesuffix(".py")


def packages(path):
    return {name.split(".")[0] for name in imports(path)}


def rooms_entered(path):
    return {name.split(".")[1] for name in imports(path) if name.startswith("fedprivacy.")} & FLOOR.keys()


def offenders(paths, forbidden):
    """The modules that import a forbidden package, each with those that it imports."""
    return {name_of(path): found for path in paths if (found := packages(path) & forbidden)}


def test_every_room_has_a_floor():
    assert {room_of(path) for path in HOUSE} - DOORS == FLOOR.keys()


def test_imports_point_downwards():
    upwards = {
        name_of(path): above
        for path in HOUSE
        if (own := room_of(path)) not in DOORS
        and (above := {room for room in rooms_entered(path) if room != own and FLOOR[room] >= FLOOR[own]})
    }
    assert upwards == {}
    assert offenders(HOUSE, {"server", "clients", "simulations", "tests", "benchmarks"}) == {}


def test_what_only_the_owner_may_see_is_computed_in_no_deployed_client():
    private = {"fedprivacy.runs.usable", "fedprivacy.flower.simulated.shards"}
    users = {module_name(path) for path in HOUSE if imports(path) & private}
    assert users == {
        *("fedprivacy.commands.doctor", "fedprivacy.deploy.client_inspection", "fedprivacy.flower.simulated.shards"),
        *("fedprivacy.simulation.preconditions", "fedprivacy.single.private_gradients"),
    }


def test_no_module_imports_itself_by_a_detour():
    """Whole modules at once, wherever in them the import stands: what is put off is still a circle."""
    names = {module_name(path): path for path in HOUSE if path.stem not in DOORS}
    sorter = graphlib.TopologicalSorter({name: imports(path) & names.keys() - {name} for name, path in names.items()})
    sorter.prepare()  # raises graphlib.CycleError, which names the circle


@pytest.mark.parametrize(("package", "other"), [("server", "clients"), ("clients", "server")])
def test_server_and_clients_never_import_one_another(package, other):
    assert modules(package)
    assert offenders(modules(package), {other, "simulations"}) == {}


def test_below_the_bridge_nothing_knows_flower_or_the_web():
    below = [path for path in HOUSE if FLOOR.get(room_of(path), FLOWER) < FLOWER]
    assert offenders(below, {"flwr", "fastapi", "ray", "typer"}) == {}


def test_mathematics_knows_no_database():
    rooms = {"values", "tasks", "gradients", "accounting", "training", "questions"}
    assert offenders([path for path in HOUSE if room_of(path) in rooms], {"sqlalchemy", "rich"}) == {}


def test_accounting_needs_neither_torch_nor_dp_accounting():
    assert offenders(HOUSE, {"dp_accounting", "opendp"}) == {}
    assert offenders(modules("fedprivacy/accounting"), {"torch", "sklearn"}) == {}


def test_values_carry_no_engine():
    """Whoever reads a run needs numpy at most."""
    names = map(module_name, modules("fedprivacy/values"))
    heavy = "{'torch', 'flwr', 'sqlalchemy', 'scipy', 'altair', 'rich'}"
    code = f"import sys, {', '.join(names)}; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_tests_import_neither_a_module_of_tests_nor_a_benchmark():
    """Shared helpers live in modules without tests; benchmarks import those, too. Two modules test what benchmarks
    measure."""
    of_benchmarks = {"tests/test_benchmarks.py", "tests/gradients/test_launches.py"}
    of_tests = r"^\s*(?:from|import) tests\S*(?:\.| import (?:\([^)]*|.*)\b)test_\w+"
    for package, forbidden in (("tests", rf"{of_tests}|^\s*(?:from|import) benchmarks\b"), ("benchmarks", of_tests)):
        texts = {name_of(path): path.read_text() for path in modules(package)}
        texts = {name: text for name, text in texts.items() if name not in of_benchmarks}
        assert {name: found[0] for name, text in texts.items() if (found := re.search(forbidden, text, re.M))} == {}


def test_only_the_door_builds_a_client_s_replies():
    """In the modules that run on a client, no other than `release` constructs a Message."""
    replies = {"Message", "RecordDict", "ArrayRecord", "MetricRecord", "Error"}
    for path in modules("fedprivacy/flower/client"):
        if path.stem != "release":
            called = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
            assert not replies & {name.id for name in called if isinstance(name, ast.Name)}, path


def test_what_runs_at_a_hospital_imports_no_server_no_simulator_and_no_null_mechanism():
    """The null mechanism, by which a simulation trains without privacy, is the simulator's."""
    elsewhere = tuple(f"fedprivacy.flower.{room}" for room in ("server", "simulated"))
    assert importlib.util.find_spec("fedprivacy.flower.simulated.without_privacy")
    paths = [*modules("fedprivacy/flower/client"), *modules("fedprivacy/flower/wire"), *modules("clients")]
    found = {name_of(path): [name for name in imports(path) if name.startswith(elsewhere)] for path in paths}
    assert {name: names for name, names in found.items() if names} == {}


def test_one_module_knows_what_flower_does_not_publish():
    """Every other one imports names that Flower's public packages list as theirs."""

    def published(name):
        package, _, own = name.rpartition(".")
        return name in PUBLISHED or (package in PUBLISHED and own in importlib.import_module(package).__all__)

    paths = [*HOUSE, *(path for package in ("server", "clients", "simulations") for path in modules(package))]
    used = {name_of(path): {name for name in imports(path) if name.split(".")[0] == "flwr"} for path in paths}
    beyond = {name: found for name, names in used.items() if (found := {one for one in names if not published(one)})}
    assert beyond.keys() == {"fedprivacy/flower/unpublished.py"}, beyond


def test_flower_s_run_config_has_exactly_the_settings_of_a_run():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["flwr"]["app"]["config"]) == set(FIELDS)


# --- words ---

NO_BEGINNINGS = re.compile(
    r"what|whether|how|who|whom|whose|whoever|whatever|whichever|whenever|wherever|that|which|where|when|of|in|to|with|"
    r"by|as|if|from|for|because|out|than|under|over|at|on|into|between|among|against|without|within|through|beyond|"
    r"before|after|since|until|while|though|although|unless|up|about|upon|beside|besides|instead|not",
    re.IGNORECASE,
)
NO_PARAMETERS = re.compile(  # `where`, `by` and `at` are words of the questions that users type
    r"of|ones|others|are|is|what|who|whose|which|how|why|within|without|between|under|into|said|told|made|meant"
)

FILES = [*HOUSE, *modules("server"), *modules("clients")]


def _texts(path):
    """Docstrings, and strings that stand right after an assignment and describe it."""
    for node in ast.walk(tree(path)):
        body = node.body if isinstance(getattr(node, "body", None), list) else []
        for before, child in zip([None, *body], body, strict=False):
            documents = before is None or isinstance(before, ast.Assign | ast.AnnAssign)
            if documents and isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                yield child.lineno, str(child.value.value)


def _violations(path):
    for line, text in _texts(path):
        first = re.match(r"\W*([\w']*)", text)[1]
        if NO_BEGINNINGS.fullmatch(first):
            yield f"{path}:{line}: begins with '{first}'"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.arg) and NO_PARAMETERS.fullmatch(node.arg):
            yield f"{path}:{node.lineno}: parameter '{node.arg}'"


@pytest.mark.exhaustive
def test_docstrings_begin_with_a_subject_and_parameters_are_no_riddles():
    assert [violation for path in FILES for violation in _violations(path)] == []


def test_no_module_s_name_stands_in_three_rooms_and_no_public_class_s_name_twice():
    stems = Counter(path.stem for path in HOUSE if not path.stem.startswith("__"))
    assert {stem for stem, times in stems.items() if times > 2} == set()
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in names.items() if times > 1} == set()
