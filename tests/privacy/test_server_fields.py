"""Everything that a server can set, sent by a hostile one to the real ClientApp of a deployed client.

What is out of bounds is refused with a constant code before anything is charged; what is within bounds is charged,
trained and answered, never half of it. `docs/explanation/server-fields.md` has a row for each field.
"""

import ast
import dataclasses
import logging
import math
import pickle
import re
import sys
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, Metadata, MetricRecord, RecordDict
from numpy.lib import format as npy

import clients.app
import fedprivacy as fp
from fedprivacy.deploy.keys import write_client_key
from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.flower.client.local import IN_PROCESS
from fedprivacy.flower.wire.messages import (
    ENROL,
    ENROLMENT,
    ENROLMENT_REQUEST,
    GRANT,
    QUESTION_GRANT,
    RECEIPT,
    EnrolmentRequest,
    Grant,
    QuestionGrant,
    Receipt,
    RefusalCode,
)
from fedprivacy.questions.standardise import STANDARDISE
from fedprivacy.tasks.digits import Digits
from fedprivacy.training.algorithms import Ditto, MeanRegularised, Scaffold, text_of
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.local_round import CONTROL
from tests.flower.asked import (
    READ,
    TABLED,
    Tabled,
    a_request,
    app_of,
    arrays_of,
    code,
    context_of,
    node_of,
    request_message,
    send,
    signed_grant,
    signed_question,
    spent,
)
from tests.flower.blobs import Blobs, plan_of
from tests.privacy.fields import NOT_NUMBERS, OF_QUESTIONS, OF_TRAINING

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "explanation" / "server-fields.md"
GRANT_FIELDS = [field.name for field in dataclasses.fields(Grant)]


@pytest.fixture
def node(node):
    """A client whose budget stops nothing: what is refused here is refused for another reason."""
    return node | {"epsilon": 1e6}


def told(node, content, message_type=MessageType.TRAIN):
    return send(message_type, content, node)


def content_of(grant=None, arrays=None, **records):
    own = arrays_of(Blobs()) if arrays is None else arrays
    return RecordDict({GRANT: grant or signed_grant(), "arrays": own, **records})


def refused(node, content) -> bool:
    """True if the client says that the grant is invalid, and has charged nothing."""
    return code(told(node, content)) is RefusalCode.GRANT_INVALID and spent(node) == 0


EXTREMES = [
    {"run_id": "x" * 128, "client_id": "x" * 1024, "sampling_rate": 5e-324},
    {"round": 2**63 - 1, "attempt": 2**63 - 1, "earlier_runs": 2**63 - 1},
    {"sampling_rate": 1.0, "steps": 1, "noise_multiplier": 0.3},
    {"noise_multiplier": 1e4, "clipping_norm": 1e6, "learning_rate": 1e30, "expected_batch_size": 1e-9},
    {"clipping_norm": 1e-6, "learning_rate": 5e-324, "expected_batch_size": 1e19},
    {"clipping": "adaptive", "clipping_norm": 1e-6, "expected_batch_size": 1e-9},
    {"clipping": "adaptive", "clipping_norm": 9.9e5, "expected_batch_size": 1e19},
    {"momentum": math.nextafter(1.0, 0.0), "weight_decay": 1e3, "learning_rate": 1e30},
    {"optimizer": "adamw", "learning_rate": 1e30, "weight_decay": 1e3},
    {"algorithm": text_of(MeanRegularised(1e6)), "learning_rate": 1e30},
    {"algorithm": text_of(Ditto(0.0, 10**9)), "learning_rate": 1e30},
    {"algorithm": text_of(Scaffold()), "learning_rate": 5e-324, "momentum": math.nextafter(1.0, 0.0)},
    {"local_evaluation": True, "steps": 2, "noise_multiplier": 0.3, "sampling_rate": 1.0},
]
"""The ends of what is within bounds, together."""

TOGETHER_IMPOSSIBLE = [
    {"optimizer": "adam", "momentum": 0.5},
    {"optimizer": "adam", "weight_decay": 0.5},
    {"optimizer": "adamw", "momentum": 0.5},
    {"relation": "replace-one", "sampling_rate": 1.0},
    {"clipping": "adaptive", "clipping_norm": 1e6},
    {"local_evaluation": True, "steps": 1},
]


@pytest.mark.parametrize("name", GRANT_FIELDS)
def test_a_value_out_of_bounds_is_refused_before_anything_is_charged_though_the_server_signed_it(node, name):
    for value in OF_TRAINING[name]:
        grant = signed_grant(**{name: value}) if name != "signature" else ConfigRecord({**signed_grant(), name: value})
        assert refused(node, content_of(grant)), value


