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
from tests.questions.kinds import of_every_kind


def test_what_asks_the_same_has_one_text():
    ask = Questions
    same = [
        [ask.mean("a", 0, 120), ask.mean("a", 0.0, np.int64(120)), ask.mean("a", -0.0, np.float32(120))],
        [ask.categories("a", [0, 1]), ask.categories("a", [0.0, 1.0]), ask.categories("a", (-0.0, np.int8(1)))],
        [ask.count(where={"a": 1, "b": (0, 1)}), ask.count(where={"b": (0.0, 1.0), "a": [1.0]})],
        [
            ask.count(where={"a": ["x", "y"]}),
            ask.count(where={"a": [" y", "x "]}),
            dataclasses.replace(ask.count(where={"a": "x"}), where=ask.count(where={"a": ["x", "y"]}).where * 2),
        ],
        [ask.quantiles("a", 0, 1, (0.5, 0.25)), ask.quantiles("a", 0, 1, [0.25, 0.5, 0.5])],
        [ask.median("a", 0, 1), ask.quantiles("a", 0, 1, (0.5,), 512)],
        [ask.histogram("a", 0, 1, 4), ask.histogram("a", 0.0, 1.0, np.int64(4))],
        [ask.count(by={"a": [True, 2]}), ask.count(by={"a": ("True", 2.0)})],
        *([ask.categories("a", [level])] for level in (1, True, "1", "x")),
        *([other] for other in (ask.sum("a", 0, 120), ask.count(by={"a": [2, True]}), ask.heavy_hitters("a", ["x"]))),
    ]
    for alike in same:
        assert len({question.as_text() for question in alike}) == len(set(alike)) == 1
    assert len({alike[0].as_text() for alike in same}) == len(same)
    written = '{"by":null,"kind":"mean","of":[{"column":"a","high":120,"low":-0}],"where":[]}'  # in whole numbers
    assert read_question(written) == same[0][0] and read_question(written).as_text() != written


# --- hostile texts ---


def deep(depth, inner="1"):
    return "[" * depth + inner + "]" * depth


HOSTILE = [
    "",
    "null",
    "5",
    "\ud800",
    "{}",
    '{"kind":["mean"]}',
    '{"kind":"drop table"}',
    '{"kind":"Question","where":[],"by":null}',  # no code is reached by its name
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
    # where the interpreter still reads JSON, and a message that repeated it would be too deep
    *(f'{{"kind":"categories","by":null,"where":[],"column":"a","levels":{deep(n)}}}' for n in range(50, 1000, 50)),
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


WORTHLESS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = {kind: json.loads(made[0].as_text()) for kind, made in of_every_kind(where={"b": (0, 1)}).items()}


def with_any_fields(kind):
    """A question of a kind of which each other field may be anything, one of another question's, or missing."""
    others = st.sampled_from([value for fields in FIELDS.values() for value in fields.values()])
    fields = dict.fromkeys(FIELDS[kind].keys() - {"kind"}, WORTHLESS | others)
    return st.fixed_dictionaries({"kind": st.just(kind)}, optional=fields)


ANY_TEXT = (
    st.sampled_from(sorted(KINDS)).flatmap(with_any_fields).map(json.dumps)
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


def test_a_hostile_questionnaire_is_refused():
    one = Questions.count().as_text()
    pairs = [[], [one], [[one]], [[one, 1, 2]], [[one, True]], [[one, None]], [[one, math.nan]], [["x" * 10, 1.0]]]
    texts = ["", "null", "5", "{}", "[" * 100_000, " " * (LONGEST_TEXT + 1), json.dumps([{"0": one, "1": 1}])]
    texts += [f"[[{json.dumps(one)},{'9' * digits}]]" for digits in (4000, 5000)]
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
