"""An adaptive analyst at the real client: whatever it asks next, neither budget is passed, and nothing leaves unpaid.

It chooses question, noise, shares, run and ledger by what was answered before, trains in between, sends grants again,
makes the client crash, and lies about what its ledgers hold.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from unittest import mock

from flwr.app import MessageType, RecordDict
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fedprivacy as fp
from fedprivacy.accounting import gdp, pld
from fedprivacy.deploy.keys import write_client_key
from fedprivacy.flower import InProcessGrid
from fedprivacy.flower.wire.histories import history_text
from fedprivacy.flower.wire.messages import ASK, QUESTION_GRANT, RECEIPT, REFUSAL, Refusal, RefusalCode
from fedprivacy.guard import Guard
from fedprivacy.questions.release import GaussianAnswers, deviation
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.keystream import Keystream
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.flower.asked import (
    ANSWERS_ALL,
    TABLED,
    a_grant,
    a_question,
    app_of,
    arrays_of,
    grant_message,
    guard,
    node_of,
    send,
)

DELTA = 1e-3
MOST = 9e3
"""Noise that the analyst asks for."""

QUESTIONS = [
    [fp.ask.count()],
    [fp.ask.count(where={"age": (40, 41)})],
    [fp.ask.mean("age", 0, 100), fp.ask.count(by={"ward": ["a", "b"]})],
    [fp.ask.median("age", 0, 100, points=8)],
    list(fp.ask.table_one({"age": (0, 100), "ward": ["a", "b", "c"]})),
]
REFUSED = {
    RefusalCode.BUDGET_EXHAUSTED,
    RefusalCode.QUESTIONS_EXHAUSTED,
    RefusalCode.ALREADY_CHARGED,
    RefusalCode.CLIENT_FAILED,
}


class Crash(Exception):
    """What the analyst provokes, somehow."""


PLACES = {"drawing": (GaussianAnswers, "release"), "training": (DPSGD, "train"), "sealing": (Guard, "seal")}


@contextmanager
def crashing(where):
    """The client fails once it has charged: before it draws its noise, before it trains, or when it seals."""
    with mock.patch.object(*PLACES[where], side_effect=Crash):
        yield


class Analyst(RuleBasedStateMachine):
    """Two ledgers of one server, which know nothing of one another, at one deployed client."""

    ledgers = st.sampled_from(["one", "other"])
    lies = st.sampled_from(["nothing", "its ledger", "less", "much", "another mechanism"])

    @initialize(
        budgets=st.sampled_from([(3.0, 1.0), (3.0, 3.0), (1.0, 0.3), (8.0, 6.0), (3.0, None)]),
        filter=st.sampled_from(["", "", "adaptive"]),
    )
    def begin(self, budgets, filter):
        self.place = tempfile.TemporaryDirectory()
        folder = Path(self.place.name)
        self.epsilon, self.own = budgets[0], budgets[1] or budgets[0]
        self.node = node_of(folder, write_client_key(folder, "hospital").private_key) | ANSWERS_ALL
        self.node |= {"epsilon": self.epsilon, "delta": DELTA, "filter": filter, "smallest-cohort": 10.0}
        self.node |= {"question-epsilon": budgets[1]} if budgets[1] else {}
        self.node = {name: value for name, value in self.node.items() if value != ""}
        keys = (sha256(bytes([number % 256, number // 256])).digest() for number in count())
        self.secrets = mock.patch.object(Keystream, "secret", lambda: Keystream(next(keys)))
        self.secrets.start()  # the same answers whenever the test runs
        InProcessGrid(app_of(TABLED), 1, {})  # sets the identity of the process, which Flower's messages read
        self.held = {"one": Counter(), "other": Counter()}
        self.sent, self.released, self.number, self.noise = [], {}, 0, 8.0

    # What the analyst does

    @rule(which=st.integers(0, len(QUESTIONS) - 1), ledger=ledgers, lie=lies, shares=st.booleans())
    def ask(self, which, ledger, lie, shares):
        """A large answer is looked at again, more closely; after a refusal it asks for less."""
        questions = QUESTIONS[which]
        event = PoissonSampledGaussian(1.0, self.noise, NeighbouringRelation.ZERO_OUT)
        grant = self._question(questions, ledger, lie, event, tuple(range(1, 1 + len(questions))) if shares else ())
        reply = self._send(ASK, RecordDict({QUESTION_GRANT: grant.to_record()}), grant)
        if reply is None:
            self.noise = min(1.7 * self.noise, MOST)
        else:
            answer = float(next(iter(reply.content["arrays"].values())).numpy()[0, 1])
            large = answer > deviation(questions[0], self.noise)
            self.noise = min(max(self.noise * (0.6 if large else 1.2), 0.4), MOST)

    @rule(ledger=ledgers)
    def ask_for_all_that_is_left(self, ledger):
        """It is found by trying."""
        for _ in range(5):
            self.ask(0, ledger, "nothing", False)

    @rule(ledger=ledgers, lie=lies, steps=st.integers(1, 12), rate=st.sampled_from([0.1, 0.5, 1.0]))
    def train(self, ledger, lie, steps, rate):
        self.number += 1
        event = PoissonSampledGaussian(rate, max(self.noise, 1.0), NeighbouringRelation.ZERO_OUT)
        self.held[ledger][event] += steps
        charged = self._told(ledger, lie, event)
        grant = a_grant(
            run_id=ledger,
            round=self.number,
            steps=steps,
            sampling_rate=rate,
            noise_multiplier=event.noise_multiplier,
            charged=charged,
        )
        self._send(MessageType.TRAIN, self._training(grant), grant)

    @rule(which=st.integers(0, 10**6), lie=lies)
    def send_again(self, which, lie):
        """The same grant, maybe with another history: what was answered is answered alike, the rest not at all."""
        if self.sent:
            kind, grant = self.sent[which % len(self.sent)]
            content = RecordDict({QUESTION_GRANT: grant.to_record()}) if kind == ASK else self._training(grant)
            self._send(kind, content, grant)

    @rule(which=st.integers(0, 10**6), question=st.integers(0, len(QUESTIONS) - 1))
    def ask_something_else_for_what_was_paid(self, which, question):
        asked = [grant for kind, grant in self.sent if kind == ASK]
        if asked:
            old = asked[which % len(asked)]
            named = {"run_id": old.run_id, "round": old.round, "noise_multiplier": old.noise_multiplier}
            new = a_question(*QUESTIONS[question], **named)
            reply = send(ASK, RecordDict({QUESTION_GRANT: new.to_record()}), self.node, task=TABLED)
            if new.questions != old.questions:
                assert REFUSAL in reply.content

    @rule(where=st.sampled_from(["drawing", "sealing", "training"]), ledger=ledgers)
    def crash(self, where, ledger):
        """A charge that bought nothing stands, and the same grant buys nothing later."""
        before = self._charged()
        with crashing(where):
            if where == "training":
                self.train(ledger, "nothing", 1, 0.5)
            else:
                self.ask(0, ledger, "nothing", False)
        kind, grant = self.sent[-1]
        assert Attempt(*grant.charged_as) not in self.released
        if self._charged() > before:
            content = RecordDict({QUESTION_GRANT: grant.to_record()}) if kind == ASK else self._training(grant)
            reply = send(kind, content, self.node, task=TABLED)
            assert Refusal.from_record(reply.content[REFUSAL]).code is RefusalCode.ALREADY_CHARGED

    # What must hold

    @invariant()
    def questions_are_within_their_own_budget(self):
        if hasattr(self, "node"):
            asked = Counter()
            for charge in guard(self.node).charges():
                if charge.attempt.asks:
                    asked[charge.event] += charge.steps
            assert gdp.epsilon(asked, DELTA) <= self.own

    def teardown(self):
        if not hasattr(self, "secrets"):
            return
        charged, asked = Counter(), Counter()
        for charge in guard(self.node).charges():
            charged[charge.event] += charge.steps
            if charge.attempt.asks:
                asked[charge.event] += charge.steps
        assert pld.epsilon(charged, DELTA) <= self.epsilon
        assert pld.epsilon(asked, DELTA) <= self.own
        counted = guard(self.node).history()
        assert all(counted[event] >= steps for event, steps in charged.items())
        self.secrets.stop()
        self.place.cleanup()

    # How it does it

    def _question(self, questions, ledger, lie, event, shares):
        self.number += 1
        self.held[ledger][event] += 1
        charged = self._told(ledger, lie, event)
        named = {"run_id": f"questions-{ledger}-{self.number % 3}", "round": self.number}
        return a_question(*questions, shares=shares, noise_multiplier=event.noise_multiplier, charged=charged, **named)

    def _training(self, grant):
        content = grant_message(grant)
        content["arrays"] = arrays_of(TABLED)
        return content

    def _told(self, ledger, lie, event):
        """What the server says that its ledger holds, this grant included."""
        held = self.held[ledger]
        match lie:
            case "nothing":
                return ""
            case "less":
                return history_text({event: 1})
            case "much":
                return history_text({**held, event: held[event] + 2})
            case "another mechanism":
                return history_text({PoissonSampledGaussian(0.3, 40.0, event.relation): 3, event: 1})
        return history_text(held)

    def _charged(self):
        return len(guard(self.node).charges())

    def _send(self, kind, content, grant):
        """The reply, if it is an answer: then it was charged before, and is the only one for that charge."""
        charges = {}

        def noting(release):
            def released(*given, **named):
                charges.update({each.attempt: each for each in guard(self.node).charges()})
                return release(*given, **named)

            return released

        answering = mock.patch.object(GaussianAnswers, "release", noting(GaussianAnswers.release))
        training = mock.patch.object(DPSGD, "train", noting(DPSGD.train))
        with answering, training:
            reply = send(kind, content, self.node, task=TABLED)
        self.sent.append((kind, grant))
        if RECEIPT not in reply.content:
            assert Refusal.from_record(reply.content[REFUSAL]).code in REFUSED
            return None
        bytes_sent = tuple((name, array.data) for name, array in reply.content["arrays"].items())
        attempt = grant.charged_as
        if attempt in self.released:
            assert not charges, "it was computed again"
            assert self.released[attempt] == bytes_sent
        else:
            assert (charges[attempt].event, charges[attempt].steps) == (grant.event, grant.steps)
            self.released[attempt] = bytes_sent
        return reply


Analyst.TestCase.settings = settings(max_examples=12, stateful_step_count=14, deadline=None, derandomize=True)
test_no_analyst_passes_either_budget_or_gets_what_it_did_not_pay_for = Analyst.TestCase
