"""Keys: what a TLS library and Flower accept, who may read what, and that nothing is overwritten.

`deploy renew`: no hospital notices a new certificate, and each follows a new authority when it likes.
"""

import re
import shutil
import socket
import ssl
import stat
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import NameOID

from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.federation import write_toml
from fedprivacy.deploy.keys import AUTHORITY_DAYS, KeyFileError, new_authority, write_client_key, write_keys
from tests.house import ROOT
from tests.terminal import CliRunner

HOST = "fl.example.org"
PAGE = ROOT / "docs/how-to/keys.md"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def typed(*words):
    return CliRunner().invoke(deploy_app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_certificates_name_the_hosts_end_as_asked_for_and_only_the_authority_s_signs_others(tmp_path):
    keys = write_keys(tmp_path, hosts=["fl.example.org", "192.0.2.7", "2001:db8::7"], days=30)
    ends = keys.expires + timedelta(days=AUTHORITY_DAYS - 30), keys.expires
    for path, end in zip((keys.ca_certificate, keys.server_certificate), ends, strict=True):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        assert abs(certificate.not_valid_after_utc - end) < timedelta(minutes=1)
        assert certificate.not_valid_before_utc < datetime.now(UTC) - timedelta(minutes=4)
    assert abs(keys.expires - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ip_address(address) for address in ("192.0.2.7", "2001:db8::7", "127.0.0.1")
    ]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def handshake(keys, trust: ssl.SSLContext, host: str) -> None:
    """Connect to a TLS server that has our server certificate, as a client that trusts `trust`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys.server_certificate, keys.server_key)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with ours, suppress(OSError):  # the client's side of a failure is the one that is looked at
            server.wrap_socket(ours, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with theirs, trust.wrap_socket(theirs, server_hostname=host):
            pass
    finally:
        thread.join(timeout=10)


def strict_trust(ca: Path) -> ssl.SSLContext:
    trust = ssl.create_default_context(cafile=str(ca))
    trust.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    return trust


def test_a_client_accepts_the_server_by_its_names_and_refuses_another_name_and_another_ca(tmp_path):
    keys = write_keys(tmp_path / "ours", hosts=["fl.example.org", "192.0.2.7"], clients=["a"])
    other = write_keys(tmp_path / "other")
    for host in ("fl.example.org", "192.0.2.7", "localhost"):
        handshake(keys, strict_trust(tmp_path / "ours" / "clients" / "a" / "ca.crt"), host)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"evil\.example\.org"):
        handshake(keys, strict_trust(keys.ca_certificate), "evil.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, strict_trust(other.ca_certificate), "127.0.0.1")


def issued(name, key, issuer, issuer_key, *extensions):
    """A certificate of a key, signed by whoever holds the issuer's."""
    now, common_name = datetime.now(UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(issuer or common_name, common_name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def test_a_client_believes_no_server_of_a_further_authority_that_the_authority_has_signed(tmp_path):
    """Catches: an authority that may sign authorities. Whoever got one such certificate could be any server."""
    ours, between, key = new_authority(), *(ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    further = x509.BasicConstraints(ca=True, path_length=None)
    other = issued("other", between, ours.certificate.subject, ours.key, further)
    names = x509.SubjectAlternativeName([x509.DNSName("fl.example.org")])
    server = issued("server", key, other.subject, between, names)
    keys = SimpleNamespace(server_certificate=tmp_path / "server.crt", server_key=tmp_path / "server.key")
    keys.server_certificate.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in (server, other)))
    keys.server_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "ca.crt").write_bytes(ours.certificate_pem)
    with pytest.raises(ssl.SSLCertVerificationError, match="path length constraint exceeded"):
        handshake(keys, ssl.create_default_context(cafile=tmp_path / "ca.crt"), "fl.example.org")


@pytest.mark.parametrize("name", ["", "../ca", "a/b", ".hidden", "-x", "a b", "x" * 65, "a\n"])
def test_a_name_that_is_not_a_plain_file_name_is_refused(tmp_path, name):
    with pytest.raises(KeyFileError, match="client is"):
        write_keys(tmp_path, clients=["good", name])
    with pytest.raises(KeyFileError, match="client is"):
        write_client_key(tmp_path, name)
    assert not contents(tmp_path)


def test_a_host_that_no_client_could_connect_to_is_refused(tmp_path):
    for host in ("", "a:8000", "https://a", "-a", "a..b", "300.1.1.1", "a_b", "x" * 64, "*.a.org"):
        with pytest.raises(KeyFileError, match="host is"):
            write_keys(tmp_path, hosts=[host])
    assert not contents(tmp_path)


def test_names_that_differ_in_case_only_and_an_unusable_validity_are_refused(tmp_path):
    with pytest.raises(KeyFileError, match="twice"):
        write_keys(tmp_path, clients=["Hospital", "hospital"])
    for days in (0, 826):
        with pytest.raises(KeyFileError, match=f"days is {days}; choose"):
            write_keys(tmp_path, days=days)


def test_the_commands_make_keys_once(tmp_path):
    """They overwrite none; a client makes its own, and its owner alone reads it."""
    command = ["keys", "--out", tmp_path, "--host", HOST, "--client", "a", "--client", "b"]
    first, made = typed(*command), contents(tmp_path)
    again = typed(*command, "--client", "c")
    assert (first.exit_code, again.exit_code) == (0, 2)
    assert "keep offline" in first.output and "exists already" in again.output and contents(tmp_path) == made
    command, key = ["client-key", "hospital-3", "--out", tmp_path / "new"], tmp_path / "new" / "hospital-3.key"
    own, content = typed(*command), key.read_bytes()
    again = typed(*command)
    assert (own.exit_code, again.exit_code) == (0, 2) and "another folder" in again.output
    assert key.read_bytes() == content and stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.with_suffix(".pub").read_text().endswith(" hospital-3\n")
    private, public = load_ssh_private_key(content, None), load_ssh_public_key(key.with_suffix(".pub").read_bytes())
    assert private.curve.name == "secp384r1"  # which flower-supernode takes
    assert private.public_key().public_numbers() == public.public_numbers()


def test_a_key_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    key = write_client_key(tmp_path, "a").private_key
    before = key.read_bytes()
    monkeypatch.setattr(Path, "exists", lambda _: False)  # nobody had it when that was looked at
    with pytest.raises(KeyFileError, match=r"a\.key' cannot be written"):
        write_client_key(tmp_path, "a")
    assert key.read_bytes() == before


def test_the_command_makes_the_signing_key_once_and_shows_its_public_half(tmp_path):
    key = tmp_path / "deep" / "signing.key"
    first, again = (typed("signing-key", key) for _ in range(2))
    assert first.exit_code == again.exit_code == 0 and first.output == again.output
    (public,) = re.findall(r'server-key = "([0-9a-f]{64})"', first.output)
    assert public == server_public_key(server_key(key))
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


# --- renewals ---


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
        """True if the hospital believes the server."""
        keys = SimpleNamespace(server_certificate=server / "server.crt", server_key=server / "server.key")
        try:
            handshake(keys, ssl.create_default_context(cafile=str(tmp_path / hospital / "ca.crt")), HOST)
        except ssl.SSLCertVerificationError:
            return False
        return True

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
    before = contents(deployment)
    told = renew()
    after = contents(deployment)
    assert {name for name in before if after[name] != before[name]} == {"server/server.crt", "server/server.key"}
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
    before = contents(deployment)
    done = typed("renew", deployment, *options.split())
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
    assert contents(deployment) == before


def test_a_certificate_does_not_outlive_its_authority(deployment, monkeypatch):
    """An authority of a version before this one ends with its first certificate: the next needs another authority."""
    monkeypatch.setattr("fedprivacy.deploy.keys.AUTHORITY_DAYS", 30)
    renew("--authority add")
    done = typed("renew", deployment, "--authority", "switch")
    assert done.exit_code == 2 and "before 365 days are over; choose fewer days, or a new authority" in done.output
    assert typed("renew", deployment, "--authority", "switch", "--days", "29").exit_code == 0
