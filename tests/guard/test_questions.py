"""Questions have a budget of their own within the client's: answers keep the one, answers and training the other."""

import math
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedprivacy.accounting import FILTERS, UNLIMITED, GaussianFilter, gdp, pld
from fedprivacy.guard import (
    BudgetExhaustedError,
    Guard,
    InvalidGrantError,
    QuestionsExhaustedError,
)
from fedprivacy.values.attempt import QUESTIONS, Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.guard.account import BUDGET, EVENT, key, kinds

OWN = PrivacyBudget(1.0, 1e-5)
"""The part of the whole budget, epsilon 3, that is for questions."""

TIGHT = 0.98
"""Share of delta that the default filter keeps for questions."""


def question(noise):
    return PoissonSampledGaussian(1.0, noise, NeighbouringRelation.ZERO_OUT)


def asked(number, run_id="ages"):
    return Attempt(f"{QUESTIONS}{run_id}", number)


def epsilon(history):
    return pld.epsilon(history, BUDGET.delta)


def answers(guard):
    """Charges of runs that ask."""
    history = Counter()
    for charge in guard.charges():
        if charge.attempt.run_id.startswith("questions-"):
            history[charge.event] += charge.steps
    return history


def test_a_run_asks_by_its_name_alone():
    others = ("", "run", "questions", "Questions-1", "my-questions-1", " questions-1")
    assert all(asked(1, name).asks for name in others)
    assert not any(key(run_id=name).asks for name in others)


def test_answers_stop_at_their_own_budget_and_training_goes_on(file, guard):
    noise = GaussianFilter(PrivacyBudget(1.0, TIGHT * 1e-5)).noise_multiplier(1.0, 4, EVENT.relation)
    for number in range(4):
        guard.charge(asked(number), question(noise), 1, of_questions=OWN)
    before = kinds(file)
    with pytest.raises(QuestionsExhaustedError) as refused:
        guard.charge(asked(4, "another run"), question(noise), 1, of_questions=OWN)
    assert isinstance(refused.value, BudgetExhaustedError)
    assert kinds(file) == before
    assert 0.99 < epsilon(answers(guard)) <= 1.0
    guard.charge(key(), EVENT, 2, of_questions=OWN)
    assert guard.history() == {question(noise): 4, EVENT: 2}


def test_the_refusal_names_setting_value_and_remedy(file, guard):
    guard.charge(asked(1), question(9.0), 1, of_questions=OWN)
    with pytest.raises(QuestionsExhaustedError) as refused:
        guard.charge(asked(2), question(9.0), 20, of_questions=OWN)
    left = GaussianFilter(PrivacyBudget(1.0, TIGHT * 1e-5)).quota({question(9.0): 1}, question(9.0))
    told = str(refused.value)
    assert told.startswith(f"question-epsilon is 1.0 at delta 1e-05: with what {file} counts as questions, ")
    assert f"it allows {left} more of {question(9.0)}" in told
    assert "asks for 20. Ask with more noise, or read the answers that were given again" in told
    assert "the data owner's decision alone" in told


def test_a_whole_budget_that_is_spent_is_told_first(guard):
    guard.charge(asked(1), question(5.0), 1, of_questions=OWN)
    with suppress(BudgetExhaustedError):
        for round in range(1000):
            guard.charge(key(round), EVENT, 1)
    with pytest.raises(BudgetExhaustedError, match=r"own budget, epsilon 3\.0") as refused:
        guard.charge(asked(2), question(1.0), 1, of_questions=OWN)
    assert not isinstance(refused.value, QuestionsExhaustedError)


def test_what_training_takes_is_nothing_to_the_questions_and_the_whole_holds_both(guard):
    guard.charge(key(), question(2.0), 1, of_questions=PrivacyBudget(0.01, 1e-5))
    guard.charge(asked(1), question(4.5), 1, of_questions=OWN)
    assert epsilon({question(2.0): 1}) > OWN.epsilon
    with pytest.raises(BudgetExhaustedError):
        guard.charge(asked(2), question(1.5), 1, of_questions=PrivacyBudget(2.9, 1e-5))
    assert epsilon(guard.history()) <= BUDGET.epsilon


def test_questions_that_were_asked_without_a_budget_of_their_own_count_once_there_is_one(file, guard):
    guard.charge(asked(1), question(2.0), 1)
    with pytest.raises(QuestionsExhaustedError, match="allows 0 more"):
        Guard(file, BUDGET).charge(asked(2), question(1e4), 1, of_questions=OWN)


def test_a_question_of_a_sample_is_none(file, guard):
    with pytest.raises(InvalidGrantError, match=r"'questions-ages' asks questions, and the event is .* 0\.05"):
        guard.charge(asked(1), EVENT, 1)
    assert kinds(file) == []


