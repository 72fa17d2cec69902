"""The lock files hold all that a node and a server install, PyTorch excepted, each version with its hashes."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.commands.running import fedprivacy
from tests.conftest import lacking
from tests.deploy.locks import LOCKS, applying, locked
from tests.house import ROOT

EXTRAS = {"node": ("node",), "server": ("figures", "postgres")}
"""Extras that each party installs: what `make lock` resolves."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
OF_THE_HOST = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
"""PyTorch and what its CUDA builds bring: each host chooses its build."""

ENVIRONMENTS = [
    {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    for python in ("3.11", "3.12", "3.13", "3.14")
    for machine in ("x86_64", "aarch64")
]


@cache
def described(name):
    """The version of a package that is installed here, and its requirements; None: it is not installed."""
    if name == "fedprivacy":
        extras = [f"{line}; extra == '{extra}'" for extra, lines in OPTIONAL.items() for line in lines]
        return "", [Requirement(line) for line in (*PROJECT["dependencies"], *extras)]
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return found.version, [Requirement(line) for line in found.requires or ()]


def needs(requirement, versions, environment):
    """List what a requirement brings, but for CUDA's packages; nothing is known of another version than the locked."""
    found = described(requirement.name)
    if found is None or found[0] != versions.get(canonicalize_name(requirement.name), found[0]):
        return
    extras = [{"extra": extra} for extra in (*requirement.extras, "")]
    for each in found[1]:
        applies = not each.marker or any(each.marker.evaluate(environment | extra) for extra in extras)
        if applies and (each.name == "torch" or not OF_THE_HOST.fullmatch(each.name)):
            yield each


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda each: " ".join(list(each.values())[1:]))
@pytest.mark.parametrize("party", EXTRAS)
def test_whatever_a_party_needs_is_locked_in_a_version_that_its_constraints_admit(party, environment):
    versions = applying(locked(LOCKS / f"{party}.txt"), environment)
    left = [Requirement(f"fedprivacy[{','.join(EXTRAS[party])}]")]
    seen = set()
    while left:
        one = left.pop()
        for each in needs(one, versions, environment):
            name = canonicalize_name(each.name)
            if name != "torch":
                assert each.specifier.contains(versions[name], prereleases=True), f"{each} of {one}"
            if (name, *sorted(each.extras)) not in seen:
                seen.add((name, *sorted(each.extras)))
                left.append(each)
    assert {name for name, *_ in seen} >= {"flwr", "numpy", "sqlalchemy", "cryptography", "filelock", "torch"}


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
