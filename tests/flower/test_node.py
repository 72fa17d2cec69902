"""What a data owner's node configuration decides, and that nothing in it is taken from a server."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Message, MessageType

from fedprivacy._support import signing
from fedprivacy.flower import private_client
from fedprivacy.flower.wire.messages import ENROL, ENROLMENT, RECEIPT, Receipt, RefusalCode
from fedprivacy.guard import Guard
from fedprivacy.questions.counts import Count
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.unit import Unit
from tests.flower.asked import (
    ANSWERS_ALL,
    READ,
    STRANGER,
    a_grant,
    a_request,
    arrays_of,
    ask,
    code,
    context_of,
    enrol,
    grant_message,
    request_message,
    spent,
    train,
)
from tests.flower.blobs import Blobs, PrivateSizes

ADD_OR_REMOVE = NeighbouringRelation.ADD_OR_REMOVE_ONE

OWN_TASK = """
from tests.flower.blobs import Blobs, PrivateSizes

class Own(Blobs): name = "own"
class Same(Own): name = "same"
class Private(PrivateSizes): name = "own"
class Elsewhere(Own): dataset = "elsewhere"
class Broken(Own): __init__ = None
"""


@pytest.fixture
def unread(monkeypatch):
    """No record may be read, and no book opened."""
    monkeypatch.setattr(Blobs, "shard", lambda *_: pytest.fail("the shard was read"))
    monkeypatch.setattr(Guard, "__init__", lambda *_: pytest.fail("the guard was opened"))


LACKING = {"folder": "NO_GUARD", "delta": "NO_GUARD", "epsilon": "NO_GUARD", "key": "NO_KEY"}
WRONG = [
    {"server-key": None},
    {"disclose-shard-sizes": False},
    {"epsilon": -1.0},
    {"epsilon": float("inf")},
    {"epsilon": float("nan")},
    {"delta": True},
    {"least-noise-multiplier": float("nan")},
    {"least-noise-multiplier": 0.0},
    {"most-steps": 0},
    {"most-steps": 5.0},
    {"filter": "none"},
    {"device": "cuda:4711"},
    {"task": "nonsense"},
    {"question-epsilon": 3.0 + 1e-9},
    {"question-epsilon": 0.0},
    {"smallest-cohort": -1e-9},
    {"questions": "count,nothing"},
]
RIGHT = [{"question-epsilon": 3.0}, {"question-epsilon": 3}, {"smallest-cohort": 0}, {"most-steps": 1}, {"epsilon": 3}]


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [*(({key: None}, refusal) for key, refusal in LACKING.items()), *((each, "NODE_CONFIG_INVALID") for each in WRONG)],
    ids=str,
)
def test_a_configuration_that_lacks_or_misspells_something_is_refused_in_both_conversations(node, changed, refusal):
    node = {name: value for name, value in (node | changed).items() if value is not None}
    if "key" in node:
        assert code(enrol(node)) is RefusalCode[refusal]
    assert code(train(node)) is RefusalCode[refusal]


def test_all_that_is_wrong_is_named_at_once_and_of_a_value_of_another_type_no_more_than_its_type(node, caplog):
    wrong = {"most-steps": 0, "epsilom": 1.0, "server-key": "89ab...", "delta": "BEGIN PRIVATE KEY"}
    assert code(train(node | wrong)) is RefusalCode.NODE_CONFIG_INVALID
    assert "names epsilom; the keys are folder, epsilon" in caplog.text and "(did you mean epsilon?)" in caplog.text
    assert "gives most-steps as 0; give a whole number, at least 1" in caplog.text
    assert "gives server-key as '89ab...'; give 64 hexadecimal digits" in caplog.text
    assert "gives delta as a str; give a number, such as 1e-5" in caplog.text
    assert "BEGIN" not in caplog.text


@pytest.mark.parametrize("changed", RIGHT, ids=str)
def test_a_value_at_the_edge_of_what_is_right_is_taken(node, changed):
    assert ENROLMENT in enrol(node | changed).content


@pytest.mark.parametrize(
    "forged",
    [
        {"forged": {"signature": ""}},
        {"forged": {"run_id": "2"}},
        {"forged": {"version": 3}},
        {"signer": STRANGER},
        {"purpose": signing.GRANT},
        {"run_id": "2"},
        {"client_key": "ab" * 32},
    ],
    ids=lambda forged: "stranger" if "signer" in forged else str(forged),
)
def test_an_enrolment_that_its_server_did_not_ask_for_is_refused_before_anything_is_read(node, forged, unread):
    assert code(enrol(node, **forged)) is RefusalCode.ENROLMENT_INVALID


def test_a_grant_is_held_against_the_configuration_before_anything_is_read(node, unread):
    for signed in ({"signer": STRANGER}, {"steps": 100_001}, {"noise_multiplier": 0.299}):
        assert code(train(node, **signed)) is RefusalCode.GRANT_INVALID
    for signed in ({"signer": STRANGER}, {"noise_multiplier": 0.299}):
        assert code(ask(node | ANSWERS_ALL, Count(), **signed)) is RefusalCode.GRANT_INVALID


def test_sizes_are_disclosed_where_the_task_and_the_data_owner_both_disclose_them(node):
    assert enrol(node | {"disclose-shard-size": True}, task=PrivateSizes()).content[ENROLMENT]["shard_size"] == 0
    node["disclose-shard-size"] = False
    assert code(enrol(node)) is RefusalCode.TASK_NOT_ALLOWED
    assert code(train(node)) is RefusalCode.TASK_NOT_ALLOWED
    assert enrol(node, task=PrivateSizes()).content[ENROLMENT]["shard_size"] == 0


def tasks_of(node, word, message_type=ENROL, content=None):
    """What a client without a task of its own answers when the server's run names `word`."""
    content = content or request_message(a_request(node))
    return private_client()(Message(content, 7, message_type), context_of(node, task=word))