def test_settings_that_do_not_go_together_are_refused_before_anything_is_charged(node):
    for changed in TOGETHER_IMPOSSIBLE:
        assert refused(node, content_of(signed_grant(**changed))), changed


@pytest.mark.parametrize("changed", EXTREMES, ids=",".join)
def test_at_the_ends_of_what_is_allowed_a_client_charges_trains_and_answers(node, changed):
    grant = signed_grant(**changed)
    reply = told(node, content_of(grant))
    assert list(reply.content) == ["arrays", RECEIPT]
    assert Receipt.from_record(reply.content[RECEIPT]).matches(Grant.from_record(grant))
    assert spent(node) == grant["steps"]


def test_a_message_without_a_grant_or_with_something_else_in_its_place_is_refused(node):
    """Also where one field of the grant is missing, of another type or too many."""
    fields, arrays = {**signed_grant()}, arrays_of(Blobs())
    for name in (*GRANT_FIELDS, "version"):
        assert refused(node, content_of(ConfigRecord({key: fields[key] for key in fields.keys() - {name}})))
        assert refused(node, content_of(ConfigRecord(fields | {name: [b"1"]})))
    assert refused(node, content_of(ConfigRecord(fields | {"more": 1})))
    for content in (RecordDict(), RecordDict({"arrays": arrays}), RecordDict({GRANT: arrays, "arrays": arrays})):
        assert refused(node, content)
    asked = Message(RecordDict(), 7, MessageType.TRAIN)
    assert code(app_of()(Message(Error(1, "x"), reply_to=asked), context_of(node))) is RefusalCode.GRANT_INVALID


def npy_bytes(values, **options):
    stream = BytesIO()
    np.save(stream, values, **options)
    return stream.getvalue()


def with_head(shape, body=b""):
    stream = BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue() + body


class Unpickled:
    """Ends this process when it is unpickled."""

    def __reduce__(self):
        return sys.exit, ("it was unpickled",)


WEIGHT = np.zeros((2, 2), np.float32)
PICKLE = npy_bytes(np.array([[Unpickled()] * 2] * 2, dtype=object), allow_pickle=True)
BYTES = {
    "no format": b"x" * 1000,
    "pickle": pickle.dumps(Unpickled()),
    "a pickle in NumPy's format": PICKLE,
    "cut off": npy_bytes(WEIGHT)[:-1],
    "too long": npy_bytes(WEIGHT) + b"\0",
    "a head of a terabyte": with_head((2**19, 2**19)),
    "a negative head": with_head((-2, -2), body=bytes(16)),
    "a head that is code": with_head((2, 2), body=bytes(16)).replace(b"False", b"9**9 "),
    "a later version": b"\x93NUMPY\x09\x00" + npy_bytes(WEIGHT)[8:],
    "an archive": b"PK\x03\x04" + bytes(100),
}
SHAPES = [(4,), (1, 2, 2), (), (0, 2), (1000, 1000)]
NUMBERS = [np.nan, np.inf, -np.inf, 1.1e15, -1.1e15]
KINDS = (">f4", "f8", "f2", "i4", "u1", "?", "c8", "U4", "M8[s]", "V4", "f4,f4")
ARRAYS = {
    **{str(shape): Array(np.zeros(shape, np.float32)) for shape in SHAPES},
    **{str(number): Array(np.array([[0, 1], [number, 2]], np.float32)) for number in NUMBERS},
    **{kind: Array(WEIGHT.astype(kind)) for kind in KINDS},
    **{kind: Array("float32", (2, 2), "numpy.ndarray", held) for kind, held in BYTES.items()},
    "an object": Array("object", (2, 2), "pickle", PICKLE),
}


def with_weight(array):
    arrays = arrays_of(Blobs())
    arrays["weight"] = array
    return arrays


def test_an_array_of_another_type_shape_or_size_is_refused_before_anything_is_charged(node):
    for name, array in ARRAYS.items():
        assert refused(node, content_of(arrays=with_weight(array))), name


def test_names_that_are_not_the_model_s_are_refused(node):
    own = dict(arrays_of(Blobs()))
    weight = own["weight"]
    for arrays in ({}, {"weight": weight}, own | {"more": weight}, {"bias": own["bias"], "Weight": weight}):
        assert refused(node, content_of(arrays=ArrayRecord(arrays)))
    assert refused(node, RecordDict({GRANT: signed_grant(), "model": arrays_of(Blobs())}))
    assert refused(node, RecordDict({GRANT: signed_grant(), "arrays": ConfigRecord({"weight": 1.0})}))


