"""A server names the task and hopes that the name is imported, called, or makes sizes public. It is only compared.

Before, a server that named a built-in task with public sizes learnt the exact number of a hospital's records at
enrolment, without a grant, a charge or a signature; and `os:getpid` was imported and called.
"""

import sys

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict

import clients.app
from fedprivacy.deploy.keys import write_client_key
from fedprivacy.flower.wire.messages import ENROL, ENROLMENT, GRANT, RefusalCode
from fedprivacy.tasks.digits import Digits
from tests.flower.asked import a_grant, a_request, arrays_of, code, context_of, node_of, request_message

RECORDS = 437


@pytest.fixture
def node(tmp_path, identity):
    """A hospital that runs this repository's own app for the task `digits`, and holds records of `cancer`."""
    folder = tmp_path / "hospital"
    folder.mkdir()
    features, labels = np.random.default_rng(0).random((RECORDS, 30)), np.zeros(RECORDS, dtype=np.int64)
    np.savez(folder / "records.npz", features=features, labels=labels)
    return node_of(folder, write_client_key(tmp_path, "hospital").private_key) | {"task": "digits"}


@pytest.fixture
def trap(tmp_path):
    """A module and a file that say so if anybody imports them."""
    (tmp_path / "trap.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('sprung').touch()\nTrap = int\n"
    )
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    assert not (tmp_path / "sprung").exists()


def asked(node, content, message_type, **run_config):
    return clients.app.app(Message(content, 7, message_type), context_of(node, **run_config))


def test_whatever_the_server_calls_the_task_nothing_is_imported_called_or_disclosed(node, trap):
    file = f"{trap}/trap.py:Trap"
    words = ["cancer", "os:getpid", "trap:Trap", file, f"{file}@sha256:{'0' * 64}", "{0}", 7, "x" * 10**6]
    request = request_message(a_request(node))
    grant = RecordDict({GRANT: a_grant().to_record(), "arrays": arrays_of(Digits())})
    for word in words:  # one makes sizes public, others are code that lies about, or no name at all
        for message_type, content in ((ENROL, request), (MessageType.TRAIN, grant)):
            reply = asked(node, content, message_type, task=word)
            assert code(reply) is RefusalCode.TASK_NOT_ALLOWED, word
    assert not list((trap / "hospital").glob("guard*"))
    assert "fedprivacy_task_trap" not in sys.modules and "trap" not in sys.modules
    allowed = asked(node | {"task": "cancer"}, request, ENROL, task="cancer")
    assert allowed.content[ENROLMENT]["shard_size"] == RECORDS
