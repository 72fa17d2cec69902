"""Keys of a deployment: one certificate authority, one TLS certificate of the server, one key pair for each client.

Two mechanisms keep strangers out, and they are independent. TLS: clients trust exactly one certificate authority (CA),
made here, and connect to no server without a certificate from it. SuperNode authentication: the server admits the
public keys that its operator registered, and no others; each client proves possession of its private key.

The files lie in the folder of the party that they are handed to::

    ca/ca.key                  kept offline: whoever holds it can impersonate the server
    server/ca.crt              for the server's operator
    server/server.crt
    server/server.key
    server/clients/NAME.pub    registered with `flwr supernode register`
    clients/NAME/ca.crt        for client NAME
    clients/NAME/client.key

Key types: ECDSA on P-384, the only family that Flower's SuperNode authentication takes (`ssh-keygen -t ecdsa -b 384`).

`renew` makes new certificates for a deployment that runs: the server's alone, or a new authority in three steps. While
`ca.crt` names two authorities, hosts believe servers of both. So hospitals may follow on different days:

1. `ADD`: `ca.crt` names a second authority, the newest first. Every host takes the file when it suits.
2. `SWITCH`, once all have: the server's certificate is from the other authority. A second one goes back.
3. `DROP`: `ca.crt` names the authority of the server's certificate alone. The other one's key is deleted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedprivacy._support.durable import PRIVATE, name_durably, write_unnamed

LOOPBACK = ("localhost", "127.0.0.1")
"""Names that every server certificate holds: on its own host the server is reached by them."""

CLOCK_SKEW = timedelta(minutes=5)
"""Longest time by which a client's clock may lag behind the clock that made the certificates."""

MAX_DAYS = 825
"""The longest validity that TLS libraries accept of a server certificate on every platform (Apple's limit)."""

AUTHORITY_DAYS = 3652
"""Validity of an authority, in days: ten years in which the server's certificate is renewed and no client notices."""

_AUTHORITY = "fedprivacy deployment CA"
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"(?=.{{1,253}}$)(?!(.*\.)?\d+$){_LABEL}(\.{_LABEL})*")


class KeyFileError(ValueError):
    """Keys cannot be made as asked: a name is unusable or a file is in the way."""


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """One client's key pair, as files in OpenSSH's format; its name, to be registered under, is its `client_id`."""

    name: str
    private_key: Path
    public_key: Path


@dataclass(frozen=True, slots=True)
class Certified:
    """A new private key, and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The private key, not encrypted."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


@dataclass(frozen=True, slots=True)
class DeploymentKeys:
    """Everything that `write_keys` made, as PEM files: the server's certificate is valid for `hosts` until `expires`
    (UTC), and of the CA's each client has its own copy."""

    directory: Path
    ca_certificate: Path
    ca_key: Path
    server_certificate: Path
    server_key: Path
    clients: Mapping[str, ClientKeys]
    hosts: tuple[str, ...]
    expires: datetime

    def handout(self) -> str:
        """Instructions for the operator: which file goes to whom."""
        lines = [
            f"Keys written to {self.directory}; the server's certificate, for {', '.join(self.hosts)},",
            f"is valid until {self.expires:%Y-%m-%d %H:%M} UTC.",
            "",
            f"  {self.ca_key.parent}/   keep offline: its holder can impersonate the server, and no process needs it.",
            f"  {self.server_key.parent}/   for the server. server.key is secret; the .pub files are not.",
        ]
        lines += [
            f"  {client.private_key.parent}/   for {client.name} alone: ca.crt and its secret client.key."
            for client in self.clients.values()
        ]
        last = "Send each client its own folder over a channel you trust, then delete your copy of its client.key."
        return "\n".join([*lines, "", last])


