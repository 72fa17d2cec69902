"""Questions of a hostile server, sent to the real ClientApp of a deployed client.

What is out of bounds, or not allowed, is refused with a constant code before anything is charged; what is answered was
charged, and nothing beside noisy totals depends on a record.
"""

import dataclasses
import json
import logging
import time
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType, RecordDict

import fedprivacy as fp
from fedprivacy._support import signing
from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.flower.server.ask_clients import ask_clients
from fedprivacy.flower.wire.messages import (
    ASK,
    GRANT,
    QUESTION_GRANT,
    RECEIPT,
    QuestionGrant,
    Receipt,
    RefusalCode,
)
from fedprivacy.flower.wire.payloads import history_text
from fedprivacy.guard import Guard, LogError
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers
from fedprivacy.runs.plans.plan import QuestionPlan
from tests.flower.asked import (
    ANSWERS_ALL,
    SERVER,
    STRANGER,
    TABLED,
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
)
from tests.flower.blobs import Blobs
from tests.flower.deployment import DeployedGrid
from tests.privacy.asking import Client
from tests.privacy.fields import OF_QUESTIONS

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


def test_less_noise_than_the_data_owner_wants_is_refused_whatever_the_shares(node):
    node["least-noise-multiplier"] = 2.5
    assert code(ask(node, COUNT, AGE, shares=(1.0, 1e-6), noise_multiplier=2.4999)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0
    assert RECEIPT in ask(node, COUNT, AGE, shares=(1.0, 1e-6), noise_multiplier=2.5).content


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


BOUNDS = {"column": "age", "low": 0.0, "high": 1.0}
HISTOGRAM = question("histogram", **BOUNDS, intervals=4096)
WIDE_TOTALS = raw(*[HISTOGRAM] * 256, question())
HOSTILE_QUESTIONS = [
    raw("[" * 400_000),
    raw(question(), question(), shares=[1e300, 1e-300]),
    raw(question("__class__")),
    raw(question("mean", of=[BOUNDS | {"low": 2.0}])),
    raw(HISTOGRAM | {"intervals": 2**40}),
    WIDE_TOTALS,
]
"""One of each sort; `tests/questions` has all of them."""


def test_questions_that_cannot_be_asked_are_refused_before_anything_is_charged(node):
    for questions in HOSTILE_QUESTIONS:
        assert refused(node, signed_question(COUNT, questions=questions)), questions[:99]


def test_a_column_that_is_not_in_the_table_is_refused_whatever_it_is_called(node):
    for column in ("__class__", "_numbers", "age ", "AGE", "*"):
        for asked in (fp.ask.mean(column, 0, 1), fp.ask.count(where={column: "a"}), fp.ask.count(by={column: ["a"]})):
            assert refused(node, signed_question(asked), RefusalCode.QUESTION_NOT_ALLOWED)


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        ({"questions": "count"}, AGE),
        ({"questions": None}, COUNT),
        ({"question-columns": None}, AGE),
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


LEVELS = [f"{n}" for n in range(10_000)]
WIDE = {
    "wide quantiles by many groups": [fp.ask.median("age", 0, 100, points=104, by={"ward": LEVELS})],
    "covariances of many columns": [fp.ask.covariance({f"c{n}": (0, 1) for n in range(256)})],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WIDE)
def test_the_widest_questions_take_seconds(node, name):
    """The table has a thousand records; more of them cost what reading costs, and not a turn of each for each group."""
    rng = np.random.default_rng(0)
    columns = {"age": rng.uniform(0, 100, 1000), "ward": [f"{n}" for n in rng.integers(0, 10_000, 1000)]}
    columns |= {f"c{n}": rng.uniform(0, 1, 1000) for n in range(256)}
    start = time.process_time()
    reply = ask(node, *WIDE[name], task=Tabled(**columns))
    assert time.process_time() - start < 60.0
    assert RECEIPT in reply.content and spent(node) == 1


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


def test_what_a_server_asks_cannot_forge_a_line_in_the_client_s_log(node, caplog):
    line = "forged\nERROR all is well \x1b[2J"
    within = {"column": line, "least": 0.0, "below": 1.0}
    texts = [
        raw(question(line)),
        raw(question(**{line: 1})),
        raw(question("mean", of=[BOUNDS | {"column": line}])),
        raw(question("mean", of=[BOUNDS | {"column": line.replace("\n", "\u2028"), "high": -1.0}])),
        raw(question("categories", column="ward", levels=[line, "nan"])),
        raw(question(where=[within])),
        raw(question(by={"column": line, "levels": ["a"]})),
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
    for changed in (*outside, {"questions": WIDE_TOTALS}):
        reply = client.send(ASK, RecordDict({QUESTION_GRANT: signed_question(COUNT, **changed)}))
        assert code(reply) is RefusalCode.GRANT_INVALID


# What was asked before: one charge buys one answer


def content(reply):
    """Every byte that crossed."""
    arrays = {n: (array.dtype, array.shape, array.data) for n, array in reply.content["arrays"].items()}
    return arrays, dict(reply.content[RECEIPT]), list(reply.content)


ALTERED = [
    ([AGE], {}),
    ([fp.ask.count(where={"ward": "a"})], {}),
    ([COUNT, COUNT], {}),
    ([fp.ask.count(by={"ward": ["b"]})], {}),
    ([COUNT], {"shares": (2.0,)}),
    ([COUNT], {"noise_multiplier": 5.0}),
    ([COUNT], {"client_id": "another"}),
]


def test_another_grant_for_an_attempt_that_was_answered_is_refused(node, monkeypatch):
    """Otherwise a server could take the answer to one question for that to another, and store it so.

    The same grant again is answered with the same bytes, whatever the server's ledger holds by now.
    """
    first = ask(node, COUNT)
    monkeypatch.setattr(GaussianAnswers, "release", lambda *_: pytest.fail("it was answered again"))
    for questions, changed in ALTERED:
        assert code(ask(node, *questions, **changed)) is RefusalCode.GRANT_INVALID
    more = history_text({a_question(COUNT).event: 5})
    for changed in ({}, {"charged": more, "earlier_runs": 7}):
        assert content(ask(node, COUNT, **changed)) == content(first)
    assert spent(node) == 1


def test_an_answer_that_cannot_be_kept_does_not_leave(node, monkeypatch):
    def full(*_):
        raise LogError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(Guard, "seal", full)
        assert code(ask(node, COUNT)) is RefusalCode.CLIENT_FAILED
    assert code(ask(node, COUNT)) is RefusalCode.ALREADY_CHARGED
    assert spent(node) == 1


def test_the_charge_is_on_the_disk_before_a_record_is_counted(node, monkeypatch):
    counted = []
    monkeypatch.setattr(GaussianAnswers, "release", lambda *_: counted.append(spent(node)) or 1 / 0)
    ask(node, COUNT)
    assert counted == [1]


class Forgetful(DeployedGrid):
    """Clients that sign for other questions than they were asked."""

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if QUESTION_GRANT in message.content:
                grant = QuestionGrant.of(message)
                other = replace(grant, questions=a_question(fp.ask.count(where={"ward": "a"})).questions, signature="")
                message.content[QUESTION_GRANT] = other.sign(server_key(self.folder / "server.key")).to_record()
        return super().push_messages(messages)


def test_a_server_takes_no_answer_to_another_question(tmp_path):
    settings = {"clients": 2, "epsilon": 9.0, "noise-multiplier": 4.0, "delta": 1e-3}
    kept = {"ledger": str(tmp_path / "ledger.db"), "signing-key": str(tmp_path / "server.key")}
    plan = QuestionPlan.of(settings | kept, TABLED)
    grid = Forgetful(plan, tmp_path)
    for name in grid.names.values():
        grid.node(name).update(ANSWERS_ALL)
    done = ask_clients(grid, plan, Questionnaire((COUNT,)))
    assert set(done.failures.values()) == {"receipt-of-another-update"}
    assert not done.told and done.spent["hospital-0"].steps == 1
