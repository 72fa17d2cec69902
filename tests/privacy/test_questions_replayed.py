"""A grant for questions, sent again, altered, after a crash and in another order: one charge buys one answer."""

from dataclasses import replace

import pytest

import fedprivacy as fp
from fedprivacy._support.signing import server_key
from fedprivacy.flower.client.release import digest
from fedprivacy.flower.server.ask_clients import ask_clients
from fedprivacy.flower.wire.messages import QUESTION_GRANT, RECEIPT, QuestionGrant, Receipt, RefusalCode
from fedprivacy.flower.wire.payloads import history_text
from fedprivacy.guard import Guard, LogError
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers
from fedprivacy.runs.plans.plan import QuestionPlan
from tests.flower.asked import ANSWERS_ALL, TABLED, a_question, ask, code, spent, train
from tests.flower.deployment import DeployedGrid

COUNT, AGE = fp.ask.count(), fp.ask.mean("age", 0, 100)


@pytest.fixture
def node(node):
    return node | {"epsilon": 1e6} | ANSWERS_ALL


@pytest.fixture
def no_second_time(monkeypatch):
    """A function; once it is called, nothing may be answered anew."""
    return lambda: monkeypatch.setattr(GaussianAnswers, "release", lambda *_: pytest.fail("it was answered again"))


def content(reply):
    """Every byte that crossed."""
    arrays = {
        name: (array.dtype, array.shape, array.stype, array.data) for name, array in reply.content["arrays"].items()
    }
    return arrays, dict(reply.content[RECEIPT]), list(reply.content)


def test_the_same_grant_again_gives_the_same_bytes_and_costs_nothing(node, no_second_time):
    """Also where a server that was stopped sends it with what its ledger holds by now."""
    questions = [COUNT, fp.ask.count(by={"ward": ["a", "b"]}), AGE]
    first = ask(node, *questions)
    no_second_time()
    assert content(ask(node, *questions)) == content(first)
    more = history_text({a_question(COUNT).event: 5})
    assert content(ask(node, *questions, charged=more, earlier_runs=7)) == content(first)
    assert spent(node) == 1


ALTERED = [
    ([AGE], {}),
    ([fp.ask.count(where={"ward": "a"})], {}),
    ([COUNT, COUNT], {}),
    ([fp.ask.count(by={"ward": ["b"]})], {}),
    ([COUNT], {"shares": (2.0,)}),
    ([COUNT], {"noise_multiplier": 0.5}),
    ([COUNT], {"noise_multiplier": 5.0}),
    ([COUNT], {"client_id": "another"}),
]


def test_another_grant_for_an_attempt_that_was_answered_is_refused(node, no_second_time):
    """Otherwise a server could take the answer to one question for that to another, and store it so."""
    first = ask(node, COUNT)
    no_second_time()
    for questions, changed in ALTERED:
        assert code(ask(node, *questions, **changed)) is RefusalCode.GRANT_INVALID
    assert content(ask(node, COUNT)) == content(first)
    assert spent(node) == 1


def test_another_attempt_round_or_run_is_another_charge_and_another_answer(node):
    others = [{}, {"attempt": 2}, {"round": 2}, {"run_id": "questions-2"}]
    found = [content(ask(node, COUNT, AGE, **changed))[0] for changed in others]
    assert all(one != other for place, one in enumerate(found) for other in found[:place])
    assert spent(node) == len(others)


def test_an_answer_that_was_lost_in_a_crash_is_not_drawn_again(node, monkeypatch):
    drawn = []
    release = GaussianAnswers.release
    with monkeypatch.context() as broken:
        broken.setattr(GaussianAnswers, "release", lambda *given: drawn.append(release(*given)) or 1 / 0)
        assert code(ask(node, COUNT)) is RefusalCode.CLIENT_FAILED
    assert len(drawn) == 1
    monkeypatch.setattr(GaussianAnswers, "release", lambda *_: pytest.fail("it was answered again"))
    for questions in ([COUNT], [AGE]):
        assert code(ask(node, *questions)) is RefusalCode.ALREADY_CHARGED
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


def test_an_answer_is_no_update_and_an_update_no_answer(node):
    """They are charged under different names, so that neither can be had in the other's place."""
    assert RECEIPT in train(node, task=TABLED, run_id="1").content
    assert RECEIPT in ask(node, COUNT, run_id="questions-1").content
    assert "weight" in train(node, task=TABLED, run_id="1").content["arrays"]
    assert "answer-0" in ask(node, COUNT, run_id="questions-1").content["arrays"]
    assert spent(node) == 3


def test_a_receipt_is_for_these_answers_to_these_questions(node):
    """So that whoever holds it can prove which question was answered, and the server takes no other answer for it."""
    grant, other = a_question(COUNT), a_question(fp.ask.count(where={"ward": "a"}))
    reply = ask(node, COUNT)
    receipt = Receipt.from_record(reply.content[RECEIPT])
    arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
    assert receipt.update == digest(arrays, grant.questions) != digest(arrays, other.questions)


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
    settings |= {"ledger": str(tmp_path / "ledger.db")}
    plan = QuestionPlan.of(settings | {"signing-key": str(tmp_path / "server.key")}, TABLED)
    grid = Forgetful(plan, tmp_path)
    for context in grid._contexts.values():
        context.node_config.update(ANSWERS_ALL)
    done = ask_clients(grid, plan, Questionnaire((COUNT,)))
    assert set(done.failures.values()) == {"receipt-of-another-update"}
    assert not done.told and done.spent["hospital-0"].steps == 1
