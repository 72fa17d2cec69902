"""The services that `deploy init` writes run in a sandbox: read-only but for their folders, restarted, bounded."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import lacking
from tests.deploy.written_hosts import NGINX, command_of, deployment, sandboxed, setting

SERVER = ("dashboard", "proxy", "superexec", "superlink")
SERVICES = {f"server/systemd/fedprivacy-{name}.service" for name in SERVER} | {
    f"clients/hospital-1/systemd/fedprivacy-{name}.service" for name in ("client", "client-superexec")
}
MOST_EXPOSED = 2.0
"""Greatest exposure of a service, as systemd rates it from 0 to 10; without a sandbox it is 9.2."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A deployment whose programs are there, and do nothing."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "bin").mkdir()
    for name in ("python", "flower-superexec", "fedprivacy"):
        (folder / "bin" / name).touch(mode=0o755)
    return deployment(folder, folder)


def analyze(*words):
    if shutil.which("systemd-analyze") is None:
        lacking("no systemd-analyze on PATH; install it, for example apt-get install systemd")
    return subprocess.run(["systemd-analyze", *words], check=False, capture_output=True, text=True)


def test_systemd_finds_no_fault_with_a_service(written):
    if NGINX is None:
        lacking("no nginx; install it, for example apt-get install nginx-light")
    parties = written / "server", written / "clients" / "hospital-1"
    units = [unit for party in parties for unit in (party / "systemd").iterdir()]
    assert {str(unit.relative_to(written)) for unit in units} == SERVICES
    for unit in units:
        unit.write_text(unit.read_text().replace("/usr/sbin/nginx", NGINX))
    checked = analyze("verify", *units)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_systemd_rates_a_service_as_hardly_exposed(written, name):
    told = analyze("security", "--offline=true", "--no-pager", written / name)
    exposure = float(re.search(r"exposure level for \S+: ([\d.]+)", told.stdout)[1])
    assert exposure < MOST_EXPOSED


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_that_ends_is_started_again_and_cannot_take_the_host_with_it(written, name):
    unit = written / name
    (seconds,) = setting(unit, "RestartSec")
    assert setting(unit, "Restart") == ["always"]
    assert int(seconds) >= 10  # systemd gives up for good on what it starts five times within ten seconds
    assert re.fullmatch(r"\d+[%M]", setting(unit, "MemoryMax")[0]) and int(setting(unit, "TasksMax")[0]) <= 4096


def test_a_service_writes_to_folders_that_are_there_and_hold_no_key(written):
    for name in SERVICES:
        for path in map(Path, setting(written / name, "ReadWritePaths")):
            assert path.is_dir() and not list(path.rglob("*.key"))


def test_who_reads_records_reaches_no_network_and_who_reaches_the_network_sees_no_records(written):
    """A hospital's training code comes from the server: it cannot send anything but to its own SuperNode."""
    units = written / "clients" / "hospital-1" / "systemd"
    node, training = units / "fedprivacy-client.service", units / "fedprivacy-client-superexec.service"
    assert setting(node, "InaccessiblePaths") == [f"-{written.parent}/records"]
    assert (setting(training, "IPAddressDeny"), setting(training, "IPAddressAllow")) == (["any"], ["localhost"])
    assert setting(training, "SocketBindDeny") == ["any"] and not setting(training, "SocketBindAllow")
    (port,) = setting(node, "SocketBindAllow")
    assert f"--runtime-api-address 127.0.0.1:{port.removeprefix('tcp:')}" in " ".join(command_of(training))


@pytest.mark.usefixtures("bubblewrap")
def test_the_sandbox_of_the_rehearsal_is_one(written):
    client, records = written / "clients" / "hospital-1", written.parent / "records"
    for service, inside, works in (
        ("client", f"test -r {records}/points.npy", False),
        ("client", f"cat {client}/hospital-1.key && touch {client}/.flwr/x", True),
        ("client", f"touch {client}/x", False),
        ("client-superexec", f"test -r {records}/points.npy && touch {client}/guard/x", True),
        ("client-superexec", f"touch {records}/x", False),
        ("client-superexec", "touch /usr/x", False),
    ):
        unit = client / "systemd" / f"fedprivacy-{service}.service"
        words = sandboxed(unit, (written.parent,))
        box = words[: words.index(command_of(unit)[0])]
        done = subprocess.run([*box, "sh", "-c", inside], check=False, capture_output=True, text=True)
        assert (done.returncode == 0) is works, (inside, done.stderr)