def test_what_a_server_counts_beyond_the_client_is_taken_for_questions_where_it_may_be(file, guard):
    """A ledger tells steps by event, not by run: of Gaussians without sampling nobody knows that they trained."""
    rest = GaussianFilter(PrivacyBudget(1.0, TIGHT * 1e-5)).quota({question(8.0): 3}, question(40.0))
    told = {EVENT: 4, question(8.0): 3}
    guard.charge(asked(1), question(40.0), rest - 1, elsewhere={**told, question(40.0): rest - 1}, of_questions=OWN)
    assert kinds(file) == ["correction", "correction", "charge"]
    with pytest.raises(QuestionsExhaustedError, match="allows 1 more"):
        Guard(file, BUDGET).charge(asked(2), question(40.0), 2, elsewhere=told, of_questions=OWN)
    guard.charge(asked(3), question(40.0), 1, elsewhere=told, of_questions=OWN)
    assert guard.history() == {**told, question(40.0): rest}


def test_a_correction_counts_though_its_question_is_refused_by_it(file, guard):
    for _ in range(2):
        with pytest.raises(QuestionsExhaustedError):
            guard.charge(asked(1), question(9.0), 1, elsewhere={question(3.0): 1}, of_questions=OWN)
    assert kinds(file) == ["correction"]
    with pytest.raises(QuestionsExhaustedError):
        guard.charge(asked(1), question(9.0), 1, of_questions=OWN)
    guard.charge(key(), EVENT, 1, of_questions=OWN)


def test_a_budget_of_questions_without_end_is_none(guard):
    guard.charge(asked(1), question(2.0), 1, of_questions=PrivacyBudget(math.inf, 1e-5))
    assert FILTERS["adaptive"](PrivacyBudget(math.inf, 1e-5)).quota(guard.history(), question(2.0)) == UNLIMITED


class AnalystMachine(RuleBasedStateMachine):
    """An adversary that asks what the last answers suggest, trains in between, and has a server tell of more."""

    trained = st.sampled_from([EVENT, question(30.0), PoissonSampledGaussian(0.3, 4.0, EVENT.relation)])

    @initialize(
        epsilons=st.sampled_from([(0.2, 1.0), (1.0, 3.0), (2.5, 3.0)]),
        filter=st.sampled_from(["", "adaptive", "fixed-then-adaptive"]),
    )
    def begin(self, epsilons, filter):
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "guard.log"
        self.own, self.whole = (PrivacyBudget(epsilon, 1e-5) for epsilon in epsilons)
        self.filter = filter
        self.noise, self.number, self.doubtful = 20.0, 0, Counter()
        self.reopen()

    @rule()
    def reopen(self):
        self.guard = Guard(self.file, self.whole, self.filter)

    @rule(shown=st.floats(-3.0, 3.0), often=st.integers(1, 3), other=st.booleans())
    def ask(self, shown, often, other):
        """A large answer is looked at again, more closely; after a refusal it asks for less."""
        self.number += 1
        try:
            name = asked(self.number, "other" if other else "ages")
            self.guard.charge(name, question(self.noise), often, of_questions=self.own)
            told_of = Counter({event: steps for event, steps in self.doubtful.items() if event.sampling_rate == 1.0})
            assert gdp.epsilon(answers(self.guard) + told_of, 1e-5) <= self.own.epsilon
            answer = 5.0 + self.noise * shown
            self.noise = max(self.noise * (0.5 if answer > 5.0 else 1.3), 0.5)
        except BudgetExhaustedError:
            self.noise = min(2.0 * self.noise, 1e5)

    @rule()
    def ask_for_all_that_is_left(self):
        """It is found by trying."""
        for _ in range(6):
            self.ask(0.0, 1, False)

    @rule(event=trained, steps=st.integers(1, 30))
    def train(self, event, steps):
        self.number += 1
        with suppress(BudgetExhaustedError):
            self.guard.charge(key(self.number), event, steps, of_questions=self.own)

    @rule(event=trained, more=st.integers(1, 5), asks=st.booleans())
    def ask_or_train_for_a_server_that_counts_more(self, event, more, asks):
        self.number += 1
        told = {event: self.guard.history().get(event, 0) + more}
        attempt, tried = (asked(self.number), question(50.0)) if asks else (key(self.number), EVENT)
        told[tried] = told.get(tried, self.guard.history().get(tried, 0)) + 1
        with suppress(BudgetExhaustedError):
            self.guard.charge(attempt, tried, 1, elsewhere=told, of_questions=self.own)
        self.doubtful[event] += more

    @invariant()
    def all_answers_are_within_their_budget(self):
        if hasattr(self, "guard"):
            assert gdp.epsilon(answers(self.guard), 1e-5) <= self.own.epsilon

    def teardown(self):
        if hasattr(self, "folder"):
            charged = Counter()
            for charge in self.guard.charges():
                charged[charge.event] += charge.steps
            assert pld.epsilon(answers(self.guard), 1e-5) <= self.own.epsilon
            assert pld.epsilon(charged, 1e-5) <= self.whole.epsilon
            assert self.guard.history() == charged + self.doubtful
            self.folder.cleanup()


AnalystMachine.TestCase.settings = settings(AnalystMachine.TestCase.settings, stateful_step_count=15)
test_no_analyst_passes_either_budget_whatever_it_asks_next = AnalystMachine.TestCase
