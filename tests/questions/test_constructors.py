"""Questions as people write them in Python: what they cannot mean is said, and nothing else is raised."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.counts import Categories
from fedprivacy.questions.figures import Estimate, Noisy
from fedprivacy.questions.moments import Bounded, Spread
from fedprivacy.questions.questionnaire import Questionnaire, read_question
from fedprivacy.questions.release import GaussianAnswers, deviation
from fedprivacy.values.events import PoissonSampledGaussian
from tests.questions.kinds import all_questions, table_of

ARGUMENTS = {
    Questions.count: (),
    Questions.rows: (3,),
    Questions.categories: ("a", ["x"]),
    Questions.heavy_hitters: ("a", ["x"], 3),
    Questions.histogram: ("a", 0, 1, 4),
    Questions.sum: ("a", 0, 1),
    Questions.mean: ("a", 0, 1),
    Questions.variance: ("a", 0, 1),
    Questions.mean_and_scale: ({"a": (0, 1)},),
    Questions.covariance: ({"a": (0, 1)},),
    Questions.quantiles: ("a", 0, 1, (0.5,), 8),
    Questions.median: ("a", 0, 1, 8),
    Questions.table_one: ({"a": (0, 1)},),
}
# fmt: off
ANYTHING = [
    None, True, 0, -1, 7, 0.0, 0.5, math.nan, math.inf, 10**5000, -(10**5000), 1e308, 5e-324, "", "b", " ", "\ud800",
    "x" * 300, "a\nb", "\u00fc 😀", '"\\', b"x", [], {}, (), [[]], object, {"a": 1}, {"a": (0, 1)}, {"a": ["x"]},
    {"a": "x"}, ("a", "b"), {1, 2}, range(3), [0.1, "x", 3], (0.5, 2), np.float32(0.25), np.array([0.5, 0.7]),
]
# fmt: on


def test_no_constructor_is_left_out():
    assert {make.__name__ for make in ARGUMENTS} == {name for name in vars(Questions) if not name.startswith("_")}


@pytest.mark.parametrize("make", ARGUMENTS, ids=lambda make: make.__name__)
def test_whatever_is_given_makes_a_question_that_comes_back_from_its_text_or_a_question_error(make):
    """Anything takes the place of each argument, and of the conditions and groups."""
    for place, anything in ((place, anything) for place in range(len(ARGUMENTS[make]) + 2) for anything in ANYTHING):
        arguments = [*ARGUMENTS[make], {"b": "x"}, {"c": ["x"]}]
        arguments[place] = anything
        *arguments, where, by = arguments
        try:
            made = make(*arguments, where=where, by=by)
        except QuestionError as error:
            assert len(str(error)) < 1000 and str(error).encode()
            continue
        for question in made if isinstance(made, tuple) else (made,):
            assert question.width > 0 and question.squared_sensitivity > 0 and question.words
            text = question.as_text()
            assert text.isascii() and read_question(text) == question and hash(read_question(text)) == hash(question)
            asked = Questionnaire((question, question), (1, 2.5))
            assert Questionnaire.from_text(asked.as_text()) == asked


NUMBERS = st.floats() | st.integers() | st.none() | st.text(max_size=3) | st.booleans()


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, st.text(max_size=2), st.sampled_from("ab")), max_size=12),
    st.floats(0.01, 100.0),
    st.integers(0, 1000),
)
def test_answers_about_any_records_are_finite_or_none_and_within_their_intervals(records, sigma, seed):
    """Empty tables, one record, NaN, infinities, numbers of any size, text in a number's column."""
    asked = Questionnaire(tuple(all_questions(by={"ward": ["a", "b"]})))
    mechanism = GaussianAnswers(PoissonSampledGaussian(1.0, sigma), 3.0)
    answers = mechanism.release(asked, table_of(records), Keystream.from_seed(seed, "c"), Position(1, 1))
    sigmas = asked.noise_multipliers(sigma)
    for question, each, answer in zip(asked.questions, sigmas, answers, strict=True):
        for row in answer.totals:
            check(question.figures(Noisy(row.astype(float), deviation(question, each))))


def check(figures):
    for figure in figures:
        assert isinstance(figure, Estimate) and figure.name
        numbers = figure[1:5]
        assert all(number is None for number in numbers) or all(map(math.isfinite, numbers))
        if figure.value is not None:
            assert figure.low <= figure.value <= figure.high and figure.error >= 0.0


def test_table_one_asks_for_each_variable_by_its_kind_and_shares_clauses():
    made = Questions.table_one({"age": (0, 120), "sex": ["f"]}, where={"ward": "a"}, by={"arm": ["x", "y"]})
    assert [type(question) for question in made] == [Spread, Categories]
    assert made[0].of == (Bounded("age", 0.0, 120.0),) and made[1].levels == ("f",)
    assert all(question.where[0].column == "ward" and question.by.levels == ("x", "y") for question in made)
    for variables in ({}, None, ["age"], {"age": 5}, {"age": (0, 1, 2)}, {"sex": "fm"}, {"sex": []}):
        with pytest.raises(QuestionError):
            Questions.table_one(variables)