def write_keys(
    directory: Path, hosts: Sequence[str] = (), clients: Sequence[str] = (), *, days: int = 365
) -> DeploymentKeys:
    """Make a CA, the server's certificate and a key pair for each client.

    Args:
        directory: folder to write to; made if missing.
        hosts: DNS names and IP addresses under which clients reach the server; `LOOPBACK` is always added.
        clients: names of the clients. It may be empty: a client that makes its own key never shares it, see
            `write_client_key`.
        days: validity of the server's certificate, in days from now; the CA's is `AUTHORITY_DAYS`.

    Raises:
        KeyFileError: a host, a client's name or `days` is not usable, or a file exists; then nothing is written.
    """
    hosts = tuple(dict.fromkeys([*hosts, *LOOPBACK]))
    names = x509.SubjectAlternativeName([subject_name(host) for host in hosts])
    check_client_names(clients)
    authority = new_authority()
    certified = new_server_certificate(authority.key, names, days=days)
    ours, server, theirs = directory / "ca", directory / "server", directory / "clients"
    pairs = [ClientKeys(n, theirs / n / "client.key", server / "clients" / f"{n}.pub") for n in clients]
    keys = DeploymentKeys(
        directory=directory,
        ca_certificate=server / "ca.crt",
        ca_key=ours / "ca.key",
        server_certificate=server / "server.crt",
        server_key=server / "server.key",
        clients={client.name: client for client in pairs},
        hosts=hosts,
        expires=certified.certificate.not_valid_after_utc,
    )
    files = {
        keys.ca_key: authority.key_pem,
        keys.ca_certificate: authority.certificate_pem,
        keys.server_certificate: certified.certificate_pem,
        keys.server_key: certified.key_pem,
    }
    for client in pairs:
        files |= _client_files(client) | {client.private_key.with_name("ca.crt"): authority.certificate_pem}
    _write_new(files)
    return keys


def new_authority() -> Certified:
    """Make a certificate authority; it signs certificates of servers, and no further authorities."""
    key = _new_key()
    certificate = _certificate(
        _AUTHORITY,
        key,
        key,
        AUTHORITY_DAYS,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage(signs_certificates=True), True),
    )
    return Certified(key, certificate)