def test_what_an_array_says_of_itself_beside_its_bytes_and_the_order_of_its_bytes_change_nothing(node, monkeypatch):
    starts = []

    def train(_, engine, *rest, **named):
        starts.append(engine.model.weight.detach().numpy().copy())
        raise ValueError("enough was seen")

    monkeypatch.setattr(DPSGD, "train", train)
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    lies = Array("object", (10**12,), "pickle", npy_bytes(values))
    for round, array in enumerate([Array(values), Array(np.asfortranarray(values)), lies], start=1):
        told(node, content_of(signed_grant(round=round), with_weight(array)))
    assert len(starts) == 3 and all(np.array_equal(start, values) for start in starts)


def test_a_pull_towards_the_global_model_that_is_no_number_is_refused_before_anything_is_charged(node):
    for value in (*NOT_NUMBERS, -1.0, -1, 1e31, 1e300, True, "0.1", b"1", [0.1], []):
        assert refused(node, content_of(config=ConfigRecord({"proximal-mu": value}))), value
    for round, value in enumerate([0, 0.1, 1e30], start=1):
        content = content_of(signed_grant(round=round), config=ConfigRecord({"proximal-mu": value}))
        assert RECEIPT in told(node, content).content


def a_control(values):
    return {CONTROL: ArrayRecord({CONTROL: Array(np.asarray(values))})}


def test_a_control_that_is_none_is_refused_before_anything_is_charged(node):
    """It is read as a model's arrays are."""
    wrong = [a_control(np.zeros(5, np.float32)), a_control(np.full(6, np.nan, np.float32))]
    wrong += [{CONTROL: each} for each in (ConfigRecord({CONTROL: 1.0}), ArrayRecord({"other": Array(np.zeros(6))}))]
    for control in wrong:
        assert refused(node, content_of(signed_grant(algorithm=text_of(Scaffold())), **control)), control


def test_records_and_settings_that_nobody_asked_for_are_not_read(node):
    more = {
        "config": ConfigRecord({"noise_multiplier": 0.0, "seed": 1, "task": "os:getpid", "server-round": 7}),
        STANDARDISE: ConfigRecord({"mean": [math.nan]}),  # this task does not standardise its inputs
        "fedprivacy.receipt": ConfigRecord({"signature": "x"}),
        "fedprivacy.refusal": ConfigRecord({"code": "budget-exhausted"}),
        "another model": arrays_of(Blobs()),
        "metrics": MetricRecord({"num-examples": 10**9}),
        **a_control(np.full(6, np.nan, np.float32)),  # which no algorithm but SCAFFOLD reads
    }
    reply = told(node, content_of(**more))
    receipt = Receipt.from_record(reply.content[RECEIPT])
    assert receipt.matches(Grant.from_record(signed_grant())) and len(receipt.signature) > 100


@pytest.mark.parametrize("kind", ["train", "query.enrol"])
@pytest.mark.parametrize("ttl", [math.nan, -1e300, 1e300])
def test_where_a_message_comes_from_and_how_long_it_lives_changes_no_answer(node, kind, ttl):
    places = {"run_id": 2**64 - 1, "src_node_id": 2**63, "dst_node_id": 0}
    names = {"message_id": "\n" * 10**5, "group_id": "x" * 10**5, "reply_to_message_id": "{0}"}
    metadata = Metadata(**places, **names, created_at=-ttl, ttl=ttl, message_type=kind)
    content = content_of() if kind == "train" else request_message(a_request(node))
    reply = app_of()(Message(content, metadata=metadata), context_of(node))
    assert list(reply.content) == (["arrays", RECEIPT] if kind == "train" else [ENROLMENT])


def test_a_message_of_a_kind_that_no_client_answers_reaches_no_record(node, monkeypatch):
    """Flower itself answers with the text of the error: the kind of the message, and nothing of this client's."""
    monkeypatch.setattr(Blobs, "shard", lambda *_: pytest.fail("the shard was read"))
    monkeypatch.setattr(Tabled, "table", lambda *_: pytest.fail("the table was read"))
    content = content_of(**{QUESTION_GRANT: signed_question(fp.ask.count())})
    for kind in ("evaluate", "query", "query.enrolment", "train.enrol", "", "../x", "ask", "query.ask.more"):
        with pytest.raises(ValueError, match=r"Invalid message type: |No \w+ function registered with name"):
            send(kind, content, node, task=TABLED)


