"""Questions of a hostile server, sent to the real ClientApp of a deployed client.

What is out of bounds, or not allowed, is refused with a constant code before anything is charged; what is answered was
charged, and nothing beside noisy totals depends on a record.
"""

import dataclasses
import json
import logging
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType, RecordDict

import fedprivacy as fp
from fedprivacy._support import signing
from fedprivacy._support.signing import server_public_key
from fedprivacy.flower.wire.messages import (
    ASK,
    GRANT,
    QUESTION_GRANT,
    RECEIPT,
    VERSION,
    QuestionGrant,
    Receipt,
    RefusalCode,
)
from fedprivacy.flower.wire.payloads import history_text
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.questions.conditions import OneOf
from fedprivacy.questions.counts import Count
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.flower.asked import (
    ANSWERS_ALL,
    SERVER,
    STRANGER,
    TABLED,
    PrivatelyTabled,
    Tabled,
    a_grant,
    a_question,
    arrays_of,
    ask,
    code,
    guard,
    send,
    signed_question,
    spent,
    train,
)
from tests.flower.blobs import Blobs
from tests.privacy.asking import Client
from tests.privacy.fields import OF_OTHER_TYPES, OF_QUESTIONS

AGE, COUNT = fp.ask.mean("age", 0, 100), fp.ask.count()
FIELDS = [field.name for field in dataclasses.fields(QuestionGrant)]


@pytest.fixture
def node(node):
    """A client whose budget stops nothing, and that answers whatever is asked."""
    return node | {"epsilon": 1e6} | ANSWERS_ALL


def told(node, record, *, task=TABLED, kind=ASK, **more):
    return send(kind, RecordDict({QUESTION_GRANT: record, **more}), node, task=task)


def refused(node, record, expected=RefusalCode.GRANT_INVALID) -> bool:
    """True if the client says so and nothing else, and has charged nothing."""
    return code(told(node, record)) is expected and spent(node) == 0


# What a server sends: the grant


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_out_of_bounds_is_refused_before_anything_is_charged_though_the_server_signed_it(node, name):
    for value in OF_QUESTIONS[name]:
        record = signed_question(COUNT, **({name: value} if name != "signature" else {}))
        assert refused(node, ConfigRecord({**record, name: value})), value


@pytest.mark.parametrize("name", [*FIELDS, "version"])
def test_a_value_of_another_type_is_refused_before_anything_is_charged(node, name):
    own = type(signed_question(COUNT)[name])
    for value in OF_OTHER_TYPES:
        if type(value) is not own:
            assert refused(node, ConfigRecord({**signed_question(COUNT), name: value})), value


def test_a_grant_of_another_version_or_with_other_fields_is_refused(node):
    fields = {**signed_question(COUNT)}
    for version in (0, VERSION - 1, VERSION + 1):
        assert refused(node, signed_question(COUNT, version=version))
    for name in (*FIELDS, "version"):
        assert refused(node, ConfigRecord({key: value for key, value in fields.items() if key != name}))
    assert refused(node, ConfigRecord({**fields, "round ": fields["round"]}))


def test_what_is_in_bounds_is_answered_and_charged_once(node):
    """Otherwise everything above could be refused for another reason. Records that nobody asked for are not read."""
    extremes = [
        {"run_id": "questions-" + "x" * 118, "client_id": "x" * 1024},
        {"round": 2**63 - 1, "attempt": 2**63 - 1, "earlier_runs": 2**63 - 1},
        {"noise_multiplier": 0.3, "run_id": "questions-"},
        {"noise_multiplier": 1e4, "round": 2},
    ]
    more = {"config": ConfigRecord({"noise_multiplier": 0.0, "seed": 1, "smallest-cohort": -1.0})}
    more |= {RECEIPT: ConfigRecord({"signature": "x"}), "arrays": arrays_of(Blobs())}
    for number, changed in enumerate(extremes, start=1):
        grant = a_question(COUNT, AGE, **changed)
        reply = told(node, grant.to_record(), **more)
        assert list(reply.content) == ["arrays", RECEIPT], reply.content
        assert [array.shape for array in reply.content["arrays"].values()] == [(1, 2), (1, 3)]
        assert Receipt.from_record(reply.content[RECEIPT]).matches(grant)
        assert spent(node) == number


