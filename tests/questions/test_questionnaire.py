"""Questions asked together: their number, their shares, what they look at."""

import math

import pytest

from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.questionnaire import MOST_QUESTIONS, Questionnaire

COUNT, MEAN = Questions.count(where={"sex": "f"}), Questions.mean("age", 0, 120, by={"ward": ["a"]})


def test_shares_are_equal_unless_they_are_given_and_of_any_unit():
    assert Questionnaire((COUNT, MEAN)) == Questionnaire([COUNT, MEAN], [1, 1])
    one, other = Questionnaire((COUNT, MEAN), (1, 3)), Questionnaire((COUNT, MEAN), (25.0, 75.0))
    assert one.noise_multipliers(2.0) == pytest.approx(other.noise_multipliers(2.0))
    assert one.noise_multipliers(2.0) == pytest.approx([4.0, 4.0 / math.sqrt(3.0)])
    assert Questionnaire((COUNT,)).noise_multipliers(2.0) == pytest.approx([2.0])


def test_columns_and_kinds_are_those_of_all_questions_their_conditions_and_groups():
    asked = Questionnaire((COUNT, MEAN))
    assert asked.columns == {"sex", "age", "ward"} and asked.kinds == {"count", "mean"}


@pytest.mark.parametrize(
    ("questions", "shares", "words"),
    [
        ((), (), "0 questions"),
        ((COUNT,) * (MOST_QUESTIONS + 1), (), "257 questions"),
        (("count",), (), "no question"),
        (COUNT, (), "is a Count; give a list"),
        ((COUNT,), (1, 2), "2 shares are for 1 questions"),
        ((COUNT,), (1e-7,), "a share is 1e-07"),
        ((COUNT,), (10**5000,), "more than 40 digits"),
        ((COUNT,), (math.nan,), "a share is nan"),
        ((COUNT,), ("1",), "a share is a str"),
        ((COUNT,), 1.0, "shares is a float; give a list"),
        ((Questions.median("x", 0, 1, 4096, by={"a": list(range(257))}),), (), "1052672 numbers"),
    ],
)
def test_what_cannot_be_asked_together_is_refused(questions, shares, words):
    with pytest.raises(QuestionError, match=words):
        Questionnaire(questions, shares)
