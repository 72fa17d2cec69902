"""Extras that a node's install lacks: a client works without them, and whatever needs one names it."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
import tomli_w
from packaging.requirements import Requirement

from fedprivacy._support.imports import EXTRAS, installed
from fedprivacy.commands.app import app
from tests.house import HOUSE, ROOT, imports
from tests.terminal import CliRunner

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_THE_PROJECT = {"test", "lint", "mutation", "bench", "docs", "release"}
ONLY_IN_NOTEBOOKS = {"IPython"}
OFFERED = tuple(installed())

NODE = f"""
import sys
for module in {[*EXTRAS, "pandas", "pyarrow"]}:
    sys.modules[module] = None  # as where it is not installed
"""

CLIENT = """
from pathlib import Path
from tests.flower.deployment import DeployedGrid, charged, deployed_plan, start

plan = deployed_plan(Path.cwd(), rounds=1, clients=1, noise_multiplier=2.0, epsilon=20.0)
grid = DeployedGrid(plan, Path.cwd())
assert start(plan, grid).records[-1].participants == ("hospital-0",)
assert charged(plan, grid, "hospital-0") == {plan.event(): 2}
"""

SERVER = """
from pathlib import Path
import numpy as np
from fedprivacy.tasks.loader import load_task
from tests.flower.deployment import DeployedGrid, deployed_plan, start
from fedprivacy.ledger import Ledger

plan = deployed_plan(Path.cwd(), load_task("digits"), rounds=1, clients=1, noise_multiplier=2.0, epsilon=20.0)
grid = DeployedGrid(plan, Path.cwd())
np.savez("hospital-0/records.npz", features=np.zeros((90, 8, 8)), labels=np.arange(90) % 10)
try:
    start(plan, grid)
except Exception as error:
    print(error)
ledger = Ledger(plan.config.ledger)
print(ledger.dataset_ids(), ledger.accounts(ledger.dataset_ids()))
"""

COMMAND = """
from fedprivacy.commands.app import app

app(sys.argv[1:], prog_name="fedprivacy")
"""

COMMANDS = """
import json
from fedprivacy.commands.app import app
from tests.terminal import CliRunner

done = [CliRunner().invoke(app, line.split()) for line in sys.argv[1:]]
print(json.dumps([(one.exit_code, one.stdout, " ".join(one.stderr.split())) for one in done]))
"""
"""Several commands, for which torch and Flower are imported once."""


def output_of(line):
    """Type a command in this process; return what it printed."""
    done = CliRunner().invoke(app, line.split(), env={"COLUMNS": "400", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return done.output


def without_extras(program, *typed, cwd):
    """Run a program where no module of an extra is installed; return what it printed and what it said on stderr."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-c", NODE + program, *typed]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, " ".join(done.stderr.split())


def test_a_client_trains_is_charged_and_its_guard_is_read(tmp_path):
    shown, _ = without_extras(CLIENT + COMMAND, "guard", "show", "hospital-0/guard.log", "--json", cwd=tmp_path)
    assert 0 < json.loads(shown)["epsilon"] < 20


