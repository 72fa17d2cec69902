"""Questions of a hostile server, sent to the real ClientApp of a deployed client.

What is out of bounds, or not allowed, is refused with a constant code before anything is charged; what is answered was
charged, and nothing beside noisy totals depends on a record.
"""

import dataclasses
import json
import logging
import math
import time
import tracemalloc

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprivacy as fp
from fedprivacy._support import signing
from fedprivacy._support.signing import server_public_key
from fedprivacy.deploy.keys import write_client_key
from fedprivacy.flower.wire.histories import history_text
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
from fedprivacy.questions.codec import KINDS, as_text
from fedprivacy.questions.cohort import OneOf
from fedprivacy.questions.counts import Count
from fedprivacy.questions.errors import QuestionError
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers, deviation
from fedprivacy.tasks.columns import Table
from fedprivacy.training.keystream import Keystream, Position
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
    node_of,
    send,
    signed_question,
    spent,
    train,
)
from tests.flower.blobs import Blobs
from tests.privacy.asking import Client

AGE, COUNT = fp.ask.mean("age", 0, 100), fp.ask.count()
ONE = as_text(COUNT)
FIELDS = [field.name for field in dataclasses.fields(QuestionGrant)]


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return write_client_key(tmp_path_factory.mktemp("keys"), "hospital").private_key


@pytest.fixture
def node(tmp_path, key, identity):
    """A client whose budget stops nothing, and that answers whatever is asked."""
    return node_of(tmp_path, key) | {"epsilon": 1e6} | ANSWERS_ALL


def told(node, record, *, task=TABLED, kind=ASK, **more):
    return send(kind, RecordDict({QUESTION_GRANT: record, **more}), node, task=task)


def refused(node, record, expected=RefusalCode.GRANT_INVALID) -> bool:
    """Whether the client says so and nothing else, and has charged nothing."""
    return code(told(node, record)) is expected and spent(node) == 0


def answers(reply):
    """The totals of each question, as they crossed; the client sent them and its receipt, and nothing besides."""
    assert list(reply.content) == ["arrays", RECEIPT], reply.content
    return [array.numpy() for array in reply.content["arrays"].values()]


# What a server sends: the grant

NOT_NUMBERS = [math.nan, math.inf, -math.inf]
OUT_OF_BOUNDS = {
    "run_id": ["", "run", "Questions-1", " questions-1", "questions-" + "x" * 119, "questions-\n", "questions-\x1b[2J"],
    "client_id": ["x" * 1025],
    "round": [0, -1, 2**63],
    "attempt": [0, -1, 2**63],
    "steps": [0, 2, -1, 2**62],
    "sampling_rate": [0.0, 0.5, 0.999999, 1.0000001, *NOT_NUMBERS],
    "noise_multiplier": [0.0, -1.0, 0.2999, 1.0001e4, 1e300, *NOT_NUMBERS],
    "relation": ["add-or-remove-one", "replace-one", "zero-out ", ""],
    "clipping_norm": [0.0, 0.5, 2.0, -1.0, *NOT_NUMBERS],
    "questions": ["", "x", "[]", "{}", "null", "[[]]", "[" * 100_000, " " * 1_000_001, "count"],
    "earlier_runs": [-1],
    "charged": ["x", "{}", "[[]]", '[[0.5, 2.0, "zero-out", -1]]', '[[1.0, NaN, "zero-out", 1]]', " " * 4_000_001],
    "server_key": ["", "zz", "ab" * 32, server_public_key(STRANGER)],
    "signature": ["", "zz", "ab" * 64],
}
"""For each field of a grant for questions, values that a client must refuse, though its server has signed them."""


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_out_of_bounds_is_refused_before_anything_is_charged_though_the_server_signed_it(node, name):
    for value in OUT_OF_BOUNDS[name]:
        record = signed_question(COUNT, **({name: value} if name != "signature" else {}))
        assert refused(node, ConfigRecord({**record, name: value})), value


@pytest.mark.parametrize("name", [*FIELDS, "version"])
def test_a_value_of_another_type_is_refused_before_anything_is_charged(node, name):
    own = type(signed_question(COUNT)[name])
    for value in ("1", 1, 1.0, True, b"1", [1], [1.0], ["1"], [True], [b"1"], []):
        if type(value) is not own:
            assert refused(node, ConfigRecord({**signed_question(COUNT), name: value})), value


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1, -1, 2**40])
def test_another_version_is_refused(node, version):
    assert refused(node, signed_question(COUNT, version=version))