def test_a_file_is_the_task_if_the_node_names_it_and_the_server_calls_it_so(node, tmp_path):
    (tmp_path / "own.py").write_text(OWN_TASK)
    node["tasks"] = f"{tmp_path}/own.py:Same, {tmp_path}/own.py:Own"
    for word in ("own.py:Own", "folder/of/the/server/own.py:Own"):
        assert tasks_of(node, word).content[ENROLMENT]["shard_size"] == 30
    content = grant_message(a_grant())
    content["arrays"] = arrays_of(Blobs())
    assert RECEIPT in tasks_of(node, "own.py:Own", MessageType.TRAIN, content).content
    for word in ("own.py:Other", "own.py", "Own", "cancer"):
        assert code(tasks_of(node, word)) is RefusalCode.TASK_NOT_ALLOWED


@pytest.mark.parametrize(("other", "first"), [("Private", True), ("Elsewhere", False), ("Broken", False)])
def test_tasks_that_do_not_agree_on_what_is_public_are_refused_with_both_names(node, tmp_path, other, first, caplog):
    """A server would learn the exact size by one, for nothing, and train under the other as if it had not."""
    (tmp_path / "own.py").write_text(OWN_TASK)
    names = [f"{tmp_path}/own.py:Own", f"{tmp_path}/own.py:{other}"]
    node["tasks"] = ", ".join(names if first else names[::-1])
    for word in ("own.py:Own", f"own.py:{other}"):
        assert isinstance(code(tasks_of(node, word)), RefusalCode)
    assert f"own.py:{other}" in caplog.text
    if other != "Broken":
        assert "own.py:Own (dataset" in caplog.text
        assert "give both classes the same dataset, the same unit and the same shard_sizes_public" in caplog.text
    assert not (Path(node["folder"]) / "guard.log").exists()


def test_a_size_that_was_protected_is_disclosed_by_no_later_task_of_the_same_guard(node):
    assert RECEIPT in train(node, task=PrivateSizes(), relation=ADD_OR_REMOVE).content
    assert code(enrol(node)) is RefusalCode.GUARD_UNUSABLE
    assert code(train(node, round=2)) is RefusalCode.GUARD_UNUSABLE
    assert enrol(node, task=PrivateSizes()).content[ENROLMENT]["shard_size"] == 0


class ByPatient(PrivateSizes):
    """Each row is a patient; the size of its shard is private."""

    unit = Unit("patient")


