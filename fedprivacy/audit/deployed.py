"""A deployed client, asked by the auditor in place of its server: the data owner's host, but for three keys.

The node configuration is the owner's, with another `server-key`, whose private half the auditor has; another `key`, so
that no receipt is signed in the owner's name; and another `guard`, in a folder that is gone afterwards. So the client
charges, seals and refuses as it will, and its own book is neither written nor read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedprivacy._support import signing
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.owner_host import Node
from fedprivacy.audit.real_client import RealClient
from fedprivacy.flower import private_client
from fedprivacy.flower.client.node import NodeSettings
from fedprivacy.flower.wire.messages import ENROL, EnrolmentRequest, Grant
from fedprivacy.guard import Guard
from fedprivacy.guard.seals import folders_named_after
from fedprivacy.guard.tally import ChargeEntry
from fedprivacy.tasks.identity import key_hash

_RUN = 1
"""Flower's number of the auditor's run."""


class NotTheAuditorsError(RuntimeError):
    """A copy of a configuration in which the auditor's keys do not count: nothing was asked."""


def write_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """A new key of a client, in a file as a SuperNode has it."""
    key = ec.generate_private_key(ec.SECP384R1())
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key


def costliest(audited: Audited, node: Node) -> Grant:
    """One step that everybody joins, with the least noise that the configuration takes; sums can be read from it."""
    worst = node.worst()
    clipping = audited.grant.clipping if audited.grant.adaptive is None else "flat"
    return audited.asking(sampling_rate=1.0, noise_multiplier=worst.noise.of(), clipping=clipping)


@dataclass(frozen=True)
class Host:
    """A data owner's host, as the auditor's server sees it.

    Attributes:
        node: how it is configured.
        place: a folder for keys and books, which nobody else can read.
        server, key: the private keys of the auditor's server and client.
    """

    node: Node
    place: Path
    server: Ed25519PrivateKey
    key: ec.EllipticCurvePrivateKey
    _books: Iterator[int] = field(default_factory=count)

    @classmethod
    @contextmanager
    def of(cls, node: Node) -> Iterator[Host]:
        """The host, while the block lasts; what was written for it is gone afterwards, however the block ends."""
        with tempfile.TemporaryDirectory(prefix="fedprivacy-audit-") as folder:
            place = Path(folder)
            yield cls(node, place, Ed25519PrivateKey.generate(), write_key(place / "client.key"))

    def client(self, **run_config: str | int) -> DeployedClient:
        """The client, with an empty book; in a run with further settings.

        Raises:
            NotTheAuditorsError: the configuration is not obeyed: the owner's own book could be written.
        """
        guard = self.place / f"{next(self._books)}.log"
        own = {
            "server-key": signing.server_public_key(self.server),
            "key": str(self.place / "client.key"),
            "guard": str(guard),
        }
        given = {**self.node.given, **own}
        settings = NodeSettings.of(given)
        if settings.guard != guard or settings.server_key != own["server-key"]:
            raise NotTheAuditorsError("The node configuration is not obeyed: another guard or server key counts.")
        word = {} if self.node.brought else {"task": self.node.word}
        context = Context(_RUN, 7, given, RecordDict(), {**word, **run_config})
        return DeployedClient(self, settings, context)


class DeployedClient(RealClient):
    """The ClientApp on a host; what it is granted is signed by the auditor's server."""

    def __init__(self, host: Host, settings: NodeSettings, context: Context) -> None:
        super().__init__(private_client(host.node.task if host.node.brought else None), context)
        self.host, self.settings = host, settings

    def signed(self, grant: Grant) -> Grant:
        """A grant in the name of the server that this client obeys."""
        return replace(grant, server_key=self.settings.server_key, signature="").signed(self.host.server)

    def asked(self, grant: Grant, parameters: Mapping[str, NDArray[Any]]) -> Message:
        """The reply to a grant, once it is signed."""
        return self.asked_as_is(self.signed(grant), parameters)

    def asked_as_is(self, grant: Grant, parameters: Mapping[str, NDArray[Any]]) -> Message:
        """The reply to a grant, with any signature."""
        return super().asked(grant, parameters)

    def request(self, **changed: str) -> EnrolmentRequest:
        """A request to enrol that this client must answer, unless `changed` spoils a field before it is signed."""
        own = key_hash(signing.client_public_key(self.host.key))
        usual = {"run_id": str(_RUN), "client_key": own}
        return EnrolmentRequest(**usual | changed).signed(self.host.server)

    def enrolled(self, request: EnrolmentRequest | None) -> Message:
        """The reply to a request to enrol; None: one without it."""
        record = ConfigRecord() if request is None else request.to_record()
        return self.send(ENROL, RecordDict({EnrolmentRequest.name: record}))

    def charges(self) -> list[ChargeEntry]:
        """Return the entries of the client's book, read from the disk."""
        settings = self.settings
        return Guard(settings.guard, settings.budget).charges() if settings.guard.exists() else []

    def lose_sealed(self) -> None:
        """Delete what was sealed, as a fault of the disk could."""
        for folder in folders_named_after(self.settings.guard):
            for file in folder.iterdir():
                file.unlink()