@pytest.mark.parametrize("name", [*FIELDS, "version"])
def test_a_grant_that_lacks_a_field_or_has_one_too_many_is_refused(node, name):
    fields = {**signed_question(COUNT)}
    assert refused(node, ConfigRecord({key: value for key, value in fields.items() if key != name}))
    assert refused(node, ConfigRecord({**fields, f"{name} ": fields[name]}))


def test_what_is_in_bounds_is_answered_and_charged_once(node):
    """Else everything above could be refused for another reason."""
    extremes = [
        {"run_id": "questions-" + "x" * 118, "client_id": "x" * 1024},
        {"round": 2**63 - 1, "attempt": 2**63 - 1, "earlier_runs": 2**63 - 1},
        {"noise_multiplier": 0.3, "run_id": "questions-"},
        {"noise_multiplier": 1e4, "round": 2},
    ]
    for number, changed in enumerate(extremes, start=1):
        grant = a_question(COUNT, AGE, **changed)
        reply = told(node, grant.to_record())
        assert [array.shape for array in answers(reply)] == [(1, 2), (1, 3)]
        assert Receipt.from_record(reply.content[RECEIPT]).matches(grant)
        assert spent(node) == number


@pytest.mark.parametrize("purpose", [signing.GRANT, signing.ENROLMENT, signing.RECEIPT, signing.LEDGER_HEAD])
def test_a_signature_that_was_made_for_something_else_is_none(node, purpose):
    assert refused(node, signed_question(COUNT, purpose=purpose))


def test_a_grant_of_another_server_s_key_is_refused(node):
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


def test_a_receipt_says_whose_it_is_by_the_client_s_own_key_whatever_name_the_server_gives(node, key):
    reply = ask(node, COUNT, client_id="another client")
    receipt = Receipt.from_record(reply.content[RECEIPT])
    assert receipt.client_id == "another client"
    pem = signing.client_public_key(signing.client_key(key))
    assert signing.signed_by_client(pem, signing.RECEIPT, receipt.signed_bytes(), receipt.signature)