@pytest.mark.parametrize(
    ("task", "relation", "unit"),
    [
        (Blobs(), NeighbouringRelation.ZERO_OUT, "record"),
        (PrivateSizes(), ADD_OR_REMOVE, "record"),
        (ByPatient(), ADD_OR_REMOVE, "patient"),
    ],
    ids=["public sizes", "by row", "by person"],
)
def test_only_the_relation_and_the_unit_of_the_client_s_own_task_are_granted(node, task, relation, unit):
    others = [{"unit": each} for each in {"record", "patient", "patient (at most 8 rows)"} - {unit}]
    others += [{"relation": each, "sampling_rate": 1.0} for each in set(NeighbouringRelation) - {relation}]
    for other in others:
        given = {"relation": relation, "unit": unit} | other
        assert code(train(node, task=task, **given)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0
    receipt = Receipt.of(train(node, task=task, relation=relation, unit=unit))
    assert (receipt.unit, receipt.relation) == (unit, relation)


@pytest.mark.parametrize("by_row_first", [True, False], ids=["by row first", "by person first"])
def test_an_account_of_one_unit_answers_no_task_of_another(node, by_row_first, caplog):
    """It states no charges to the server either, whose ledger would count them under the other unit."""
    tasks = [(PrivateSizes(), "record"), (ByPatient(), "patient")]
    (first, unit), (other, another) = tasks if by_row_first else tasks[::-1]
    assert RECEIPT in train(node, task=first, relation=ADD_OR_REMOVE, unit=unit).content
    charged = spent(node)
    assert code(train(node, task=other, relation=ADD_OR_REMOVE, unit=another, round=2)) is RefusalCode.GUARD_UNUSABLE
    assert code(enrol(node, task=other)) is RefusalCode.GUARD_UNUSABLE
    assert f"promises the unit of privacy '{unit}', and the task's is '{another}'" in caplog.text
    assert "fedprivacy guard renew" in caplog.text
    assert spent(node) == charged > 0
    assert ENROLMENT in enrol(node, task=first).content


def test_a_node_works_on_no_task_but_those_that_it_names(node, caplog):
    """The server learns a code, the data owner the remedy; nor does its app bring another task."""
    assert code(tasks_of(node, "digits")) is RefusalCode.TASK_NOT_ALLOWED
    assert "the server's run names another task than --node-config (none: write task = in it)" in caplog.text
    assert "RefusalCode" not in caplog.text
    assert code(enrol(node | {"task": "digits"})) is RefusalCode.TASK_NOT_ALLOWED


class Watched(dict):
    """A run-config that knows what was read of it, and that nobody can read as a whole."""

    __iter__ = items = keys = values = None

    def get(self, key, default=None):
        self.read = {*getattr(self, "read", ()), key}
        return super().get(key, default)

    __getitem__ = get


def test_of_the_server_s_run_config_a_deployed_client_reads_two_keys_and_heeds_neither_device_nor_budget(node):
    for kind, content in ((ENROL, request_message(a_request(node))), (MessageType.TRAIN, grant_message(a_grant()))):
        context = context_of(node | {"task": "digits"})
        context.run_config = Watched({"task": "cancer", "device": "cuda:4711", "epsilon": "{0}", "batch-size": -1})
        assert code(private_client()(Message(content, 7, kind), context)) is RefusalCode.TASK_NOT_ALLOWED
        assert context.run_config.read == READ


@pytest.mark.parametrize("value", [0, "1", "x", False])
def test_a_seed_in_the_server_s_run_config_is_refused(node, value):
    context = context_of(node | {"task": "digits"}, task="digits", seed=value)
    reply = private_client()(Message(request_message(a_request(node)), 7, ENROL), context)
    assert code(reply) is RefusalCode.SEED_IN_DEPLOYMENT


@pytest.mark.parametrize(("key", "path"), [("guard", "guard.log"), ("guard", ""), ("folder", "."), ("folder", "")])
def test_a_path_that_means_another_place_in_another_working_directory_is_refused(node, key, path, unread, caplog):
    """The same budget would be spent in each."""
    assert code(train(node | {key: path})) is RefusalCode.NODE_CONFIG_INVALID
    assert f"gives {key} as '{path}'; give its whole path, from /" in caplog.text


# --- deployed or simulated ---


def ray_with(actor):
    """Ray as a process sees it, in an actor or where something has merely started it."""
    here = SimpleNamespace(get_actor_id=lambda: actor)
    return SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: here)


PART = {"partition-id": 0, "num-partitions": 4}
PROCESSES = {
    "our engine": (None, {"fedprivacy-in-process": True}),
    "an actor of Ray": (ray_with("actor-7"), {}),
    "a process that started Ray": (ray_with(None), {}),
    "any process": (None, {}),
}


def unsigned(node):
    """The client's answer to a grant that nobody has signed."""
    content = grant_message(replace(a_grant(), server_key="", signature=""))
    content["arrays"] = arrays_of(Blobs())
    return private_client(Blobs())(Message(content, 7, MessageType.TRAIN), context_of(node))


@pytest.fixture(params=PROCESSES.values(), ids=PROCESSES)
def marks(request, monkeypatch):
    """The marks that an engine leaves in a client's configuration, in each kind of process."""
    ray, found = request.param
    if ray is not None:
        monkeypatch.setitem(sys.modules, "ray", ray)
    return found


OTHERS = {
    "task": "digits",
    "tasks": "digits",
    "disclose-shard-size": True,
    "most-steps": 3,
    "least-noise-multiplier": 0.5,
    "questions": "count",
    "question-columns": "age",
    "question-epsilon": 1.0,
    "smallest-cohort": 10.0,
    "device": "cpu",
    "autocast": "bfloat16",
    "guard": "guard.log",
    "filter": "adaptive",
}
"""Keys of a deployment beside those of the fixture `node`."""


@pytest.mark.parametrize("key", ["folder", "epsilon", "delta", "key", "server-key", "client-id", *OTHERS])
def test_one_key_of_a_deployment_makes_a_client_a_deployed_one_wherever_it_runs(node, key, marks, unread):
    alone = {key: (node | OTHERS)[key]}
    assert code(unsigned(PART | marks | alone)) in {RefusalCode.NO_GUARD, RefusalCode.NO_KEY}


def test_a_deployed_client_beside_a_part_of_a_split_heeds_signed_grants_alone(node, marks):
    refused = {RefusalCode.GRANT_INVALID, RefusalCode.NODE_CONFIG_INVALID}  # the mark is no key of a data owner's
    assert code(unsigned(node | PART | marks)) in refused
    assert spent(node) == 0
    if not marks:
        assert RECEIPT in train(node | PART).content and spent(node) > 0


def test_without_any_key_a_client_is_simulated_where_an_engine_runs_it_and_nowhere_else(request, marks):
    simulated = request.node.callspec.id in ("our engine", "an actor of Ray")
    reply = unsigned(PART | marks)
    assert RECEIPT in reply.content if simulated else code(reply) is RefusalCode.NO_GUARD
