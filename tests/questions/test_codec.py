"""A question has one text, and no other text makes anything but a QuestionError."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import KINDS, LONGEST_TEXT, Questionnaire, read_question
from tests.questions.kinds import all_questions, every_question, of_every_kind


def test_every_kind_comes_back_from_its_text_which_holds_its_fields_by_their_names():
    for question in every_question():
        text = question.as_text()
        assert read_question(text) == question
        assert json.loads(text).keys() == {"kind"} | {field.name for field in dataclasses.fields(question)}


def test_what_asks_the_same_has_one_text():
    ask = Questions
    same = [
        [ask.mean("a", 0, 120), ask.mean("a", 0.0, np.int64(120)), ask.mean("a", -0.0, np.float32(120))],
        [ask.categories("a", [0, 1]), ask.categories("a", [0.0, 1.0]), ask.categories("a", (-0.0, np.int8(1)))],
        [ask.count(where={"a": 1, "b": (0, 1)}), ask.count(where={"b": (0.0, 1.0), "a": [1.0]})],
        [ask.count(where={"a": ["x", "y"]}), ask.count(where={"a": [" y", "x "]})],
        [ask.quantiles("a", 0, 1, (0.5, 0.25)), ask.quantiles("a", 0, 1, [0.25, 0.5, 0.5])],
        [ask.median("a", 0, 1), ask.quantiles("a", 0, 1, (0.5,), 512)],
        [ask.histogram("a", 0, 1, 4), ask.histogram("a", 0.0, 1.0, np.int64(4))],
        [ask.count(by={"a": [True, 2]}), ask.count(by={"a": ("True", 2.0)})],
    ]
    for alike in same:
        assert len({question.as_text() for question in alike}) == len(set(alike)) == 1
    assert len({alike[0].as_text() for alike in same}) == len(same)
    written = '{"by":null,"kind":"mean","of":[{"column":"a","high":120,"low":-0}],"where":[]}'  # in whole numbers
    assert read_question(written) == same[0][0] and read_question(written).as_text() != written


def test_truth_is_not_one_and_a_kind_is_not_another():
    pairs = [
        (Questions.categories("a", [1]), Questions.categories("a", [True])),
        (Questions.categories("a", [1]), Questions.categories("a", ["1"])),
        (Questions.sum("a", 0, 1), Questions.mean("a", 0, 1)),
        (Questions.count(by={"a": ["x", "y"]}), Questions.count(by={"a": ["y", "x"]})),
        (Questions.categories("a", ["x"]), Questions.heavy_hitters("a", ["x"])),
    ]
    for one, other in pairs:
        assert one != other and one.as_text() != other.as_text()


# --- hostile texts ---

MEAN = json.loads(Questions.mean("a", 0, 1, where={"b": (0, 1)}, by={"c": ["x"]}).as_text())
CATEGORIES = json.loads(Questions.categories("a", ["x"]).as_text())


def deep(depth, inner="1"):
    return "[" * depth + inner + "]" * depth


HOSTILE = [
    "",
    "null",
    "5",
    "\ud800",
    "\x00",
    "{}",
    '{"kind":["mean"]}',
    '{"kind":"drop table"}',
    '{"kind":"Question","where":[],"by":null}',  # no code is reached by its name
    '{"kind":"__class__","where":[],"by":null}',
    '{"kind":"count","where":[],"by":null,"extra":1}',
    '{"kind":"count","where":[],"by":null,"by":null}',
    '{"kind":"count","where":[{"column":"a","levels":["x"],"levels":["x"]}],"by":null}',
    '{"kind":"count","where":[{"column":"a","least":0,"below":1,"levels":["x"]}],"by":null}',
    '{"kind":"count","where":[],"by":{"column":"a","least":0,"below":1}}',
    '{"kind":"count","where":{"a":1},"by":null}',
    '{"kind":"count","where":[{"column":"a","least":NaN,"below":1}],"by":null}',
    '{"kind":"count","where":[{"column":"a","least":-Infinity,"below":Infinity}],"by":null}',
    '{"kind":"count","where":[{"column":"a","least":0,"below":' + "9" * 5000 + '}],"by":null}',
    '{"kind":"count","where":[{"column":"a","least":0,"below":' + "9" * 4000 + '}],"by":null}',
    '{"kind":"count","where":[{"column":"a","levels":[' + "9" * 4000 + ']}],"by":null}',
    '{"kind":"count","where":[{"column":"a","levels":["\\udfff"]}],"by":null}',
    deep(100_000),
    '{"kind":"count","where":' + deep(100_000) + ',"by":null}',
    '{"a":' * 100_000,
    " " * (LONGEST_TEXT + 1),
    json.dumps(
        {"kind": "count", "by": None, "where": [{"column": "a", "least": n, "below": n + 1} for n in range(5000)]}
    ),
]


WRONG = [None, True, -1, 1.5, "1", "", [], [[]], {}, {"column": "a"}, [None], [1e400], "x" * 10_000, 10**400, [["a"]]]
RIGHT = [("column", "1"), ("low", -1), ("low", 1.5), ("least", -1), ("high", 1.5), ("below", 1.5), ("by", None)]
RIGHT += [("where", [])]
"""Values that are wrong elsewhere and right there."""


def mutated(fields):
    """A question's fields with each one, however deep, left out or made what it is not: (its name, what, all)."""
    for key, value in fields.items():
        yield key, "left out", {name: fields[name] for name in fields if name != key}
        yield from ((key, wrong, fields | {key: wrong}) for wrong in WRONG)
        if isinstance(value, dict):
            yield from ((*what, fields | {key: changed}) for *what, changed in mutated(value))
        elif isinstance(value, list) and isinstance(value[0], dict):
            yield from ((*what, fields | {key: [changed]}) for *what, changed in mutated(value[0]))


