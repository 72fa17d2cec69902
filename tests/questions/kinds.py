"""A question of every kind, and records that stand in the corners of what a record can be."""

import itertools
import math

import fedprivacy as fp
from fedprivacy.questions.constructors import Questions

LEVELS = ["f", "m", 3]
GROUPS = {"ward": ["a", "b"]}
CONDITIONS = {"ward": ["a", "b", "c"], "x": (-1.0, 55.0)}


class Odd:
    """Nothing can be done with it, but to name it where a test fails."""

    __hash__ = None

    def refuse(self, *_):
        raise RuntimeError("no")

    __str__ = __float__ = __eq__ = __bool__ = __len__ = __iter__ = refuse


def of_every_kind(**clauses):
    """Questions by kind: of the columns x and y, numbers, and s, categories."""
    ask = Questions
    return {
        "count": [ask.count(**clauses)],
        "rows": [ask.rows(1, **clauses)],
        "categories": [ask.categories("s", LEVELS, **clauses)],
        "heavy-hitters": [ask.heavy_hitters("s", LEVELS, 2, **clauses)],
        "histogram": [ask.histogram("x", 0, 50, 7, **clauses), ask.histogram("x", -1e100, 1e100, 1, **clauses)],
        "sum": [
            ask.sum("x", 0, 50, **clauses),
            ask.sum("x", -50, 50, **clauses),
            ask.sum("x", 49, 50, **clauses),
            ask.sum("x", -50, -1e-9, **clauses),
        ],
        "mean": [ask.mean("x", 0, 50, **clauses)],
        "spread": [ask.variance("x", 0, 50, **clauses), ask.mean_and_scale({"x": (0, 50), "y": (-1, 1)}, **clauses)],
        "covariance": [
            ask.covariance({"x": (0, 50), "y": (-1, 1)}, **clauses),
            ask.covariance({"y": (-1, 1)}, **clauses),
        ],
        "quantiles": [ask.median("x", 0, 50, 8, **clauses), ask.quantiles("x", 0, 50, (0.1, 0.9), 100, **clauses)],
    }


def all_questions(**clauses):
    """The same, one after the other."""
    return [question for questions in of_every_kind(**clauses).values() for question in questions]


def every_question():
    """Without clauses, by group, with conditions, and with both."""
    clauses = [{}, {"by": GROUPS}, {"where": CONDITIONS}, {"by": GROUPS, "where": CONDITIONS}]
    return [question for each in clauses for question in all_questions(**each)]


# fmt: off
NUMBERS = [0.0, 50.0, 25.0, 49.999999999999993, -3.0, 1e308, -1.7e308, 5e-324, -0.0, " 7 ", "50", True,
           None, "", "?", math.nan, math.inf, -math.inf, 10**5000, Odd()]
"""Cells of x: at the bounds, within, beyond, and what is no number."""

SMALL = [-1, 1.0, 0.25, 1e9, "no", None]
"""Cells of y."""

WORDS = ["f", " m ", 3, "3.0", "x", "", None, math.nan, Odd()]
"""Cells of s: its levels, none of them, and nothing."""

WARDS = ["a", "b", "c", None]
# fmt: on

NULL = (None, None, None, None)
"""A record of which every cell is empty."""

CORNERS = [
    *itertools.product(NUMBERS, SMALL, ["f"], ["a"]),
    *itertools.product([25.0, None], [1.0], WORDS, WARDS),
    *itertools.product([0.0, 60.0], [-1], ["m"], WARDS),
    NULL,
]
"""Records: (x, y, s, ward)."""


def table_of(records):
    """Records as a table."""
    columns = list(zip(*records, strict=True)) or [()] * 4
    return fp.Table(dict(zip(("x", "y", "s", "ward"), columns, strict=True)))


def squared(vector):
    """Exact, in Python's whole numbers."""
    return sum(int(entry) ** 2 for entry in vector.ravel())
