"""A stranger at a deployed client: who asks without the signature of its server learns nothing of its records.

The client is a real one, with a folder, a key, a guard and a node configuration that allows one task, whose number of
records is private. A stranger names another, which would disclose it, and asks for this and that. Whatever comes back
must be the same for neighbouring shards, byte by byte.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.app.user_config import UserConfig

from fedprivacy._support.signing import client_key, client_public_key, server_public_key
from fedprivacy.audit.deployed import write_key
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.silence import silence
from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.flower.wire.messages import ENROL, GRANT, EnrolmentRequest
from fedprivacy.tasks.identity import key_hash

_TASKS = """\
import numpy, torch, fedprivacy
class Allowed(fedprivacy.Task):
    dataset, shard_sizes_public, nominal_shard_size = "stranger", False, 10
    def model(self):
        return torch.nn.Linear(2, 2)
    def shard(self, source):
        records = torch.tensor(numpy.load(source.folder / "records.npy"))
        return fedprivacy.Shard(records, torch.zeros(len(records), dtype=torch.long))
class Telling(Allowed):
    shard_sizes_public, nominal_shard_size = True, None
"""
"""Two tasks on the same records: the one that the data owner allows, and one that tells how many there are."""

_RECORDS = 5

Reply = tuple[object, ...]
"""All that came back."""


@gate(
    "stranger",
    proves="A deployed client tells a stranger nothing of its records.",
    assumes="The tasks and messages that were tried stand for all others.",
)
def check(audited: Audited) -> Judged:
    """Check that a stranger learns nothing."""
    found = [*_told(audited)]
    return Judged(float(len(found)), found)


def _told(audited: Audited) -> Iterator[str]:
    """List what a stranger learns, in words."""
    with tempfile.TemporaryDirectory() as folder, silence():
        place = Path(folder)
        (place / "stranger_tasks.py").write_text(_TASKS)
        replies = [list(_replies(audited, place, records)) for records in (_RECORDS, _RECORDS + 1)]
        for (about, one), (_, other) in zip(*replies, strict=True):
            if one != other:
                yield f"A deployed client tells a stranger about its records: {about}."


def _replies(audited: Audited, place: Path, records: int) -> Iterator[tuple[str, Reply]]:
    """What was asked, in words, and all that a client with so many records answered."""
    node = _node(place, records)
    app = private_client()
    InProcessGrid(app, 1, {})  # sets the identity of the process, which Flower's messages read
    arrays = ArrayRecord({"weight": Array(np.zeros((2, 2), np.float32)), "bias": Array(np.zeros(2, np.float32))})
    for name in ("Allowed", "Telling"):
        word = f"{place / 'stranger_tasks.py'}:{name}"
        for kind in (ENROL, MessageType.TRAIN):
            request = EnrolmentRequest(run_id="1", client_key=_known_by(place, records), signature="")
            content = RecordDict(
                {request.name: request.to_record(), GRANT: audited.asking().to_record(), "arrays": arrays}
            )
            context = Context(run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config={"task": word})
            yield (
                f"asked by '{kind}' for another task" if name == "Telling" else f"asked by '{kind}'",
                _all_of(app(Message(content, 7, kind), context)),
            )


def _all_of(reply: Message) -> Reply:
    if reply.has_error():
        return reply.error.code, reply.error.reason
    return tuple(
        (name, tuple((key, repr(value)) for key, value in part.items())) for name, part in reply.content.items()
    )


def _known_by(place: Path, records: int) -> str:
    """What everybody may know a client's key by."""
    return key_hash(client_public_key(client_key(place / f"{records}.key")))


def _node(place: Path, records: int) -> UserConfig:
    """A data owner's node configuration, with records, a key, and a server that is not the one that asks."""
    folder, key = place / f"{records}", place / f"{records}.key"
    folder.mkdir()
    np.save(folder / "records.npy", np.ones((records, 2), np.float32))
    write_key(key)
    server = server_public_key(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    task = f"{place / 'stranger_tasks.py'}:Allowed"
    return {
        "folder": str(folder),
        "epsilon": 3.0,
        "delta": 1e-5,
        "client-id": "hospital",
        "key": str(key),
        "server-key": server,
        "task": task,
    }