@pytest.mark.parametrize("purpose", [signing.GRANT, signing.ENROLMENT, signing.RECEIPT, signing.LEDGER_HEAD])
def test_a_signature_that_was_made_for_something_else_is_none(node, purpose):
    assert refused(node, signed_question(COUNT, purpose=purpose))
    assert refused(node, signed_question(COUNT, signer=STRANGER))
    assert refused(node, signed_question(COUNT, signer=STRANGER, server_key=server_public_key(STRANGER)))


def test_a_grant_for_training_asks_nothing_and_one_for_questions_trains_nothing(node):
    arrays = arrays_of(Blobs())
    asking_run = {**a_grant(sampling_rate=1.0).to_record(), "run_id": "questions-1"}
    del asking_run["signature"]
    text = json.dumps(asking_run, sort_keys=True).encode()
    named = ConfigRecord({**asking_run, "signature": signing.sign(SERVER, signing.GRANT, text)})
    question = a_question(COUNT).to_record()
    for kind, content in [
        (MessageType.TRAIN, {GRANT: named, "arrays": arrays}),
        (MessageType.TRAIN, {QUESTION_GRANT: question, "arrays": arrays}),
        (MessageType.TRAIN, {GRANT: question, "arrays": arrays}),
        (ASK, {GRANT: a_grant().to_record(), "arrays": arrays}),
        (ASK, {GRANT: question}),
        (ASK, {QUESTION_GRANT: a_grant().to_record()}),
        (ASK, {QUESTION_GRANT: arrays}),
        (ASK, {}),
    ]:
        assert code(send(kind, RecordDict(content), node, task=TABLED)) is RefusalCode.GRANT_INVALID, content
        assert spent(node) == 0


def test_a_receipt_says_whose_it_is_by_the_client_s_own_key_whatever_name_the_server_gives(node):
    reply = ask(node, COUNT, client_id="another client")
    receipt = Receipt.from_record(reply.content[RECEIPT])
    assert receipt.client_id == "another client"
    pem = signing.client_public_key(signing.client_key(Path(node["key"])))
    assert signing.signed_by_client(pem, signing.RECEIPT, receipt.signed_bytes(), receipt.signature)


