"""Keys: what a TLS library and Flower accept, who may read what, and that nothing is overwritten."""

import re
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
from fedprivacy.deploy.keys import AUTHORITY_DAYS, KeyFileError, new_authority, write_client_key, write_keys
from tests.terminal import CliRunner


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_each_party_has_a_folder_with_what_it_needs_and_no_other_secret(tmp_path):
    write_keys(tmp_path, clients=["hospital-0", "hospital-1"])
    private = [path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert len({path.read_bytes() for path in private}) == len(private) == 4
    assert files_under(tmp_path) == {
        "ca/ca.key",
        "server/ca.crt",
        "server/server.crt",
        "server/server.key",
        "server/clients/hospital-0.pub",
        "server/clients/hospital-1.pub",
        "clients/hospital-0/ca.crt",
        "clients/hospital-0/client.key",
        "clients/hospital-1/ca.crt",
        "clients/hospital-1/client.key",
    }


def test_client_keys_are_the_kind_that_flower_authenticates(tmp_path):
    client = write_keys(tmp_path, clients=["a"]).clients["a"]
    private = load_ssh_private_key(client.private_key.read_bytes(), None)  # as flower-supernode reads it
    public = load_ssh_public_key(client.public_key.read_bytes())  # as `flwr supernode register` reads it
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key().public_numbers() == public.public_numbers()


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
    assert not files_under(tmp_path)


def test_a_host_that_no_client_could_connect_to_is_refused(tmp_path):
    for host in ("", "a:8000", "https://a", "-a", "a..b", "300.1.1.1", "a_b", "x" * 64, "*.a.org"):
        with pytest.raises(KeyFileError, match="host is"):
            write_keys(tmp_path, hosts=[host])
    assert not files_under(tmp_path)


def test_names_that_differ_in_case_only_and_an_unusable_validity_are_refused(tmp_path):
    with pytest.raises(KeyFileError, match="twice"):
        write_keys(tmp_path, clients=["Hospital", "hospital"])
    for days in (0, 826):
        with pytest.raises(KeyFileError, match=f"days is {days}; choose"):
            write_keys(tmp_path, days=days)


def test_the_handout_says_who_gets_what_and_until_when(tmp_path):
    keys = write_keys(tmp_path, hosts=["fl.example.org"], clients=["hospital-0"])
    text = keys.handout()
    assert f"{keys.expires:%Y-%m-%d}" in text and "fl.example.org" in text and "offline" in text
    assert all(str(tmp_path / folder) in text for folder in ("ca", "server", "clients/hospital-0"))


def test_the_commands_make_keys_once(tmp_path):
    """They overwrite none; a client makes its own, and its owner alone reads it."""
    command = ["keys", "--out", str(tmp_path), "--host", "fl.example.org", "--client", "a", "--client", "b"]
    first = CliRunner().invoke(deploy_app, command)
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = CliRunner().invoke(deploy_app, [*command, "--client", "c"])
    assert (first.exit_code, again.exit_code) == (0, 2)
    assert "keep offline" in first.output and "exists already" in again.output
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == contents
    command = ["client-key", "hospital-3", "--out", str(tmp_path / "new")]
    own, content = CliRunner().invoke(deploy_app, command), (tmp_path / "new" / "hospital-3.key").read_bytes()
    again = CliRunner().invoke(deploy_app, command)
    assert (own.exit_code, again.exit_code) == (0, 2) and "another folder" in again.output
    assert (tmp_path / "new" / "hospital-3.key").read_bytes() == content
    assert stat.S_IMODE((tmp_path / "new" / "hospital-3.key").stat().st_mode) == 0o600
    assert (tmp_path / "new" / "hospital-3.pub").read_text().endswith(" hospital-3\n")
    public = load_ssh_public_key((tmp_path / "new" / "hospital-3.pub").read_bytes())
    assert load_ssh_private_key(content, None).public_key().public_numbers() == public.public_numbers()


def test_a_key_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    key = write_client_key(tmp_path, "a").private_key
    before = key.read_bytes()
    monkeypatch.setattr(Path, "exists", lambda _: False)  # nobody had it when that was looked at
    with pytest.raises(KeyFileError, match=r"a\.key' cannot be written"):
        write_client_key(tmp_path, "a")
    assert key.read_bytes() == before


def test_the_command_makes_the_signing_key_once_and_shows_its_public_half(tmp_path):
    key = tmp_path / "deep" / "signing.key"
    first, again = (CliRunner().invoke(deploy_app, ["signing-key", str(key)]) for _ in range(2))
    assert first.exit_code == again.exit_code == 0 and first.output == again.output
    (public,) = re.findall(r'server-key = "([0-9a-f]{64})"', first.output)
    assert public == server_public_key(server_key(key))
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