def test_less_noise_than_the_data_owner_wants_is_refused_whatever_the_shares(node):
    node["least-noise-multiplier"] = 2.5
    assert code(ask(node, COUNT, AGE, shares=(1.0, 1e-6), noise_multiplier=2.4999)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0
    assert RECEIPT in ask(node, COUNT, AGE, shares=(1.0, 1e-6), noise_multiplier=2.5).content


def test_a_seed_is_refused(node):
    assert code(ask(node, COUNT, seed=1)) is RefusalCode.SEED_IN_DEPLOYMENT
    assert spent(node) == 0


def test_a_task_whose_number_of_records_is_private_answers_for_its_own_neighbours_alone(node):
    task = PrivatelyTabled()
    assert code(ask(node, COUNT, task=task)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0
    assert RECEIPT in ask(node, COUNT, task=task, relation=NeighbouringRelation.ADD_OR_REMOVE_ONE).content


def test_a_task_without_a_table_is_asked_for_nothing(node):
    """With the code of what is not allowed: the server takes its own charge back."""
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
HOSTILE_QUESTIONS = {
    "no list": '{"a": 1}',
    "pairs of three": f"[[{json.dumps(ONE)}, 1.0, 1.0]]",
    "a question that is no text": "[[1, 1.0]]",
    "a question that is a list": f"[[[{json.dumps(ONE)}], 1.0]]",
    "deep": "[" * 900_000,
    "deep in a question": raw("[" * 400_000),
    "deep in a field": raw('{"kind":"count","by":null,"where":' + "[" * 300_000),
    "a number of a million digits": raw('{"kind":"histogram","low":' + "9" * 900_000 + "}"),
    "too many questions": raw(*[ONE] * 257),
    "no question": "[]",
    "shares that are none": raw(ONE, shares=["1"]),
    "a share of nothing": raw(ONE, shares=[0.0]),
    "a negative share": raw(ONE, ONE, shares=[1.0, -1.0]),
    "a share that is not a number": raw(ONE, shares=[math.nan]),
    "an infinite share": raw(ONE, ONE, shares=[1.0, math.inf]),
    "a share of the whole noise": raw(ONE, ONE, shares=[1e300, 1e-300]),
    "a kind that is none": raw(question("os:getpid")),
    "a kind that is no text": raw(question(7)),
    "a kind that is an attribute": raw(question("__class__")),
    "no kind": raw({"where": [], "by": None}),
    "a field too many": raw(question(squared_sensitivity=0)),
    "a field named like an attribute": raw(question(__post_init__=1)),
    "a field that is missing": raw({"kind": "count", "where": []}),
    "a field that is said twice": raw('{"kind":"count","kind":"mean","where":[],"by":null}'),
    "a column that is no text": raw(question("mean", of=[BOUNDS | {"column": 7}])),
    "a column without a name": raw(question("mean", of=[BOUNDS | {"column": " "}])),
    "a column of a thousand characters": raw(question("mean", of=[BOUNDS | {"column": "x" * 1000}])),
    "a column that is half of a character": raw(question("mean", of=[BOUNDS | {"column": "\ud800"}])),
    "a column that begins a line": raw(question("mean", of=[BOUNDS | {"column": "age\nERROR all is well"}])),
    "bounds that are none": raw(question("mean", of=[BOUNDS | {"low": 1.0}])),
    "bounds the wrong way round": raw(question("mean", of=[BOUNDS | {"low": 2.0}])),
    "bounds that are not numbers": raw(question("mean", of=[BOUNDS | {"high": math.nan}])),
    "infinite bounds": raw(question("mean", of=[BOUNDS | {"high": math.inf}])),
    "bounds whose middle is zero": raw(question("mean", of=[BOUNDS | {"high": 5e-324}])),
    "bounds that are truths": raw(question("mean", of=[BOUNDS | {"low": False, "high": True}])),
    "bounds that are texts": raw(question("mean", of=[BOUNDS | {"high": "1"}])),
    "huge bounds": raw(question("mean", of=[BOUNDS | {"high": 10**400}])),
    "a column twice": raw(question("mean", of=[BOUNDS, BOUNDS])),
    "no column": raw(question("mean", of=[])),
    "more columns than there may be": raw(question("mean", of=[BOUNDS | {"column": f"{n}"} for n in range(257)])),
    "a histogram without end": raw(question("histogram", **BOUNDS, intervals=2**40)),
    "a histogram of no interval": raw(question("histogram", **BOUNDS, intervals=0)),
    "a histogram of half an interval": raw(question("histogram", **BOUNDS, intervals=1.5)),
    "quantiles that are none": raw(question("quantiles", **BOUNDS, at=[1.0], points=8)),
    "quantiles without end": raw(question("quantiles", **BOUNDS, at=[n / 101 for n in range(1, 101)], points=8)),
    "quantiles of a million points": raw(question("quantiles", **BOUNDS, at=[0.5], points=2**20)),
    "levels that are lists": raw(question("categories", column="ward", levels=[["a"]])),
    "levels that are none": raw(question("categories", column="ward", levels=[None])),
    "a level that is not a number": raw(question("categories", column="ward", levels=[math.nan])),
    "an empty level": raw(question("categories", column="ward", levels=[" "])),
    "a level twice": raw(question("categories", column="ward", levels=["a", " a "])),
    "a number twice": raw(question("categories", column="ward", levels=["1", "1.0"])),
    "levels by name": raw(question("categories", column="ward", levels={"a": 1})),
    "more levels than there may be": raw(question("categories", column="ward", levels=list(range(10_001)))),
    "more heavy hitters than there may be": raw(question("heavy-hitters", column="ward", levels=["a"], most=10**9)),
    "wide totals": raw(*[question("histogram", **BOUNDS, intervals=4096)] * 256, question()),
    "wide totals by group": raw(
        question("quantiles", **BOUNDS, at=[0.5], points=4096, by=one_of(levels=list(range(257))))
    ),
    "conditions without end": raw(question(where=[within()] * 65)),
    "a condition that is none": raw(question(where=[7])),
    "a condition of nothing": raw(question(where=[{}])),
    "a condition the wrong way round": raw(question(where=[within(below=-1.0)])),
    "a condition that is not a number": raw(question(where=[within(least=math.nan)])),
    "a group that is none": raw(question(by=7)),
    "a group of two columns": raw(question(by=[one_of(), one_of()])),
    "a group of bounds": raw(question(by=within())),
}


@pytest.mark.parametrize("name", HOSTILE_QUESTIONS)
def test_questions_that_cannot_be_asked_are_refused_before_anything_is_charged(node, name):
    start = time.monotonic()
    assert refused(node, signed_question(COUNT, questions=HOSTILE_QUESTIONS[name]))
    assert time.monotonic() - start < 5.0


WORTHLESS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELD = st.one_of(
    WORTHLESS,
    st.sampled_from([[BOUNDS], [within()], one_of(), "age", 0.0, 1.0, 3, ["a"], [0.5], [], None]),
)


def with_any_fields(kind):
    """A question of a kind with all of its fields, of which each may be anything; one of them may be missing."""
    fields = {field.name: FIELD for field in dataclasses.fields(KINDS[kind])}
    return st.fixed_dictionaries({"kind": st.just(kind)}, optional=fields) | st.fixed_dictionaries(
        {"kind": st.just(kind), "where": st.just([]) | FIELD, "by": st.none() | FIELD}
        | {name: FIELD for name in fields if name not in {"where", "by"}}
    )


ANY_QUESTION = st.sampled_from(sorted(KINDS)).flatmap(with_any_fields)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(st.lists(st.tuples(ANY_QUESTION, st.floats() | st.just(1.0)), min_size=1, max_size=3))
def test_a_text_is_questions_or_is_refused_as_none(pairs):
    """And by no other error, which would be another code."""
    try:
        asked = Questionnaire.of_text(json.dumps([[json.dumps(fields), share] for fields, share in pairs]))
    except QuestionError:
        return
    assert Questionnaire.of_text(asked.as_text()) == asked


STRANGE_COLUMNS = ["__class__", "columns", "_numbers", "numbers", "__len__", "totals", "age ", "AGE", "*", "{0}", "%s"]


@pytest.mark.parametrize("column", STRANGE_COLUMNS)
def test_a_column_that_is_not_in_the_table_is_refused_whatever_it_is_called(node, column):
    for asked in (
        fp.ask.mean(column, 0, 1),
        fp.ask.count(where={column: "a"}),
        fp.ask.count(by={column: ["a"]}),
        fp.ask.categories(column, ["a"]),
    ):
        assert refused(node, signed_question(asked), RefusalCode.QUESTION_NOT_ALLOWED)


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        ({"questions": ""}, COUNT),
        ({"questions": "count"}, AGE),
        ({"questions": "mean"}, fp.ask.sum("age", 0, 100)),
        ({"question-columns": ""}, AGE),
        ({"question-columns": "ward"}, AGE),
        ({"question-columns": "age"}, fp.ask.mean("age", 0, 100, where={"ward": "a"})),
        ({"question-columns": "age"}, fp.ask.mean("age", 0, 100, by={"ward": ["a"]})),
        ({"question-columns": "ward"}, fp.ask.count(where={"age": (0, 40)})),
        ({"question-columns": "age"}, fp.ask.covariance({"age": (0, 100), "ward": (0, 1)})),
    ],
)
def test_what_the_list_does_not_name_is_refused_wherever_it_stands(node, allowed, asked):
    hidden = [asked], [COUNT, asked] if "count" in {"questions": "count", **allowed}["questions"] else [asked]
    for questions in hidden:
        record = signed_question(*questions)
        assert refused(node | allowed, record, RefusalCode.QUESTION_NOT_ALLOWED)