def new_server_certificate(
    authority: ec.EllipticCurvePrivateKey, names: x509.SubjectAlternativeName, *, days: int
) -> Certified:
    """Make a key of the server, and its certificate for these names, signed by an authority.

    Raises:
        KeyFileError: `days` is not usable.
    """
    if not 1 <= days <= MAX_DAYS:
        raise KeyFileError(f"days is {days}; choose a whole number from 1 to {MAX_DAYS}.")
    key = _new_key()
    certificate = _certificate(
        "fedprivacy server",
        key,
        authority,
        days,
        (names, False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
    )
    return Certified(key, certificate)


def write_client_key(directory: Path, name: str) -> ClientKeys:
    """Make one client's key pair: on the client's own host, or to add a client to a running deployment.

    Args:
        directory: folder to write NAME.key and NAME.pub to; made if missing.
        name: the name to register the client under.

    Raises:
        KeyFileError: the name is not usable, or a file exists already; then nothing is written.
    """
    _check_client_name(name)
    client = ClientKeys(name, directory / f"{name}.key", directory / f"{name}.pub")
    _write_new(_client_files(client))
    return client


def check_client_names(names: Sequence[str]) -> None:
    """Refuse names that cannot be files' names, or are not each a client's own. Raises KeyFileError: says which."""
    for name in names:
        _check_client_name(name)
    if len({name.lower() for name in names}) < len(names):  # some file systems do not tell A from a
        raise KeyFileError(f"clients are {', '.join(names)}: a name appears twice; give each client its own.")


def _check_client_name(name: str) -> None:
    if not _CLIENT_NAME.fullmatch(name):
        raise KeyFileError(
            f"client is {name!r}; choose 1 to 64 letters, digits, dots, hyphens or underscores, "
            "beginning with a letter or a digit."
        )


def subject_name(host: str) -> x509.GeneralName:
    """A host as a certificate names it; a KeyFileError if none could."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host):
        raise KeyFileError(
            f"host is {host!r}; give a DNS name such as fl.example.org or an IP address, without a port."
        )
    return x509.DNSName(host)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    days: int,
    *extensions: tuple[x509.ExtensionType, bool],
) -> x509.Certificate:
    """A certificate of a key, signed by the authority's; each extension with whether it is critical."""
    now = datetime.now(UTC).replace(microsecond=0)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(_common_name(_AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority, hashes.SHA384())


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """The one purpose of a key: to sign certificates, or to sign TLS handshakes."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _client_files(client: ClientKeys) -> dict[Path, bytes]:
    key = _new_key()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {
        client.private_key: key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        client.public_key: public + f" {client.name}\n".encode(),
    }


def _write_new(files: Mapping[Path, bytes]) -> None:
    """Write all files or, if one of them exists, none. Keys (`*.key`) are readable by their owner only."""
    existing = [str(path) for path in files if path.exists()]
    if existing:
        raise KeyFileError(
            f"{', '.join(existing)} exists already and is not overwritten: a key in use would be lost. "
            "Choose another folder, or move the old keys away."
        )
    try:
        for path, content in files.items():
            secret = path.suffix == ".key"
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # "x": what appeared since the check above is not overwritten either. The mode is set before the content.
            with open(path, "xb", opener=partial(os.open, mode=0o600 if secret else 0o644)) as file:
                file.write(content)
    except OSError as error:
        raise KeyFileError(f"'{path}' cannot be written ({error.strerror}); name a folder that can be made.") from error


NEW_KEY = "new.key"
"""Name of the second authority's key, beside the first one's."""

ADD, SWITCH, DROP = STEPS = ("add", "switch", "drop")
"""Steps from one authority to another."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Certificates of a deployment: the server's, and those of the authorities that its hosts shall trust."""

    server: x509.Certificate
    authorities: tuple[x509.Certificate, ...]

    @property
    def issuer(self) -> x509.Certificate:
        """The authority that signed the server's certificate.

        Raises:
            KeyFileError: it is none of those that are trusted.
        """
        for authority in self.authorities:
            if has_signed(authority, self.server):
                return authority
        raise KeyFileError("server.crt is not signed by an authority of ca.crt; take both from one folder.")


def has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """True if an authority signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def fingerprint(certificate: x509.Certificate) -> str:
    """The fingerprint of a certificate, as `openssl x509 -fingerprint -sha256` prints it."""
    return certificate.fingerprint(SHA256()).hex(":").upper()


def renew(folder: Path, step: str | None = None, *, days: int = 365) -> Certificates:
    """Renew certificates in a deployment's folder, those in the clients' folders too.

    Args:
        folder: what `write_handouts` or `write_keys` wrote, with the folder `ca` that is kept offline.
        step: one of `STEPS`; None: a new key and certificate of the server, from the same authority.
        days: validity of the server's certificate, in days from now.

    Raises:
        KeyFileError: a file is missing, the step does not fit what is there, or the authority ends before `days` are
            over; then nothing is written.
    """
    if step not in (None, *STEPS):
        raise KeyFileError(f"authority is {step!r}; choose {ADD}, {SWITCH} or {DROP}.")
    try:
        old = _read(folder)
        keys = _keys(folder / "ca")
        if step == ADD:
            return _add(folder, old)
        if step == DROP:
            return _drop(folder, old, keys)
        return _sign(folder, old, keys, switch=step == SWITCH, days=days)
    except OSError as error:
        raise KeyFileError(f"'{error.filename}' cannot be read or written ({error.strerror}).") from error


def _read(folder: Path) -> Certificates:
    try:
        server = x509.load_pem_x509_certificate((folder / "server" / "server.crt").read_bytes())
        authorities = x509.load_pem_x509_certificates((folder / "server" / "ca.crt").read_bytes())
    except FileNotFoundError as error:
        raise KeyFileError(f"'{error.filename}' is not there; copy it back from the server's host.") from error
    except ValueError as error:
        raise KeyFileError(f"'{folder / 'server'}': server.crt or ca.crt holds no certificate.") from error
    return Certificates(server, tuple(authorities))


def _keys(folder: Path) -> dict[Path, ec.EllipticCurvePrivateKey]:
    """The keys of authorities, by their files."""
    try:
        keys = {file: load_pem_private_key(file.read_bytes(), None) for file in folder.glob("*.key")}
    except (ValueError, TypeError) as error:
        raise KeyFileError(
            f"'{folder}' holds a .key file without a private key ({error}); put back the right one."
        ) from error
    return {file: key for file, key in keys.items() if isinstance(key, ec.EllipticCurvePrivateKey)}


def _key_of(
    authority: x509.Certificate, keys: Mapping[Path, ec.EllipticCurvePrivateKey]
) -> tuple[Path, ec.EllipticCurvePrivateKey]:
    for file, key in keys.items():
        if key.public_key() == authority.public_key():
            return file, key
    raise KeyFileError(
        f"the key of the authority {fingerprint(authority)[:11]} is not in the folder ca; bring it back from where it "
        "is kept offline."
    )


def _sign(
    folder: Path, old: Certificates, keys: Mapping[Path, ec.EllipticCurvePrivateKey], *, switch: bool, days: int
) -> Certificates:
    authority = old.issuer
    if switch:
        others = [other for other in old.authorities if other != authority]
        if not others:
            raise KeyFileError("ca.crt names one authority; begin with --authority add.")
        authority = others[0]
    _, key = _key_of(authority, keys)
    names = old.server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    made = new_server_certificate(key, names, days=days)
    end = authority.not_valid_after_utc
    if made.certificate.not_valid_after_utc > end:
        raise KeyFileError(
            f"the authority {fingerprint(authority)[:11]} ends on {end:%Y-%m-%d}, before {days} days are over; choose "
            "fewer days, or a new authority: --authority add."
        )
    _replace(folder / "server" / "server.key", made.key_pem, PRIVATE)
    _replace(folder / "server" / "server.crt", made.certificate_pem)
    return Certificates(made.certificate, old.authorities)


def _add(folder: Path, old: Certificates) -> Certificates:
    if len(old.authorities) > 1:
        raise KeyFileError("ca.crt names two authorities already; go on with --authority switch, then drop.")
    made = new_authority()
    (folder / "ca").mkdir(exist_ok=True, mode=0o700)  # the old authority's key may be lost
    _replace(folder / "ca" / NEW_KEY, made.key_pem, PRIVATE)
    return _trust(folder, Certificates(old.server, (made.certificate, *old.authorities)))


def _drop(folder: Path, old: Certificates, keys: Mapping[Path, ec.EllipticCurvePrivateKey]) -> Certificates:
    if len(old.authorities) == 1:
        raise KeyFileError("ca.crt names one authority; there is none to drop.")
    kept, _ = _key_of(old.issuer, keys)
    kept.replace(folder / "ca" / "ca.key")  # first: a key that is trusted must not lie where the next ADD writes
    (folder / "ca" / NEW_KEY).unlink(missing_ok=True)
    return _trust(folder, Certificates(old.server, (old.issuer,)))


def _trust(folder: Path, certificates: Certificates) -> Certificates:
    """Write the authorities to every `ca.crt` of a deployment."""
    pem = b"".join(authority.public_bytes(Encoding.PEM) for authority in certificates.authorities)
    for file in (folder / "server" / "ca.crt", *folder.glob("clients/*/ca.crt")):
        _replace(file, pem)
    return certificates


def _replace(file: Path, content: bytes, mode: int = 0o644) -> None:
    name_durably(write_unnamed(file, content, mode), file)