def test_what_a_server_sends_cannot_forge_a_line_in_the_client_s_log(node, caplog):
    line = "forged\nERROR all is well \x1b[2J"
    contents = [content_of(signed_grant(**{name: line})) for name in GRANT_FIELDS if name != "signature"]
    contents += [content_of(ConfigRecord({**signed_grant(), line: 1})), content_of(config=ConfigRecord({line: 1}))]
    contents += [content_of(arrays=ArrayRecord({line: Array(WEIGHT)}))]
    contents += [content_of(ConfigRecord({**signed_grant(), name: line})) for name in ("version", "signature")]
    with caplog.at_level(logging.INFO, "fedprivacy.client"):
        for content in contents:
            told(node, content)
        send(ENROL, RecordDict({ENROLMENT_REQUEST: ConfigRecord({line: line})}), node)
    assert len(caplog.records) >= 20
    assert line not in caplog.text and "\x1b" not in caplog.text


def test_in_a_simulation_the_same_is_refused(monkeypatch):
    task = Blobs()
    app = private_client(task, plan_of(task).config)
    InProcessGrid(app, 1, {})
    context = context_of({"partition-id": 0, "num-partitions": 1, IN_PROCESS: True})
    monkeypatch.setattr(DPSGD, "train", lambda *_, **__: pytest.fail("it was trained"))
    outside = [{"relation": "add-or-remove-one"}, {"learning_rate": math.inf}, {"clipping": "x"}, {"run_id": "x" * 129}]
    for changed in outside:
        reply = app(Message(content_of(signed_grant(**changed)), 7, MessageType.TRAIN), context)
        assert code(reply) is RefusalCode.GRANT_INVALID
    for more in ({"config": ConfigRecord({"proximal-mu": math.nan})}, {"arrays": with_weight(Array(WEIGHT * np.nan))}):
        reply = app(Message(content_of(**more), 7, MessageType.TRAIN), context)
        assert code(reply) is RefusalCode.GRANT_INVALID


# The name of the task

RECORDS = 437


@pytest.fixture
def digits_node(tmp_path, identity):
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


def test_whatever_the_server_calls_the_task_nothing_is_imported_called_or_disclosed(digits_node, trap):
    """Before, a built-in task with public sizes disclosed their number uncharged, and `os:getpid` was called."""

    def asked(node, content, message_type, word):
        return clients.app.app(Message(content, 7, message_type), context_of(node, task=word))

    file = f"{trap}/trap.py:Trap"
    words = ["cancer", "os:getpid", "trap:Trap", file, f"{file}@sha256:{'0' * 64}", "{0}", 7, "x" * 10**6]
    request = request_message(a_request(digits_node))
    grant = RecordDict({GRANT: signed_grant(), "arrays": arrays_of(Digits())})
    for word in words:  # one makes sizes public, others are code that lies about, or no name at all
        for message_type, content in ((ENROL, request), (MessageType.TRAIN, grant)):
            reply = asked(digits_node, content, message_type, word)
            assert code(reply) is RefusalCode.TASK_NOT_ALLOWED, word
    assert not list((trap / "hospital").glob("guard*"))
    assert "fedprivacy_task_trap" not in sys.modules and "trap" not in sys.modules
    allowed = asked(digits_node | {"task": "cancer"}, request, ENROL, "cancer")
    assert allowed.content[ENROLMENT]["shard_size"] == RECORDS


# The page


def rows(heading):
    """The table under a heading: cells of each row, without the head."""
    section = TABLE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named(heading):
    """The names in the first column."""
    return [name for row in rows(heading) for name in re.findall(r"`([^`]+)`", row[0])]


def test_every_field_of_a_grant_and_of_a_request_has_a_row_and_no_row_is_left_over():
    assert sorted(named("Grant")) == sorted(GRANT_FIELDS)
    assert OF_TRAINING.keys() == set(GRANT_FIELDS)
    assert sorted(named("Grant for questions")) == sorted(field.name for field in dataclasses.fields(QuestionGrant))
    assert OF_QUESTIONS.keys() == set(named("Grant for questions"))
    assert sorted(named("Request to enrol")) == sorted(field.name for field in dataclasses.fields(EnrolmentRequest))
    assert set(named("Run configuration")) == READ


def test_every_row_names_tests_that_exist():
    headings = re.findall(r"^## (.*)$", TABLE.read_text(), re.MULTILINE)
    whole = [row for heading in headings for row in rows(heading)]
    assert len(whole) > 35
    for row in whole:
        found = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[-1])
        assert found or "out of scope" in row[2], row
        assert all(name in functions(file) for file, name in found), row


@cache
def functions(file):
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}
