"""Signatures: the server signs enrolment requests, grants, heads of the ledger and certificates, a client receipts.

The server's key is Ed25519 (RFC 8032). A client signs with the key that authenticates its SuperNode, which in Flower is
ECDSA on a NIST curve (FIPS 186-5, here with SHA-384), so that the name under which the operator registered it answers
for what it says. Every signature covers the name of its purpose first: none can be taken for another.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
)

from fedprivacy._support.durable import PRIVATE, name_once, write_unnamed

PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey

_ECDSA = ECDSA(SHA384())

ENROLMENT, GRANT, QUESTIONS, RECEIPT = "enrolment", "grant", "questions", "receipt"
LEDGER_HEAD, CERTIFICATE = "ledger checkpoint", "certificate"
"""Purposes of signatures, as the signed bytes name them: these words stay, whatever else is renamed."""


class SigningKeyError(ValueError):
    """A key file that cannot be read or made, with the remedy."""


def sign(key: PrivateKey, purpose: str, message: bytes) -> str:
    """Sign a message together with its purpose; the signature is in hexadecimal."""
    signed = _label(purpose, message)
    return (key.sign(signed) if isinstance(key, Ed25519PrivateKey) else key.sign(signed, _ECDSA)).hex()


def signed_by_server(public_key: str, purpose: str, message: bytes, signature: str) -> bool:
    """Return whether the holder of an Ed25519 key signed this message for this purpose.

    Key (see `server_public_key`) and signature are in hexadecimal; anything else has signed nothing, and is none.
    """
    with suppress(InvalidSignature, ValueError):
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), _label(purpose, message))
        return True
    return False


def signed_by_client(public_key: bytes, purpose: str, message: bytes, signature: str) -> bool:
    """Return whether the holder of a SuperNode's key signed this message for this purpose.

    The key is in PEM, and one of another kind has signed nothing; a signature that is not in hexadecimal is none.
    """
    with suppress(InvalidSignature, UnsupportedAlgorithm, ValueError):
        key = load_pem_public_key(public_key)
        if isinstance(key, EllipticCurvePublicKey):
            key.verify(bytes.fromhex(signature), _label(purpose, message), _ECDSA)
            return True
    return False


def client_public_key(key: EllipticCurvePrivateKey) -> bytes:
    """The public half of a client's key, in PEM: the text under which Flower's SuperLink keeps it."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def server_public_key(key: Ed25519PrivateKey) -> str:
    """The public half of a server's key, in hexadecimal."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def server_key(file: Path) -> Ed25519PrivateKey:
    """The server's signing key, in PEM (PKCS 8); made, readable by its owner alone, where there is none.

    Raises:
        SigningKeyError: the file holds something else, or cannot be read or written.
    """
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            made = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            name_once(write_unnamed(file, made, PRIVATE), file)  # or another process was first
    except OSError as error:
        raise SigningKeyError(
            f"signing-key is '{file}', where no key can be made ({error.strerror}); name a folder that can be written."
        ) from error
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningKeyError(
            f"signing-key is '{file}', which holds no readable private key ({error}); name an Ed25519 key in PEM, or a "
            "file that is not there yet."
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningKeyError(f"signing-key is '{file}', which holds no Ed25519 key; name a file that does, or none.")
    return key


def client_key(file: Path) -> EllipticCurvePrivateKey:
    """The private key with which a client's SuperNode authenticates, in OpenSSH's format.

    Raises:
        SigningKeyError: the file holds something else, or cannot be read.
    """
    try:
        key = load_ssh_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningKeyError(f"key is '{file}', which holds no readable private key ({error}).") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise SigningKeyError(f"key is '{file}'; name the ECDSA key with which this client's SuperNode authenticates.")
    return key


def _label(purpose: str, message: bytes) -> bytes:
    return f"fedprivacy {purpose}\n".encode() + message
