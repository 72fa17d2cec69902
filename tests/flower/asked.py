"""One deployed client, the real ClientApp, and a server that sends it what it likes."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from fedprivacy._support import signing
from fedprivacy._support.signing import client_key, client_public_key, server_public_key, sign
from fedprivacy.flower import private_client
from fedprivacy.flower.wire.messages import (
    ASK,
    ENROL,
    ENROLMENT_REQUEST,
    GRANT,
    QUESTION_GRANT,
    REFUSAL,
    EnrolmentRequest,
    QuestionGrant,
    Refusal,
    RefusalCode,
)
from fedprivacy.guard import Guard
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.identity import key_hash
from fedprivacy.training.algorithms import ALGORITHMS, text_of
from fedprivacy.values.budget import PrivacyBudget
from tests.flower.blobs import A_GRANT, Blobs, DeepBlobs, _blobs, plan_of

SERVER, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([i] * 32)) for i in (1, 2))
FLOWER_RUN = 1
READ = {"seed", "task"}
"""Keys of the server's run-config that a deployed client reads."""


def node_of(folder, key):
    """A data owner's node configuration, but for the task: the app brings it."""
    return {
        "folder": str(folder),
        "epsilon": 3.0,
        "delta": 1e-3,
        "client-id": "hospital",
        "key": str(key),
        "server-key": server_public_key(SERVER),
    }


@cache
def app_of(task=None, seed=None):
    """The app of a data owner whose own code names the task: `Blobs`, unless it is another one."""
    task = task or Blobs()
    return private_client(task, plan_of(task, seed=seed).config)


def send(message_type, content, node, *, task=None, seed=None):
    return app_of(task, seed)(Message(content, 7, message_type), context_of(node))


def context_of(node, **run_config):
    return Context(run_id=FLOWER_RUN, node_id=7, node_config=node, state=RecordDict(), run_config=run_config)


def a_request(node, *, signer=SERVER, purpose=signing.ENROLMENT, **changed):
    """A request to enrol, signed by a server for this client."""
    own = key_hash(client_public_key(client_key(Path(node["key"]))))
    request = EnrolmentRequest(**{"run_id": str(FLOWER_RUN), "client_key": own} | changed, signature="")
    return replace(request, signature=sign(signer, purpose, request.signed_bytes()))


def request_message(request, **forged):
    return RecordDict({ENROLMENT_REQUEST: ConfigRecord({**request.to_record(), **forged})})


def enrol(node, *, task=None, seed=None, forged=None, **changed):
    """Ask for an enrolment with a signed request, with `changed` fields, and after that `forged` ones."""
    return send(ENROL, request_message(a_request(node, **changed), **forged or {}), node, task=task, seed=seed)


def a_grant(*, signer=SERVER, **changed):
    """A grant, signed by a server."""
    usual = {"round": 1, "noise_multiplier": 2.0, "clipping_norm": 1.0, "expected_batch_size": 15.0}
    grant = replace(A_GRANT, **usual | {"learning_rate": 0.5, "server_key": server_public_key(signer)} | changed)
    return replace(grant, signature=sign(signer, signing.GRANT, grant.signed_bytes()))


def signed_grant(*, signer=SERVER, **changed):
    """A record that says anything at all in the name of a grant, signed: a server may be hostile."""
    fields = {**a_grant().to_record(), **changed}
    del fields["signature"]
    text = json.dumps(fields, sort_keys=True).encode()
    return ConfigRecord({**fields, "signature": sign(signer, signing.GRANT, text)})


def grant_message(grant, **forged):
    return RecordDict({GRANT: ConfigRecord({**grant.to_record(), **forged})})


def arrays_of(task):
    return ArrayRecord({n: Array(p.detach().numpy()) for n, p in task.model().named_parameters()})


def train(node, *, task=None, seed=None, forged=None, **changed):
    """Send a grant that a server signed, with `changed` fields, and after that `forged` ones."""
    content = grant_message(a_grant(**changed), **forged or {})
    content["arrays"] = arrays_of(task or Blobs())
    return send(MessageType.TRAIN, content, node, task=task, seed=seed)


class Tabled(Blobs):
    """The same task, whose records have columns, too: thirty patients, unless others are given."""

    def __init__(self, **columns):
        usual = {"age": [float(30 + n) for n in range(30)], "ward": ["a", "b", "c"] * 10}
        self.columns = columns or usual

    def table(self, source):
        return Table(self.columns)


class PrivatelyTabled(Tabled):
    """The same, with a private number of records."""

    shard_sizes_public = False
    nominal_shard_size = 25


class OneHospital(DeepBlobs):
    """The records of one data owner, by a seed: those of two seeds are neighbours in every record."""

    def __init__(self, seed):
        self.seed = seed

    def shard(self, source):
        return _blobs(40, self.seed)


HOSPITALS = [OneHospital(seed) for seed in (0, 1)]


def named(algorithm, **settings):
    """An algorithm as a grant names it."""
    return text_of(ALGORITHMS[algorithm](**settings))


ANSWERS_ALL = {"questions": "count,categories,heavy-hitters,histogram,sum,mean,spread,covariance,quantiles"}
ANSWERS_ALL |= {"question-columns": "*", "smallest-cohort": 0.0}
"""In a node configuration: whatever is asked is answered."""


def asking(*questions, shares=()):
    """Questions as they cross; a text is what it is."""
    return questions[0] if isinstance(questions[0], str) else Questionnaire(questions, shares).as_text()


def a_question(*questions, signer=SERVER, shares=(), **changed):
    """A grant for questions, signed by a server."""
    names = {field.name for field in fields(A_GRANT)} & {field.name for field in fields(QuestionGrant)}
    given = {name: getattr(A_GRANT, name) for name in names - {"signature"}}
    given |= {"run_id": "questions-1", "client_id": "hospital", "round": 1, "steps": 1, "sampling_rate": 1.0}
    given |= {"noise_multiplier": 4.0, "clipping_norm": 1.0, "server_key": server_public_key(signer)}
    grant = QuestionGrant(**given | {"questions": asking(*questions, shares=shares)} | changed)
    return grant.sign(signer)


def signed_question(*questions, signer=SERVER, purpose=signing.QUESTIONS, without=(), **changed):
    """A record that says anything at all in the name of a grant for questions, signed."""
    fields = {**a_question(*questions).to_record(), **changed}
    for name in ("signature", *without):
        del fields[name]
    text = json.dumps(fields, sort_keys=True).encode()
    return ConfigRecord({**fields, "signature": sign(signer, purpose, text)})


def ask(node, *questions, task=None, seed=None, **changed):
    """Send a grant for questions that a server signed, with `changed` fields."""
    record = a_question(*questions, **changed).to_record()
    return send(ASK, RecordDict({QUESTION_GRANT: record}), node, task=task or TABLED, seed=seed)


TABLED = Tabled()


def code(reply) -> RefusalCode:
    """Why the client refused; it said so and nothing else."""
    assert list(reply.content) == [REFUSAL]
    return Refusal.from_record(reply.content[REFUSAL]).code


def guard(node):
    return Guard(Path(node["folder"]) / "guard.log", PrivacyBudget(node["epsilon"], node["delta"]))


def spent(node):
    return sum(guard(node).history().values())
