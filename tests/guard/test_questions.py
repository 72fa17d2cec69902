"""Questions have a budget of their own within the client's: answers keep the one, answers and training the other."""

from collections import Counter
from contextlib import suppress

import pytest

from fedprivacy.accounting import GaussianFilter, pld
from fedprivacy.guard import BudgetExhaustedError, Guard, InvalidGrantError, QuestionsExhaustedError
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
    with suppress(BudgetExhaustedError):
        for round in range(2, 1000):
            guard.charge(key(round), EVENT, 1)
    with pytest.raises(BudgetExhaustedError, match=r"own budget, epsilon 3\.0") as refused:
        guard.charge(asked(5), question(1.0), 1, of_questions=OWN)
    assert not isinstance(refused.value, QuestionsExhaustedError)  # a whole budget that is spent is told first


def test_a_question_of_a_sample_is_none(file, guard):
    with pytest.raises(InvalidGrantError, match=r"'questions-ages' asks questions, and the event is .* 0\.05"):
        guard.charge(asked(1), EVENT, 1)
    assert kinds(file) == []


def test_what_a_server_counts_beyond_the_client_is_taken_for_questions_where_it_may_be(file, guard):
    """A ledger tells steps by event, not by run: of Gaussians without sampling nobody knows that they trained."""
    rest = GaussianFilter(PrivacyBudget(1.0, TIGHT * 1e-5)).quota({question(8.0): 3}, question(40.0))
    told = {EVENT: 4, question(8.0): 3}
    with pytest.raises(QuestionsExhaustedError):  # what it tells counts nevertheless
        guard.charge(asked(1), question(40.0), rest + 1, elsewhere=told, of_questions=OWN)
    assert guard.history() == told
    guard.charge(asked(1), question(40.0), rest - 1, elsewhere={**told, question(40.0): rest - 1}, of_questions=OWN)
    assert kinds(file) == ["correction", "correction", "charge"]
    with pytest.raises(QuestionsExhaustedError, match="allows 1 more"):
        Guard(file, BUDGET).charge(asked(2), question(40.0), 2, elsewhere=told, of_questions=OWN)
    with pytest.raises(QuestionsExhaustedError, match="allows 0 more"):  # it counts one more of what was asked here
        guard.charge(asked(3), question(40.0), 1, elsewhere={**told, question(40.0): rest + 1}, of_questions=OWN)
    assert guard.history() == {**told, question(40.0): rest}
