"""Questions as people write them in Python and type them: what they cannot mean is said, and nothing else is raised."""

import math
from functools import partial

import numpy as np
import pytest

from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.conditions import LONGEST_LEVEL, MOST_LEVELS, OneOf, Within
from fedprivacy.questions.constructors import Questions, parse
from fedprivacy.questions.counts import Categories, Count
from fedprivacy.questions.moments import MOST_COLUMNS, Bounded, Mean, Spread
from fedprivacy.questions.quantiles import MOST_POINTS, MOST_QUANTILES
from fedprivacy.questions.questionnaire import KINDS, MOST_QUESTIONS, Questionnaire, read_question

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


def test_table_one_asks_for_each_variable_by_its_kind_and_shares_clauses():
    made = Questions.table_one({"age": (0, 120), "sex": ["f"]}, where={"ward": "a"}, by={"arm": ["x", "y"]})
    assert [type(question) for question in made] == [Spread, Categories]
    assert made[0].of == (Bounded("age", 0.0, 120.0),) and made[1].levels == ("f",)
    assert all(question.where[0].column == "ward" and question.by.levels == ("x", "y") for question in made)
    for variables in ({}, None, ["age"], {"age": 5}, {"age": (0, 1, 2)}, {"sex": "fm"}, {"sex": []}):
        with pytest.raises(QuestionError):
            Questions.table_one(variables)


def test_what_no_question_can_hold_is_refused():
    ask, of = Questions, Bounded("a", 0, 1)
    wrong = [(1, 0), (0, math.inf), (math.nan, 1), (1.0, 1.0 + 1e-13), (0, 5e-324), (0, 1, 2)]
    too_many = {str(n): (0, 1) for n in range(MOST_COLUMNS + 1)}
    no_shares = (), (0.0,), (1,), (math.nan,), ("0.5",), 0.5, [n / 101 for n in range(1, MOST_QUANTILES + 2)]
    for make, *arguments in (
        *((ask.heavy_hitters, "a", ["x"], most) for most in (0, 1001, True)),
        *((ask.histogram, "a", 0, 1, intervals) for intervals in (0, 4097, 2.0, 10**5000)),
        *((ask.covariance, bounds) for bounds in ({}, {"a" * 257: (0, 1)}, too_many, *({"a": pair} for pair in wrong))),
        *((ask.quantiles, "x", 0, 1, at) for at in no_shares),
        *((ask.median, "x", 0, 1, points) for points in (1, MOST_POINTS + 1, 512.0, True)),
        *((Within, "a", *pair) for pair in ((1, 1), (2, 1), (math.nan, 1), (0, math.inf), ("0", 1), (True, 2))),
        *((partial(Mean, of=columns),) for columns in ((), (of, Bounded("a", 0, 2)), (("a", 0, 1),))),
        (partial(Count, where=({"column": "sex"},)),),
        (partial(Count, where=tuple(Within("x", n, n + 1) for n in range(65))),),
        (partial(Count, by=Within("x", 0, 1)),),
        (partial(ask.count, where={"sex": {"f"}}),),
    ):
        with pytest.raises(QuestionError) as caught:
            make(*arguments)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([], "has 0 levels; name 1 to"),
        (["a"] * (MOST_LEVELS + 1), f"has {MOST_LEVELS + 1} levels"),
        (["f", " f "], "two levels of a are the same"),
        (["01", 1], "two levels of a are the same"),
        ([0.0, -0.0], "two levels of a are the same"),
        (["  "], "stands for nothing"),
        (["-nan"], "stands for nothing"),
        (["\ud800"], "stands for nothing"),
        ([math.inf], "give a text"),
        ([10**5000], "give a text"),
        (["x" * (LONGEST_LEVEL + 1)], "characters"),
        ([["f"]], "is a list"),
        ("fm", "levels of a is a str; give a list"),
    ],
)
def test_what_is_no_level_is_refused(levels, words):
    with pytest.raises(QuestionError, match=words):
        OneOf("a", levels)


# --- questions that are asked together ---

COUNT, MEAN = Questions.count(where={"sex": "f"}), Questions.mean("age", 0, 120, by={"ward": ["a"]})


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


# --- as they are typed ---

ask = Questions

