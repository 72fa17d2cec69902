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

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from typer.testing import CliRunner

from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.keys import KeyFileError, write_client_key, write_keys


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_each_party_has_a_folder_with_what_it_needs_and_no_other_secret(tmp_path):
    write_keys(tmp_path, clients=["hospital-0", "hospital-1"])
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


def test_private_keys_are_readable_by_their_owner_only(tmp_path):
    write_keys(tmp_path, clients=["a"])
    private = [path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in private} == {"ca.key", "server.key", "client.key"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in private} == {0o700}


def test_client_keys_are_the_kind_that_flower_authenticates(tmp_path):
    client = write_keys(tmp_path, clients=["a"]).clients["a"]
    private = load_ssh_private_key(client.private_key.read_bytes(), None)  # as flower-supernode reads it
    public = load_ssh_public_key(client.public_key.read_bytes())  # as `flwr supernode register` reads it
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key().public_numbers() == public.public_numbers()


def test_no_two_keys_are_the_same(tmp_path):
    keys = write_keys(tmp_path, clients=["a", "b"])
    secrets = [keys.ca_key, keys.server_key, *(client.private_key for client in keys.clients.values())]
    assert len({path.read_bytes() for path in secrets}) == 4


def test_the_certificate_names_the_hosts_and_the_loopback_interface(tmp_path):
    keys = write_keys(tmp_path, hosts=["fl.example.org", "192.0.2.7", "2001:db8::7"])
    certificate = x509.load_pem_x509_certificate(keys.server_certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ip_address(address) for address in ("192.0.2.7", "2001:db8::7", "127.0.0.1")
    ]


def test_both_certificates_end_after_the_days_asked_for(tmp_path):
    keys = write_keys(tmp_path, days=30)
    for path in (keys.ca_certificate, keys.server_certificate):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        assert certificate.not_valid_after_utc == keys.expires
        assert certificate.not_valid_before_utc < datetime.now(UTC) - timedelta(minutes=4)
    assert abs(keys.expires - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)


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


@pytest.mark.parametrize("host", ["fl.example.org", "192.0.2.7", "127.0.0.1", "localhost"])
def test_a_client_that_trusts_the_ca_accepts_the_server(tmp_path, host):
    keys = write_keys(tmp_path, hosts=["fl.example.org", "192.0.2.7"], clients=["a"])
    handshake(keys, strict_trust(tmp_path / "clients" / "a" / "ca.crt"), host)


def test_a_client_refuses_another_name_and_another_ca(tmp_path):
    keys, other = write_keys(tmp_path / "ours"), write_keys(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"evil\.example\.org"):
        handshake(keys, strict_trust(keys.ca_certificate), "evil.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, strict_trust(other.ca_certificate), "127.0.0.1")


def test_the_servers_key_cannot_act_as_a_ca(tmp_path):
    certificate = x509.load_pem_x509_certificate(write_keys(tmp_path).server_certificate.read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_existing_keys_are_never_overwritten(tmp_path):
    write_keys(tmp_path, clients=["a"])
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(KeyFileError, match=r"ca\.key.* exists already"):
        write_keys(tmp_path, clients=["b"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == contents


def test_an_existing_client_key_is_never_overwritten(tmp_path):
    content = write_client_key(tmp_path, "a").private_key.read_bytes()
    with pytest.raises(KeyFileError, match="another folder"):
        write_client_key(tmp_path, "a")
    assert (tmp_path / "a.key").read_bytes() == content


@pytest.mark.parametrize("name", ["", "../ca", "a/b", ".hidden", "-x", "a b", "x" * 65, "a\n"])
def test_a_name_that_is_not_a_plain_file_name_is_refused(tmp_path, name):
    with pytest.raises(KeyFileError, match="client is"):
        write_keys(tmp_path, clients=["good", name])
    with pytest.raises(KeyFileError, match="client is"):
        write_client_key(tmp_path, name)
    assert not files_under(tmp_path)


@pytest.mark.parametrize("host", ["", "a:8000", "https://a", "-a", "a..b", "300.1.1.1", "a_b", "x" * 64, "*.a.org"])
def test_a_host_that_no_client_could_connect_to_is_refused(tmp_path, host):
    with pytest.raises(KeyFileError, match="host is"):
        write_keys(tmp_path, hosts=[host])
    assert not files_under(tmp_path)


def test_names_that_differ_in_case_only_are_refused(tmp_path):
    with pytest.raises(KeyFileError, match="twice"):
        write_keys(tmp_path, clients=["Hospital", "hospital"])


@pytest.mark.parametrize("days", [0, -1, 826])
def test_an_unusable_validity_is_refused(tmp_path, days):
    with pytest.raises(KeyFileError, match=f"days is {days}; choose"):
        write_keys(tmp_path, days=days)


def test_the_handout_says_who_gets_what_and_until_when(tmp_path):
    keys = write_keys(tmp_path, hosts=["fl.example.org"], clients=["hospital-0"])
    text = keys.handout()
    assert f"{keys.expires:%Y-%m-%d}" in text
    assert "fl.example.org" in text
    for folder in ("ca", "server", "clients/hospital-0"):
        assert str(tmp_path / folder) in text
    assert "offline" in text


def test_a_client_can_make_its_own_key(tmp_path):
    client = write_client_key(tmp_path / "new", "hospital-3")
    assert files_under(tmp_path / "new") == {"hospital-3.key", "hospital-3.pub"}
    private = load_ssh_private_key(client.private_key.read_bytes(), None)
    public = load_ssh_public_key(client.public_key.read_bytes())
    assert private.public_key().public_numbers() == public.public_numbers()
    assert client.public_key.read_text().endswith(" hospital-3\n")
    assert stat.S_IMODE(client.private_key.stat().st_mode) == 0o600


def test_the_commands_make_keys_once(tmp_path):
    command = ["keys", "--out", str(tmp_path), "--host", "fl.example.org", "--client", "a", "--client", "b"]
    first, again = (CliRunner().invoke(deploy_app, command) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 2)
    assert "keep offline" in first.output and "exists already" in again.output
    assert (tmp_path / "clients" / "b" / "client.key").exists()
    own = CliRunner().invoke(deploy_app, ["client-key", "hospital-3", "--out", str(tmp_path)])
    assert own.exit_code == 0 and "hospital-3.pub" in own.output


def test_the_command_makes_the_signing_key_once_and_shows_its_public_half(tmp_path):
    key = tmp_path / "deep" / "signing.key"
    first, again = (CliRunner().invoke(deploy_app, ["signing-key", str(key)]) for _ in range(2))
    assert first.exit_code == again.exit_code == 0 and first.output == again.output
    (public,) = re.findall(r'server-key = "([0-9a-f]{64})"', first.output)
    assert public == server_public_key(server_key(key))
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
