"""New certificates for a deployment that runs: the server's alone, or a new authority in three steps.

While `ca.crt` names two authorities, hosts believe servers of both. So hospitals may follow on different days:

1. `ADD`: `ca.crt` names a second authority, the newest first. Every host takes the file when it suits.
2. `SWITCH`, once all have: the server's certificate is from the other authority. A second one goes back.
3. `DROP`: `ca.crt` names the authority of the server's certificate alone. The other one's key is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedprivacy._support.durable import PRIVATE, name_durably, write_unnamed
from fedprivacy.deploy.keys import KeyFileError, new_authority, new_server_certificate

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
            if issued(authority, self.server):
                return authority
        raise KeyFileError("server.crt is not signed by an authority of ca.crt; take both from one folder.")


def issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
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
