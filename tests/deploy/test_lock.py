"""The lock files hold all that a node and a server install, PyTorch excepted, each version with its hashes.

A host without a network gets fedprivacy from a folder of wheels, each by its hash, as docs/how-to/operate.md says.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.commands.running import fedprivacy
from tests.conftest import lacking
from tests.deploy.written_hosts import BWRAP
from tests.house import ROOT

LOCKS = ROOT / "fedprivacy" / "deploy" / "requirements"


def locked(file):
    """The pinned requirements of a lock file, each with its hashes."""
    logical = file.read_text().replace("\\\n", " ")
    lines = [line for line in logical.splitlines() if line and not line.lstrip().startswith("#")]
    return [(Requirement(line.partition(" --hash=")[0]), re.findall(r" --hash=(\S+)", line)) for line in lines]


def applying(pins):
    """Map the name of each package that is installed here to its version."""
    chosen = [pin for pin, _ in pins if not pin.marker or pin.marker.evaluate()]
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in chosen}
    assert len(versions) == len(chosen)  # else two versions of one package
    return versions


EXTRAS = {"node": ("node",), "server": ("figures", "postgres")}
"""Extras that each party installs: what `make lock` resolves."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
OF_THE_HOST = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
"""PyTorch and what its CUDA builds bring: each host chooses its build."""


@pytest.mark.parametrize("party", EXTRAS)
def test_what_a_party_requires_is_locked_in_a_version_that_is_admitted(party):
    versions = applying(locked(LOCKS / f"{party}.txt"))
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS[party] for line in OPTIONAL[extra])]
    required = [each for each in map(Requirement, lines) if each.name != "torch"]
    assert {"flwr", "numpy", "sqlalchemy", "cryptography"} <= {each.name for each in required}
    for each in required:
        assert each.specifier.contains(versions[canonicalize_name(each.name)], prereleases=True), each


@pytest.mark.parametrize("party", EXTRAS)
def test_every_version_has_hashes_and_no_build_of_pytorch_is_chosen_for_a_host(party):
    pins = locked(LOCKS / f"{party}.txt")
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for _, hashes in pins for each in hashes)
    assert all(hashes for _, hashes in pins)
    assert not [pin.name for pin, _ in pins if OF_THE_HOST.fullmatch(pin.name)]
    assert "://" not in (LOCKS / f"{party}.txt").read_text()


def test_a_server_has_every_version_of_a_node():
    node, server = ({str(pin): hashes for pin, hashes in locked(LOCKS / f"{party}.txt")} for party in EXTRAS)
    assert server.items() > node.items()
    assert any(pin.startswith("altair==") for pin in server) and any(pin.startswith("psycopg==") for pin in server)


def test_what_is_locked_of_pytorch_is_what_the_installed_one_needs_besides_cuda():
    (told,) = tomllib.loads((ROOT / ".ci" / "lock.toml").read_text())["dependency-metadata"]
    needed = [Requirement(line) for line in importlib.metadata.requires("torch")]
    kept = [each for each in needed if "extra" not in str(each.marker) and not OF_THE_HOST.fullmatch(each.name)]
    assert sorted(str(Requirement(line)) for line in told["requires-dist"]) == sorted(
        f"{each.name}{each.specifier}" for each in kept
    )


@pytest.mark.parametrize("platform", ["systemd", "compose", "helm"])
def test_each_party_gets_its_own_and_is_told_to_install_it(platform, tmp_path):
    (tmp_path / "deployment.toml").write_text(fedprivacy("deploy", "init", "--example", cwd=tmp_path).stdout)
    fedprivacy("deploy", "init", "deployment.toml", "--for", platform, cwd=tmp_path)
    for party, folder in {"server": "server", "node": "clients/hospital-0"}.items():
        own = tmp_path / "deployment" / folder / ("" if platform == "systemd" else "image")
        assert (own / "requirements.txt").read_text() == (LOCKS / f"{party}.txt").read_text()
        steps = (own / ("README.md" if platform == "systemd" else "Dockerfile")).read_text()
        assert re.search(r"--require-hashes --no-deps -r /?requirements.txt\n", steps)