def test_a_list_that_became_shorter_holds_for_what_was_answered_before_it_did(node):
    assert RECEIPT in ask(node, AGE).content
    assert code(ask(node | {"question-columns": "ward"}, AGE)) is RefusalCode.QUESTION_NOT_ALLOWED


def test_conditions_that_select_one_person_are_answered_with_as_much_noise_as_any(node):
    """What hides a person is the noise, not a branch on how many were found."""
    for number, where in enumerate(({"age": (30.0, 30.5)}, {"age": (30.0, 30.5), "ward": "b"}), start=1):
        grant = a_question(*[fp.ask.count(where=where)] * 200, round=number, noise_multiplier=0.3)
        one = deviation(COUNT, grant.asked.noise_multipliers(grant.noise_multiplier)[0])
        noise = np.array([row[0, 1] for row in answers(told(node, grant.to_record()))]) / one
        people = 1 if number == 1 else 0
        assert 0.78 < noise.std() < 1.22  # false alarms of less than 1e-4, both
        assert abs(noise.mean() - people * 2**20 / one) < 0.28


LEVELS = [f"{n}" for n in range(10_000)]
WIDE = {
    "a count by as many groups as there may be": [fp.ask.count(by={"ward": LEVELS})],
    "wide quantiles by many groups": [fp.ask.median("age", 0, 100, points=104, by={"ward": LEVELS})],
    "the widest quantiles": [fp.ask.median("age", 0, 100, points=4096, by={"ward": LEVELS[:64]})],
    "categories by many groups": [fp.ask.categories("age", LEVELS[:99], by={"ward": LEVELS})],
    "as many questions as there may be": [fp.ask.histogram("age", 0, 100 + n, 4096) for n in range(256)],
    "as many conditions as there may be": [
        Count(where=tuple(OneOf("ward", (f"{n}", f"{m}")) for n in range(64))) for m in range(64, 80)
    ],
    "covariances of many columns": [fp.ask.covariance({f"c{n}": (0, 1) for n in range(256)})],
}