def test_less_noise_than_the_data_owner_wants_is_refused_whatever_the_shares(node):
    node["least-noise-multiplier"] = 2.5
    assert code(ask(node, COUNT, AGE, shares=(1.0, 1e-6), noise_multiplier=2.4999)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0
    assert RECEIPT in ask(node, COUNT, AGE, shares=(1.0, 1e-6), noise_multiplier=2.5).content


def test_a_task_whose_number_of_records_is_private_answers_for_its_own_neighbours_alone(node):
    task = PrivatelyTabled()
    assert code(ask(node, COUNT, task=task)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0
    assert RECEIPT in ask(node, COUNT, task=task, relation=NeighbouringRelation.ADD_OR_REMOVE_ONE).content


def test_a_task_without_a_table_is_asked_for_nothing(node):
    """The code is that of what is not allowed, so the server takes its own charge back."""
    assert code(ask(node, COUNT, task=Blobs())) is RefusalCode.QUESTION_NOT_ALLOWED
    assert RefusalCode.QUESTION_NOT_ALLOWED.before_any_record
    assert spent(node) == 0


# What a server sends: the questions


def raw(*questions, shares=None):
    """The text of questions that nobody checked, each a dictionary or a text."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in questions]
    return json.dumps([[text, share] for text, share in zip(texts, shares or [1.0] * len(texts), strict=True)])


def question(kind="count", **fields):
    return {"kind": kind, "where": [], "by": None} | fields


def within(**changed):
    return {"column": "age", "least": 0.0, "below": 1.0} | changed


def one_of(**changed):
    return {"column": "ward", "levels": ["a"]} | changed


BOUNDS = {"column": "age", "low": 0.0, "high": 1.0}
HISTOGRAM = question("histogram", **BOUNDS, intervals=4096)
HOSTILE_QUESTIONS = {
    "deep in a question": raw("[" * 400_000),
    "a number of a million digits": raw('{"kind":"histogram","low":' + "9" * 900_000 + "}"),
    "a share of the whole noise": raw(question(), question(), shares=[1e300, 1e-300]),
    "a kind that is an attribute": raw(question("__class__")),
    "a field named like an attribute": raw(question(__post_init__=1)),
    "a column that begins a line": raw(question("mean", of=[BOUNDS | {"column": "age\nERROR all is well"}])),
    "bounds the wrong way round": raw(question("mean", of=[BOUNDS | {"low": 2.0}])),
    "a histogram without end": raw(HISTOGRAM | {"intervals": 2**40}),
    "a number twice": raw(question("categories", column="ward", levels=[1, "1.0"])),
    "wide totals": raw(*[HISTOGRAM] * 256, question()),
    "conditions without end": raw(question(where=[within()] * 65)),
    "a group of bounds": raw(question(by=within())),
}
"""One of each sort; `tests/questions` has all of them."""


def test_questions_that_cannot_be_asked_are_refused_before_anything_is_charged(node):
    for name, questions in HOSTILE_QUESTIONS.items():
        assert refused(node, signed_question(COUNT, questions=questions)), name


def test_a_column_that_is_not_in_the_table_is_refused_whatever_it_is_called(node):
    for column in ("__class__", "_numbers", "age ", "AGE", "*"):
        for asked in (fp.ask.mean(column, 0, 1), fp.ask.count(where={column: "a"}), fp.ask.count(by={column: ["a"]})):
            assert refused(node, signed_question(asked), RefusalCode.QUESTION_NOT_ALLOWED)


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        ({"questions": ""}, COUNT),
        ({"questions": "count"}, AGE),
        ({"questions": "mean"}, fp.ask.sum("age", 0, 100)),
        ({"questions": None}, COUNT),
        ({"question-columns": ""}, AGE),
        ({"question-columns": None}, AGE),
        ({"question-columns": "ward"}, AGE),
        ({"question-columns": "age"}, fp.ask.mean("age", 0, 100, where={"ward": "a"})),
        ({"question-columns": "age"}, fp.ask.mean("age", 0, 100, by={"ward": ["a"]})),
        ({"question-columns": "ward"}, fp.ask.count(where={"age": (0, 40)})),
        ({"question-columns": "age"}, fp.ask.covariance({"age": (0, 100), "ward": (0, 1)})),
    ],
)
def test_what_the_list_does_not_name_is_refused_wherever_it_stands(node, allowed, asked):
    """A data owner who sets no list allows nothing."""
    node = {name: value for name, value in (node | allowed).items() if value is not None}
    for questions in ([asked], [COUNT, asked]):
        assert refused(node, signed_question(*questions), RefusalCode.QUESTION_NOT_ALLOWED)


def test_a_list_that_became_shorter_holds_for_what_was_answered_before_it_did(node):
    assert RECEIPT in ask(node, AGE).content
    assert code(ask(node | {"question-columns": "ward"}, AGE)) is RefusalCode.QUESTION_NOT_ALLOWED


LEVELS = [f"{n}" for n in range(10_000)]
WIDER = {
    "wide quantiles by many groups": [fp.ask.median("age", 0, 100, points=104, by={"ward": LEVELS})],
    "as many questions as there may be": [fp.ask.histogram("age", 0, 100 + n, 4096) for n in range(256)],
    "as many conditions as there may be": [
        Count(where=tuple(OneOf("ward", (f"{n}", f"{m}")) for n in range(64))) for m in range(64, 80)
    ],
    "covariances of many columns": [fp.ask.covariance({f"c{n}": (0, 1) for n in range(256)})],
}
WIDE = WIDER | {"categories by many groups": [fp.ask.categories("age", LEVELS[:99], by={"ward": LEVELS})]}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WIDE)
def test_the_widest_questions_take_seconds_and_little_memory(node, name):
    """The table has a thousand records; more of them cost what reading costs, and not a turn of each for each group."""
    rng = np.random.default_rng(0)
    columns = {"age": rng.uniform(0, 100, 1000), "ward": [f"{n}" for n in rng.integers(0, 10_000, 1000)]}
    columns |= {f"c{n}": rng.uniform(0, 1, 1000) for n in range(256)}
    start = time.process_time()
    reply = ask(node, *WIDE[name], task=Tabled(**columns))
    assert time.process_time() - start < 60.0
    assert RECEIPT in reply.content and spent(node) == 1


@pytest.mark.exhaustive
def test_as_many_totals_as_there_may_be_fit_into_little_memory():
    asked, mechanism = WIDE["wide quantiles by many groups"], GaussianAnswers(PoissonSampledGaussian(1.0, 4.0))
    tracemalloc.start()
    mechanism.release(Questionnaire(tuple(asked)), TABLED.table(None), Keystream.secret(), Position(1, 1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6


def test_a_history_only_ever_raises_the_client_s_own_book_and_counts_as_questions(node):
    node |= {"epsilon": 30.0, "question-epsilon": 20.0}
    event, training = a_question(COUNT).event, a_grant().event
    assert RECEIPT in ask(node, COUNT, charged=history_text({event: 4})).content
    assert guard(node).history() == {event: 4}
    assert RECEIPT in ask(node, COUNT, round=2, charged=history_text({event: 1, training: 3})).content
    assert guard(node).history() == {event: 5, training: 3}
    much = history_text({event: 2**31 - 1})
    assert code(ask(node, COUNT, round=3, charged=much)) is RefusalCode.BUDGET_EXHAUSTED
    assert code(ask(node, COUNT, round=4)) is RefusalCode.BUDGET_EXHAUSTED
    assert guard(node).history()[event] == 2**31 - 2  # without the grant, which was refused


def test_a_server_that_counts_more_questions_stops_questions_and_no_training(node):
    node |= {"epsilon": 6.0, "question-epsilon": 0.5}
    quiet = {"noise_multiplier": 20.0}
    more = history_text({a_question(COUNT, **quiet).event: 30})
    assert code(ask(node, COUNT, **quiet, charged=more)) is RefusalCode.QUESTIONS_EXHAUSTED
    assert code(ask(node, COUNT, **quiet, round=2)) is RefusalCode.QUESTIONS_EXHAUSTED
    assert RECEIPT in train(node, task=TABLED, steps=1).content


def test_what_a_server_asks_cannot_forge_a_line_in_the_client_s_log(node, caplog):
    line = "forged\nERROR all is well \x1b[2J"
    texts = [
        raw(question(line)),
        raw(question(**{line: 1})),
        raw(question("mean", of=[BOUNDS | {"column": line}])),
        raw(question("mean", of=[BOUNDS | {"column": line, "high": -1.0}])),
        raw(question("categories", column=line, levels=["a"])),
        raw(question("categories", column="ward", levels=[line, "nan"])),
        raw(question("categories", column=line, levels=[None])),
        raw(question(where=[within(column=line)])),
        raw(question(where=[within(column=line, below=-1.0)])),
        raw(question(by=one_of(column=line))),
        raw(question("mean", of=[BOUNDS | {"column": line.replace("\n", "\u2028")}])),
        line,
        f"[[{json.dumps(line)}, 1.0]]",
    ]
    with caplog.at_level(logging.INFO, "fedprivacy.client"):
        for text in texts:
            told(node, signed_question(COUNT, questions=text))
            told(node | {"questions": ""}, signed_question(COUNT, questions=text))
        for name in FIELDS:
            told(node, ConfigRecord({**signed_question(COUNT), name: line}))
    assert len(caplog.records) >= 2 * len(texts)
    assert line not in caplog.text and "\x1b" not in caplog.text and "\u2028" not in caplog.text
    assert spent(node) == 0


def test_in_a_simulation_the_same_is_refused(monkeypatch):
    monkeypatch.setattr(GaussianAnswers, "release", lambda *_, **__: pytest.fail("it was answered"))
    client = Client(TABLED)
    outside = [{"steps": 2}, {"sampling_rate": 0.5}, {"run_id": "run"}, {"relation": "add-or-remove-one"}]
    for changed in (*outside, {"questions": HOSTILE_QUESTIONS["wide totals"]}):
        reply = client.send(ASK, RecordDict({QUESTION_GRANT: signed_question(COUNT, **changed)}))
        assert code(reply) is RefusalCode.GRANT_INVALID