def fails(text, read=read_question):
    """A text fails with nothing but a QuestionError, and a message that can be shown."""
    with pytest.raises(QuestionError) as caught:
        read(text)
    str(caught.value).encode()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:40].encode("ascii", "replace").decode())
def test_a_hostile_text_is_refused(text):
    fails(text)
    fails(json.dumps([[text, 1.0]]), Questionnaire.from_text)


def test_a_field_of_another_type_or_out_of_range_is_refused():
    seen = 0
    for question, *_ in of_every_kind(where={"b": (0, 1)}, by={"c": ["x"]}).values():
        for key, value, fields in mutated(json.loads(question.as_text())):
            text = json.dumps(fields)
            if (key, value) in RIGHT and type(value) is not bool:
                assert read_question(read_question(text).as_text()) == read_question(text)
            else:
                fails(text)
                seen += 1
    assert seen > 500


@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"count","where":DEEP,"by":null}',
        '{"kind":"mean","by":null,"where":[],"of":[{"column":DEEP,"low":0,"high":1}]}',
        '{"kind":"categories","by":null,"where":[],"column":"a","levels":DEEP}',
    ],
)
def test_depth_near_the_interpreter_s_own_limit_is_refused_too(text):
    """JSON is still read there, and a message that repeated it would not be."""
    for depth in range(50, 1000, 25):
        fails(text.replace("DEEP", deep(depth)))


WORTHLESS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELD = WORTHLESS | st.sampled_from(
    [MEAN["of"], MEAN["where"], CATEGORIES["levels"], MEAN["by"], "age", 0.0, 1.0, 3, [0.5], [], None]
)


def with_any_fields(kind):
    """A question of a kind with all of its fields, of which each may be anything; one of them may be missing."""
    fields = {field.name: FIELD for field in dataclasses.fields(KINDS[kind])}
    right = {"where": st.just([]) | FIELD, "by": st.none() | FIELD}
    named = {"kind": st.just(kind)}
    return st.fixed_dictionaries(named, optional=fields) | st.fixed_dictionaries(named | fields | right)


@st.composite
def damaged(draw):
    """A question's text of which a few characters are others."""
    text = draw(st.sampled_from(all_questions())).as_text()
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(start + 10, len(text))))
    return text[:start] + draw(st.text(max_size=6)) + text[end:]


ANY_TEXT = (
    st.sampled_from(sorted(KINDS)).flatmap(with_any_fields).map(json.dumps)
    | damaged()
    | WORTHLESS.map(json.dumps)
    | st.text(max_size=60)
)


@given(st.lists(st.tuples(ANY_TEXT, st.floats() | st.just(1.0)), min_size=1, max_size=3), ANY_TEXT)
def test_any_text_is_questions_or_is_refused_as_none(pairs, text):
    """No other error is raised: it would be another code on the wire."""
    texts = [(read_question, Question.as_text, alone) for alone, _ in pairs]
    texts += [(Questionnaire.from_text, Questionnaire.as_text, whole) for whole in (json.dumps(pairs), text)]
    for read, write, each in texts:
        try:
            made = read(each)
        except QuestionError:
            continue
        assert read(write(made)) == made


# --- questionnaires ---

ONE = Questions.count().as_text()


def test_a_hostile_questionnaire_is_refused():
    pairs = [[], [ONE], [[ONE]], [[ONE, 1, 2]], [[ONE, True]], [[ONE, None]], [[ONE, math.nan]], [["x" * 10, 1.0]]]
    texts = ["", "null", "5", "{}", "[" * 100_000, " " * (LONGEST_TEXT + 1), json.dumps([{"0": ONE, "1": 1}])]
    texts += [f"[[{json.dumps(ONE)},{'9' * digits}]]" for digits in (4000, 5000)]
    for text in (*texts, *map(json.dumps, pairs)):
        fails(text, Questionnaire.from_text)


@pytest.mark.exhaustive
def test_what_can_be_asked_can_be_read():
    """A questionnaire whose own text is too long is refused when it is made."""
    levels = ["\u00fc" * 100 + str(n) for n in range(1200)]
    asked = Questionnaire((Questions.categories("a", levels),))
    assert Questionnaire.from_text(asked.as_text()) == asked
    with pytest.raises(QuestionError, match="name fewer levels"):
        Questionnaire((Questions.categories("a", levels), Questions.categories("b", levels)))
    levels = [str(n) for n in range(10_000)]
    assert len(read_question(Questions.categories("a", levels, where={"b": levels}).as_text()).levels) == 10_000
