"""Questions as people type them: every form, every mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions, parse
from fedprivacy.questions.questionnaire import KINDS, Questionnaire, read_question

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
    "count where sex=f": [ask.count(where={"sex": "f"})],
    "count where sex=f,m age=40:60 by ward=a,b": [
        ask.count(where={"sex": ["f", "m"], "age": (40, 60)}, by={"ward": ["a", "b"]})
    ],
    "count by ward=1,2 where age=40:60": [ask.count(where={"age": (40, 60)}, by={"ward": ["1", "2"]})],
    "mean 'age at death' 0 120 where \"marital status\"='living apart,f'": [
        ask.mean("age at death", 0, 120, where={"marital status": ["living apart", "f"]})
    ],
    "count; count;": [ask.count(), ask.count()],
    ";;count;;mean age 0 1": [ask.count(), ask.mean("age", 0, 1)],
    'mean "a;b" 0 1': [ask.mean("a;b", 0, 1)],
    "count where a=b=c": [ask.count(where={"a": "b=c"})],
    "mean \u00e4ge 0 1": [ask.mean("\u00e4ge", 0, 1)],
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
WORDS = st.text(max_size=5) | st.sampled_from(
    [*KINDS, "table", "where", "by", "age", "sex", "0", "1", "120", "0.5", "f", "m", "a=b", "a=0:1", "a=b,c", "=", ":",
     ",", "'", '"', ";", "\\", "''", "nan", "inf", "1e400", "-1", "\x00", "\ud800", "10" * 30, "#", "\n"]
)
# fmt: on


@given(st.lists(WORDS, max_size=10).map(" ".join))
def test_whatever_is_typed_is_questions_or_a_mistake(text):
    try:
        made = parse(text)
    except QuestionError as error:
        assert str(error)
        return
    assert made and [read_question(question.as_text()) for question in made] == list(made)