@pytest.mark.parametrize("name", WIDE)
def test_the_widest_questions_take_seconds_and_little_memory(node, name):
    """On a thousand records; more records cost what reading them costs, and not a turn of each for each group."""
    rng = np.random.default_rng(0)
    columns = {"age": rng.uniform(0, 100, 1000), "ward": [f"{n}" for n in rng.integers(0, 10_000, 1000)]}
    columns |= {f"c{n}": rng.uniform(0, 1, 1000) for n in range(256)}
    task = Tabled(**columns)
    start = time.monotonic()
    reply = ask(node, *WIDE[name], task=task)
    assert time.monotonic() - start < 20.0
    assert RECEIPT in reply.content and spent(node) == 1


def test_as_many_totals_as_there_may_be_fit_into_little_memory():
    table, asked = Table(TABLED.columns), Questionnaire(tuple(WIDE["wide quantiles by many groups"]))
    tracemalloc.start()
    mechanism = GaussianAnswers(PoissonSampledGaussian(1.0, 4.0))
    mechanism.release(asked, table, Keystream.secret(), Position(1, 1))
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


def test_a_history_of_more_events_than_can_be_composed_or_of_other_neighbours_is_refused(node):
    many = ", ".join(f'[1.0, {1.0 + i}, "zero-out", 1]' for i in range(501))
    other = a_question(COUNT, relation=NeighbouringRelation.ADD_OR_REMOVE_ONE).event
    for text in (f"[{many}]", history_text({other: 1})):
        assert code(ask(node, COUNT, charged=text)) in {RefusalCode.GRANT_INVALID, RefusalCode.CLIENT_FAILED}
        assert spent(node) == 0


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


@pytest.mark.parametrize("kind", ["query", "query.asked", "query.ask.more", "train.ask", "evaluate.ask", "ask"])
def test_a_message_of_another_kind_reaches_no_record(node, kind, monkeypatch):
    monkeypatch.setattr(Tabled, "table", lambda *_: pytest.fail("the table was read"))
    monkeypatch.setattr(Blobs, "shard", lambda *_: pytest.fail("the shard was read"))
    with pytest.raises(ValueError, match=r"Invalid message type: |No \w+ function registered with name"):
        told(node, a_question(COUNT).to_record(), kind=kind)


def test_records_and_settings_that_nobody_asked_for_are_not_read(node):
    more = {"config": ConfigRecord({"noise_multiplier": 0.0, "seed": 1, "smallest-cohort": -1.0})}
    more |= {"fedprivacy.receipt": ConfigRecord({"signature": "x"}), "arrays": arrays_of(Blobs())}
    grant = a_question(COUNT)
    reply = told(node, grant.to_record(), **more)
    assert answers(reply) and Receipt.from_record(reply.content[RECEIPT]).matches(grant)
