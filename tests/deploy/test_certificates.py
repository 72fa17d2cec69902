"""`fedprivacy deploy renew`: no hospital notices a new certificate, and each follows a new authority when it likes."""

import re
import shutil
import socket
import ssl
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509

from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy import keys
from fedprivacy.deploy.federation import write_toml
from tests.terminal import CliRunner

HOST = "fl.example.org"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keys.md"


def typed(*words):
    return CliRunner().invoke(deploy_app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """A deployment of two hospitals, in the folder `deployment`."""
    monkeypatch.chdir(tmp_path)
    settings = {"host": HOST, "clients": ["hospital-0", "hospital-1"], "epsilon": 3.0, "delta": 1e-4}
    write_toml(Path("deployment.toml"), {"": settings})
    done = typed("init", "deployment.toml")
    assert done.exit_code == 0, done.output
    return Path("deployment")


@pytest.fixture
def hosts(deployment, tmp_path):
    """The server and two hospitals, each with what it has taken of the operator's folder: take, and who connects."""
    server = tmp_path / "server"
    for party in ("server", "hospital-0", "hospital-1"):
        (tmp_path / party).mkdir()

    def take(party):
        """The party takes what the operator has for it, on a day that suits it."""
        sent = deployment / "server" if party == "server" else deployment / "clients" / party
        for file in (*sent.glob("*.crt"), *sent.glob("server.key")):
            shutil.copy(file, tmp_path / party)

    def connects(hospital):
        """True if the hospital believes the server, by a real handshake."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server / "server.crt", server / "server.key")
        trust = ssl.create_default_context(cafile=str(tmp_path / hospital / "ca.crt"))
        ours, theirs = socket.socketpair()

        def serve():
            with ours, suppress(OSError):
                context.wrap_socket(ours, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with theirs, trust.wrap_socket(theirs, server_hostname=HOST):
                return True
        except ssl.SSLCertVerificationError:
            return False
        finally:
            thread.join(timeout=10)

    for party in ("server", "hospital-0", "hospital-1"):
        take(party)
    return take, lambda: (connects("hospital-0"), connects("hospital-1"))


def renew(*options):
    """Type what the page says, and nothing else."""
    command = " ".join(("fedprivacy deploy renew deployment", *options))
    assert f"\n{command}\n" in PAGE.read_text()
    done = typed("renew", "deployment", *" ".join(options).split())
    assert done.exit_code == 0, done.output
    return done.output


def test_a_new_certificate_of_the_same_authority_is_believed_by_hospitals_that_change_nothing(hosts, deployment):
    take, connected = hosts
    before = {file: file.read_bytes() for file in deployment.rglob("*") if file.is_file()}
    told = renew()
    changed = {str(file) for file, content in before.items() if file.read_bytes() != content}
    assert changed == {"deployment/server/server.crt", "deployment/server/server.key"}
    assert stat.S_IMODE((deployment / "server" / "server.key").stat().st_mode) == 0o600
    take("server")
    assert connected() == (True, True)
    new = x509.load_pem_x509_certificate((deployment / "server" / "server.crt").read_bytes())
    assert f"until {new.not_valid_after_utc:%Y-%m-%d}" in told


def test_a_new_authority_is_followed_by_hospitals_on_different_days(hosts):
    """No day on which somebody is cut off, and after the last none believes a server of the old authority."""
    take, connected = hosts
    told = renew("--authority add")
    new, old = re.search(r"trusts (\S+), (\S+); server.crt is from \2", told).groups()
    assert new != old
    for party in ("server", "hospital-0", "hospital-1"):
        take(party)
        assert connected() == (True, True)
    assert f"server.crt is from {new}" in renew("--authority switch")
    assert connected() == (True, True)  # the old certificate still
    take("server")
    assert connected() == (True, True)
    assert f"ca.crt trusts {new}; server.crt is from {new}." in renew("--authority drop")
    for party in ("hospital-1", "server", "hospital-0"):
        take(party)
        assert connected() == (True, True)
    renew("--authority add")
    renew("--authority switch")
    take("server")
    assert connected() == (False, False)  # the next one, whose ca.crt nobody has taken


def test_a_switch_that_came_too_early_is_taken_back(hosts):
    take, connected = hosts
    renew("--authority add")
    take("hospital-0")
    renew("--authority switch")
    take("server")
    assert connected() == (True, False)
    renew("--authority switch")
    take("server")
    assert connected() == (True, True)


def test_a_new_authority_that_nobody_has_switched_to_is_dropped_again(hosts):
    take, connected = hosts
    new, old = re.search(r"trusts (\S+), (\S+); server.crt is from \2", renew("--authority add")).groups()
    take("hospital-0")
    assert f"ca.crt trusts {old}; server.crt is from {old}." in renew("--authority drop")
    for party in ("server", "hospital-0", "hospital-1"):
        assert connected() == (True, True)
        take(party)
    assert connected() == (True, True) and new != old


def test_a_lost_key_of_an_authority_is_overcome_in_the_same_steps(hosts, deployment):
    take, connected = hosts
    shutil.rmtree(deployment / "ca")
    for step in ("add", "switch", "drop"):
        renew(f"--authority {step}")
        for party in ("hospital-0", "hospital-1", "server"):
            take(party)
        assert connected() == (True, True)
    assert [file.name for file in (deployment / "ca").iterdir()] == ["ca.key"]


def test_each_host_says_which_authorities_it_trusts_until_when(deployment):
    """The server's `deploy check`, and a hospital's."""
    renew("--authority add")
    trusted = x509.load_pem_x509_certificates((deployment / "server" / "ca.crt").read_bytes())
    until = [f"{each.not_valid_after_utc:%Y-%m-%d}" for each in trusted]
    for party in ("server", "clients/hospital-0"):
        shown = " ".join(typed("check", deployment / party).output.split())
        told = re.search(r"ok authority ca.crt trusts (\S+) until (\S+) and (\S+) until (\S+)", shown)
        assert [told[2], told[4]] == until and told[1] != told[3]
        assert len(told[1]) == len("3F:A1:09:7C")


@pytest.mark.parametrize(
    ("options", "gone", "words"),
    [
        ("--authority drop", None, "names one authority; there is none to drop"),
        ("--authority switch", None, "begin with --authority add"),
        ("--authority old", None, "choose add, switch or drop"),
        ("--days 826", None, "from 1 to 825"),
        ("", "ca/ca.key", "bring it back from where it is kept offline"),
        ("", "server/server.crt", "copy it back from the server's host"),
    ],
)
def test_a_renewal_that_cannot_be_is_refused_and_nothing_is_written(deployment, options, gone, words):
    if gone:
        (deployment / gone).unlink()
    before = {file: file.read_bytes() for file in deployment.rglob("*") if file.is_file()}
    done = typed("renew", deployment, *options.split())
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
    assert {file: file.read_bytes() for file in deployment.rglob("*") if file.is_file()} == before


def test_a_certificate_does_not_outlive_its_authority(deployment, monkeypatch):
    """An authority of a version before this one ends with its first certificate: the next needs another authority."""
    monkeypatch.setattr(keys, "AUTHORITY_DAYS", 30)
    renew("--authority add")
    done = typed("renew", deployment, "--authority", "switch")
    assert done.exit_code == 2 and "before 365 days are over; choose fewer days, or a new authority" in done.output
    assert typed("renew", deployment, "--authority", "switch", "--days", "29").exit_code == 0
