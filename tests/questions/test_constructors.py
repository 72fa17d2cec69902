"""Questions as people write them in Python: what they cannot mean is said, and nothing else is raised."""

import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprivacy as fp
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.counts import Categories
from fedprivacy.questions.errors import QuestionError, shown
from fedprivacy.questions.figures import Figure, Noisy
from fedprivacy.questions.moments import Bounded, Spread
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers, deviation
from fedprivacy.training.keystream import Keystream, Position
from fedprivacy.values.events import PoissonSampledGaussian
from tests.questions.kinds import Odd, all_questions

# fmt: off
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=2),
    st.sampled_from([10**5000, -(10**5000), 1e308, 5e-324, math.nan, math.inf, "\ud800", "x" * 300, [], {}, (), [[]],
                     object, {"a": 1}, {"a": (0, 1)}, {"a": ["x"]}, ("a", "b"), {1, 2}, range(3)]),
    st.lists(st.floats() | st.text(max_size=3) | st.integers(), max_size=3),
    st.tuples(st.floats() | st.integers(), st.floats() | st.integers()),
)
NAMES = st.text(min_size=1, max_size=3)
# fmt: on
ARGUMENTS = {
    Questions.count: 0,
    Questions.categories: 2,
    Questions.heavy_hitters: 3,
    Questions.prefixes: 3,
    Questions.histogram: 4,
    Questions.sum: 3,
    Questions.mean: 3,
    Questions.variance: 3,
    Questions.mean_and_scale: 1,
    Questions.covariance: 1,
    Questions.quantiles: 5,
    Questions.median: 4,
    Questions.table_one: 1,
}


def test_no_constructor_is_left_out():
    assert {make.__name__ for make in ARGUMENTS} == {name for name in vars(Questions) if not name.startswith("_")}


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(list(ARGUMENTS)), st.data())
def test_whatever_is_given_makes_a_question_or_a_question_error(make, data):
    arguments = [data.draw(NAMES | ANYTHING if n == 0 else ANYTHING) for n in range(ARGUMENTS[make])]
    clauses = data.draw(st.fixed_dictionaries({}, optional={"where": ANYTHING, "by": ANYTHING}))
    try:
        made = make(*arguments, **clauses)
    except QuestionError as error:
        assert len(str(error)) < 1000 and str(error).encode()
        return
    for question in made if isinstance(made, tuple) else (made,):
        assert question.width > 0 and question.squared_sensitivity > 0 and question.words and hash(question)


NUMBERS = st.floats() | st.integers() | st.none() | st.text(max_size=3) | st.booleans()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, st.text(max_size=2), st.sampled_from("ab")), max_size=12),
    st.floats(0.01, 100.0),
    st.integers(0, 1000),
)
def test_answers_about_any_records_are_finite_or_none_and_within_their_intervals(records, sigma, seed):
    """Empty tables, one record, NaN, infinities, numbers of any size, text in a number's column."""
    columns = list(zip(*records, strict=True)) or [()] * 4
    table = fp.Table(dict(zip(("x", "y", "s", "ward"), columns, strict=True)))
    asked = Questionnaire(tuple(all_questions(by={"ward": ["a", "b"]})))
    mechanism = GaussianAnswers(PoissonSampledGaussian(1.0, sigma), 3.0)
    answers = mechanism.release(asked, table, Keystream.from_seed(seed, "c"), Position(1, 1))
    sigmas = asked.noise_multipliers(sigma)
    for question, each, answer in zip(asked.questions, sigmas, answers, strict=True):
        for row in answer.totals:
            check(question.figures(Noisy(row.astype(float), deviation(question, each))))


def check(figures):
    for figure in figures:
        assert isinstance(figure, Figure) and figure.name
        numbers = figure[1:5]
        assert all(number is None for number in numbers) or all(map(math.isfinite, numbers))
        if figure.value is not None:
            assert figure.low <= figure.value <= figure.high and figure.error >= 0.0


def test_table_one_asks_for_each_variable_by_its_kind_and_shares_clauses():
    made = fp.ask.table_one({"age": (0, 120), "sex": ["f"]}, where={"ward": "a"}, by={"arm": ["x", "y"]})
    assert [type(question) for question in made] == [Spread, Categories]
    assert made[0].of == (Bounded("age", 0.0, 120.0),) and made[1].levels == ("f",)
    assert all(question.where[0].column == "ward" and question.by.levels == ("x", "y") for question in made)


@pytest.mark.parametrize("variables", [{}, None, ["age"], {"age": 5}, {"age": (0, 1, 2)}, {"sex": "fm"}, {"sex": []}])
def test_a_table_without_variables_is_refused(variables):
    with pytest.raises(QuestionError):
        Questions.table_one(variables)


def test_a_median_is_a_quantile_and_a_variance_a_spread():
    assert Questions.median("a", 0, 1, 64) == Questions.quantiles("a", 0, 1, (0.5,), 64)
    assert Questions.variance("a", 0, 1) == Questions.mean_and_scale({"a": (0, 1)})


def test_questions_can_be_pickled_and_are_not_changed():
    for question in all_questions(where={"ward": ["a"]}, by={"s": ["x"]}):
        assert pickle.loads(pickle.dumps(question)) == question
        with pytest.raises(AttributeError):
            question.where = ()


def test_a_value_in_a_message_is_short_whatever_it_is():
    for value in (10**5000, -(10**5000), "x" * 10**6, [[]] * 10**5, Odd(), math.nan, None, b"\xff", "\ud800"):
        assert len(shown(value)) < 80 and shown(value).encode()
    assert shown(5) == "5" and shown(0.5) == "0.5" and shown("a") == "'a'" and shown(None) == "a NoneType"