@pytest.mark.exhaustive
def test_a_simulation_ends_with_everything_but_its_report_and_says_how_to_get_that(tmp_path):
    simulate = "simulate --task tests.flower.blobs:Blobs --clients 2 --rounds 1 --epsilon 9 --out run"
    simulated, reported = json.loads(without_extras(COMMANDS, simulate, "report run", cwd=tmp_path)[0])
    code, printed, said = simulated
    assert code == 0 and "accuracy" in printed and "Report, with every client: none" in printed
    assert (
        "The report is not drawn: altair is not installed; pip install 'fedprivacy[figures]'. "
        "Later: fedprivacy report run" in said
    )
    assert {"model.safetensors", "ledger.db", "run.db"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert reported[0] == 2 and "not installed" in reported[2]


@pytest.mark.exhaustive
def test_a_server_that_lacks_a_built_in_task_s_public_records_says_so_before_anything_is_spent(tmp_path):
    """In its check, where a run is submitted, and in a run that was submitted with Flower's own command."""
    described = {"host": "localhost", "clients": ["hospital-0"], "task": "digits", "epsilon": 3.0, "delta": 1e-4}
    places = {"server-folder": str(tmp_path / "out" / "server"), "client-folder": f"{tmp_path}/{{client}}"}
    (tmp_path / "deployment.toml").write_text(tomli_w.dumps(described | places))
    server = tmp_path / "out" / "server"
    typed = (
        "deploy init deployment.toml --out out",
        f"deploy check {server} --json",
        f"deploy run {server}/digits-app --run-config {server}/run.toml",
    )
    told, _, printed = without_extras(COMMANDS + SERVER, *typed, cwd=tmp_path)[0].partition("\n")
    _, checked, refused = json.loads(told)
    assert "pip install 'fedprivacy[simulation]==" in (server / "README.md").read_text()
    needed = "public records are not here: sklearn is not installed; pip install 'fedprivacy[simulation]'."
    (line,) = [check for check in json.loads(checked[1])["checks"] if check["check"] == "run"]
    assert checked[0] == 1 and line["verdict"] == "failed" and needed in line["words"]
    assert refused[0] == 2 and needed in refused[2]
    assert "sklearn is not installed; pip install 'fedprivacy[simulation]'." in printed
    assert printed.endswith("['digits/hospital-0'] {}\n")


def test_the_doctor_of_a_node_names_the_command_for_each_extra_that_it_lacks(monkeypatch):
    for module in EXTRAS:
        monkeypatch.setitem(sys.modules, module, None)
    machine, none, *lacking = output_of("doctor").splitlines()
    assert machine.startswith("This machine: gradients by ") and none == "Extras installed: none."
    assert lacking == [f"Not installed: {extra}; pip install 'fedprivacy[{extra}]'." for extra in OFFERED]
    assert set(OFFERED) == PROJECT["optional-dependencies"].keys() - {"node", *OF_THE_PROJECT}


@pytest.mark.parametrize(
    ("left", "installs", "called"),
    [
        ("venvs/fedprivacy/pipx_metadata.json", "pipx install --force", "-m fedprivacy"),
        ("tools/fedprivacy/uv-receipt.toml", "uv tool install", "-m fedprivacy"),
        ("cache/archive-v0/Hx/pyvenv.cfg", "uv tool install", "uvx --from 'fedprivacy[{}]' fedprivacy"),
    ],
)
def test_an_environment_of_pipx_or_uv_is_told_the_command_of_that_tool_with_the_extras_that_are_there(
    left, installs, called, tmp_path, monkeypatch
):
    (tmp_path / left).parent.mkdir(parents=True)
    (tmp_path / left).touch()
    monkeypatch.setattr(sys, "prefix", str((tmp_path / left).parent))
    monkeypatch.setattr(sys, "argv", ["__main__.py"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    printed = output_of("doctor") + output_of("recommend cancer --epsilon 3")
    there = sorted({*OFFERED} - {"wandb"})
    assert f"Not installed: wandb; {installs} 'fedprivacy[{','.join(sorted(OFFERED))}]'." in printed
    assert f"{called.format(','.join(there))} " in printed


NEEDING = {
    "simulate --clients 100 --workers 2": "workers is 2, and ray is not installed; pip install "
    "'fedprivacy[simulation]'.",
    "simulate": "sklearn is not installed; pip install 'fedprivacy[simulation]'.",
    "compare one two": "altair is not installed; pip install 'fedprivacy[figures]'.",
    "sweep --epsilon 1,2 --out swept": "altair is not installed",
    "risk --epsilon 1 --delta 1e-5 --figure risk.png": "altair is not installed",
    "dashboard": "altair is not installed",
}


@pytest.mark.exhaustive
def test_a_command_that_needs_an_extra_names_it_and_runs_nothing(tmp_path):
    printed, _ = without_extras(COMMANDS, *NEEDING, cwd=tmp_path)
    for (code, _, error), needed in zip(json.loads(printed), NEEDING.values(), strict=True):
        assert code == 2 and error.startswith("error: ") and needed in error
    assert not any(tmp_path.iterdir())


def test_every_import_is_of_the_base_or_of_an_extra():
    base, offered = closure(*PROJECT["dependencies"]), closure(*(f"fedprivacy[{extra}]" for extra in OFFERED))
    owners = importlib.metadata.packages_distributions()
    modules = {name.partition(".")[0] for path in HOUSE for name in imports(path)}
    found = {module: {spelt(owner) for owner in owners.get(module, ())} for module in modules | EXTRAS.keys()}
    known = sys.stdlib_module_names | {"fedprivacy", *ONLY_IN_NOTEBOOKS}
    assert {module for module in modules - known if not found[module] & (base | offered)} == set()
    assert {module for module in EXTRAS if found[module] & base} == set()
    assert {module for module, extra in EXTRAS.items() if not found[module] & closure(f"fedprivacy[{extra}]")} == set()


def closure(*requirements):
    """The names of all packages that these requirements bring, of those that are installed here."""
    found, left = {}, [Requirement(each) for each in requirements]
    while left:
        one = left.pop()
        if (spelt(one.name), *sorted(one.extras)) in found:
            continue
        if one.name == "fedprivacy":  # as it is written here, whenever it was installed
            extras = PROJECT["optional-dependencies"]
            brought = [Requirement(each) for extra in one.extras for each in extras[extra]]
        else:
            brought = [Requirement(each) for each in requires(one.name)]
        found[(spelt(one.name), *sorted(one.extras))] = one
        chosen = [{"extra": extra} for extra in (*one.extras, "")]
        left += [each for each in brought if not each.marker or any(map(each.marker.evaluate, chosen))]
    return {spelt(one.name) for one in found.values()}


def requires(name):
    """List the requirements of an installed package; of one that is not installed none are known."""
    try:
        return importlib.metadata.requires(name) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def spelt(name):
    return re.sub(r"[-_.]+", "-", name).lower()