@pytest.mark.exhaustive
def test_the_versions_resolve_still_and_the_index_has_their_hashes(tmp_path):
    again = Path(shutil.copytree(LOCKS, tmp_path / "requirements"))
    environment = Path(sys.executable).parents[1]  # where flwr brings uv
    command = ["make", "lock", f"VENV={environment}", f"LOCKS={again}", "-o", f"{environment}/.installed-node"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "error sending request" in done.stderr or "dns error" in done.stderr:
        lacking("no package index can be reached")
    assert done.returncode == 0, done.stderr
    for party in EXTRAS:
        before, now = ({str(pin): set(all_) for pin, all_ in locked(at / f"{party}.txt")} for at in (LOCKS, again))
        assert before.keys() == now.keys()
        assert not [pin for pin, hashes in before.items() if not hashes <= now[pin]]


# --- without a network ---

PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text()
BIN = Path(sys.executable).parent


def typed(heading):
    """The commands below a heading of the page."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```bash\n(.*?)```", section, re.DOTALL)


def ran(command, cwd, *, offline=False, code=0, **environment):
    """Run commands in bash, with this environment's programs and, if `offline`, without a network."""
    sandbox = [BWRAP, "--ro-bind", "/", "/", "--bind", cwd, cwd, "--dev", "/dev", "--proc", "/proc", "--unshare-net"]
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_FIND_LINKS")}
    environment = kept | {"PATH": f"{BIN}:{kept['PATH']}", "HOME": cwd, "TMPDIR": cwd, "NO_COLOR": "1"} | environment
    words = [*(sandbox if offline else ()), "bash", "-euc", command]
    done = subprocess.run(words, cwd=cwd, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def host(bubblewrap, tmp_path_factory):
    """A folder with the wheelhouse that the page makes, and an environment that was installed from it offline."""
    folder = tmp_path_factory.mktemp("host")
    collect, install = typed("Install without a network")
    (folder / "requirements.txt").write_text((LOCKS / "node.txt").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    for written, here in {
        r" --index-url \S+": "",  # this machine's index has the build
        r"pip download .* fedprivacy==.*": f"uv build --quiet --wheel --out-dir wheelhouse {ROOT}",
        r"\[node\]==[\d.]+": f"[node]=={version}",
        r"/opt/fedprivacy\b": f"{folder}/env",
    }.items():
        assert re.search(written, collect + install)
        collect, install = (re.sub(written, here, commands) for commands in (collect, install))
    cache = {"HOME": str(Path.home()), "PIP_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    ran(collect, folder, **cache)
    said = ran(install, folder, offline=True, PIP_NO_COMPILE="0")  # pip takes only "no" as a word for not compiling
    return SimpleNamespace(folder=folder, said=said.stdout, version=version, wheels=folder / "wheelhouse")


@pytest.mark.soak  # the wheel's deployment installs it, too, from what the machine has already
def test_what_the_page_says_installs_and_runs_where_there_is_no_network(host):
    version, machine, *extras = host.said.splitlines()[-11:]
    assert version == f"fedprivacy {host.version}"
    assert machine.startswith("This machine: gradients by ")
    assert extras[0] == "Extras installed: none."


@pytest.mark.soak
def test_it_is_exactly_what_is_locked_and_pytorch(host):
    listed = ran("env/bin/pip list --format json", host.folder, offline=True).stdout
    found = {canonicalize_name(each["name"]): each["version"] for each in json.loads(listed)}
    expected = applying(locked(LOCKS / "node.txt"))
    assert found.pop("torch") and found.pop("fedprivacy") == host.version
    assert {name: found[name] for name in expected} == expected
    assert found.keys() - expected.keys() <= {"pip", "setuptools"}


@pytest.mark.soak
def test_a_wheel_that_was_exchanged_on_the_way_is_refused(host):
    (wheel,) = host.wheels.glob("mdurl-*.whl")
    right = wheel.read_bytes()
    wheel.write_bytes(right + b"\n")
    install = "env/bin/pip install --no-index --find-links wheelhouse --require-hashes -r wheelhouse/requirements.txt"
    refused = ran(f"{install} --force-reinstall --target other", host.folder, offline=True, code=1)
    wheel.write_bytes(right)
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr and "mdurl" in refused.stderr


@pytest.mark.soak
def test_the_bill_of_materials_names_all_that_is_installed_by_cyclonedx_own_schema(host):
    try:
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator
    except ImportError:
        lacking("no cyclonedx-bom; install the extra release")
    given = [f"VENV={sys.prefix}", f"NODE={host.folder}/env", f"DIST={host.folder}"]
    subprocess.run(["make", "-o", f"{sys.prefix}/.installed-release", "sbom", *given], cwd=ROOT, check=True)
    text = (host.folder / "fedprivacy-node.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    described = bill["metadata"]["component"]
    assert (described["name"], described["version"]) == ("fedprivacy", host.version)
    named = {canonicalize_name(part["name"]): part["version"] for part in bill["components"]}
    expected = applying(locked(LOCKS / "node.txt"))
    assert {name: named[name] for name in expected} == expected and "torch" in named
    assert all(part["purl"].startswith("pkg:pypi/") for part in bill["components"])
    assert str(host.folder) not in text
