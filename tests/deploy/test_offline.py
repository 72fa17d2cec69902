"""A host without a network gets fedprivacy from a folder of wheels, each by its hash: docs/how-to/operate.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.utils import canonicalize_name

from tests.conftest import lacking
from tests.deploy.locks import LOCKS, applying, locked
from tests.deploy.written_hosts import BWRAP
from tests.house import ROOT

pytestmark = pytest.mark.soak  # the wheel's deployment installs it, too, from what the machine has already

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


def test_what_the_page_says_installs_and_runs_where_there_is_no_network(host):
    version, machine, *extras = host.said.splitlines()[-11:]
    assert version == f"fedprivacy {host.version}"
    assert machine.startswith("This machine: gradients by ")
    assert extras[0] == "Extras installed: none."


def test_it_is_exactly_what_is_locked_and_pytorch(host):
    listed = ran("env/bin/pip list --format json", host.folder, offline=True).stdout
    found = {canonicalize_name(each["name"]): each["version"] for each in json.loads(listed)}
    expected = applying(locked(LOCKS / "node.txt"), {})
    assert found.pop("torch") and found.pop("fedprivacy") == host.version
    assert {name: found[name] for name in expected} == expected
    assert found.keys() - expected.keys() <= {"pip", "setuptools"}


def test_a_wheel_that_was_exchanged_on_the_way_is_refused(host):
    (wheel,) = host.wheels.glob("mdurl-*.whl")
    right = wheel.read_bytes()
    wheel.write_bytes(right + b"\n")
    install = "env/bin/pip install --no-index --find-links wheelhouse --require-hashes -r wheelhouse/requirements.txt"
    refused = ran(f"{install} --force-reinstall --target other", host.folder, offline=True, code=1)
    wheel.write_bytes(right)
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr and "mdurl" in refused.stderr


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
    expected = applying(locked(LOCKS / "node.txt"), {})
    assert {name: named[name] for name in expected} == expected and "torch" in named
    assert all(part["purl"].startswith("pkg:pypi/") for part in bill["components"])
    assert str(host.folder) not in text