FORMS = {
    "count": [ask.count()],
    "categories sex f m": [ask.categories("sex", ["f", "m"])],
    "heavy-hitters icd 2 a b c": [ask.heavy_hitters("icd", ["a", "b", "c"], 2)],
    "histogram age 0 120": [ask.histogram("age", 0, 120)],
    "histogram age 0 120 6": [ask.histogram("age", 0, 120, 6)],
    "rows 8": [ask.rows(8)],
    "sum age 0 120": [ask.sum("age", 0, 120)],
    "mean age -1.5 1e3": [ask.mean("age", -1.5, 1000)],
    "variance age 0 120": [ask.variance("age", 0, 120)],
    "spread age 0 120 weight 0 200": [ask.mean_and_scale({"age": (0, 120), "weight": (0, 200)})],
    "covariance age 0 120 weight 0 200": [ask.covariance({"age": (0, 120), "weight": (0, 200)})],
    "median age 0 120": [ask.median("age", 0, 120)],
    "quantiles age 0 120 0.1 0.9": [ask.quantiles("age", 0, 120, (0.1, 0.9))],
    "table age=0:120 sex=f,m by arm=a,b": ask.table_one({"age": (0, 120), "sex": ["f", "m"]}, by={"arm": ["a", "b"]}),
    "count where sex=f,m age=40:60 by ward=a,b": [
        ask.count(where={"sex": ["f", "m"], "age": (40, 60)}, by={"ward": ["a", "b"]})
    ],
    "count by ward=1,2 where age=40:60": [ask.count(where={"age": (40, 60)}, by={"ward": ["1", "2"]})],
    "mean 'age at death' 0 120 where \"marital status\"='living apart,f'": [
        ask.mean("age at death", 0, 120, where={"marital status": ["living apart", "f"]})
    ],
    ";;count;;mean age 0 1": [ask.count(), ask.mean("age", 0, 1)],
    'mean "a;b" 0 1': [ask.mean("a;b", 0, 1)],
    "count where a=b=c": [ask.count(where={"a": "b=c"})],
}


@pytest.mark.parametrize("text", FORMS, ids=str)
def test_every_form_is_the_question_that_python_makes(text):
    made = parse(text)
    assert list(made) == list(FORMS[text])
    assert [read_question(question.as_text()) for question in made] == list(made)


def test_no_form_and_no_kind_is_left_out():
    """A mistake names every form."""
    with pytest.raises(QuestionError) as named:
        parse("mode")
    forms = set(str(named.value).removesuffix(".").split("ask one of ")[1].split(", "))
    for texts in (FORMS, MISTAKES):
        assert forms <= {text.split()[0].strip(";") for text in texts if text}
    assert {question.kind for made in FORMS.values() for question in made} == KINDS.keys()


MISTAKES = {
    "": "no question is asked",
    "mode age": "'mode' is no question; ask one of count",
    Questionnaire((ask.count(),)).as_text(): "is no question; ask one of count",  # the text for machines
    "count age": "a condition comes after 'where'",
    "count 'age": "close every quote",
    "count \\": "close every quote",
    "count where": "nothing follows 'where'",
    "count where sex": "'sex' names no value",
    "count where sex=f where age=0:1": "'where' is there twice",
    "count where age=0:9 age=9:20": "named twice",
    "count by a=x b=y": "by names 2 columns",
    "count by age=0:50": "by column=level,level",
    "count where age=a:b": "no two numbers",
    "count where sex=f,": "stands for nothing",
    "categories": "see `fedprivacy ask --help`",
    "heavy-hitters icd many a b": "see `fedprivacy ask --help`",
    "histogram age 0 120 " + "9" * 5000: "see `fedprivacy ask --help`",
    "rows": "see `fedprivacy ask --help`",
    "rows 0": "most is 0",
    "sum": "no column with its low and high",
    "mean age 120 0": "the larger one last",
    "variance age": "no column with its low and high",
    "spread age 0 120 age 0 130": "named twice",
    "covariance age 0 120 weight": "no list of columns",
    "median age": "no column with its low and high",
    "quantiles age 0 120": "0 quantiles are asked for",
    "table": "variables is empty",
    "table age": "names no value",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:40])
def test_every_mistake_is_named(text):
    with pytest.raises(QuestionError, match=MISTAKES[text]):
        parse(text)


# fmt: off
# fmt: on
