"""A person moves the totals by one vector, whatever rows, and by no more than is charged for."""

import itertools
import random
import statistics

import numpy as np
import pytest

import fedprivacy as fp
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.certificate import certify
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import Noisy
from fedprivacy.tasks.cells import TableError
from tests.flower.visits import M, Visits
from tests.questions.kinds import every_question, squared

COLUMNS = ("x", "y", "s", "ward")
ROWS = [
    (50.0, 1, "f", "a"),
    (0.0, -1, "m", "b"),
    (25.0, 0.25, 3, "c"),
    (None,) * 4,
    ("?", 1, "x", "a"),
    (-3, 9, "", "b"),
]
MOST = 3
PERSONS = [rows for count in range(1, MOST + 1) for rows in itertools.product(ROWS, repeat=count)]

EVERY = [*every_question(), Questions.rows(MOST), Questions.rows(2, where={"x": (-1.0, 51.0)}, by={"ward": ["a", "b"]})]


def table_of(persons, most_rows=MOST, order=None, **summaries):
    """Each person's rows, one person after the other, or as the shuffled names in `order` come."""
    left = [iter(rows) for rows in persons]
    names = order or [name for name, rows in enumerate(persons) for _ in rows]
    cells = zip(*(next(left[name]) for name in names), strict=True)
    return fp.Table(dict(zip(COLUMNS, cells, strict=True)), persons=names, most_rows=most_rows, summaries=summaries)


@pytest.mark.parametrize(
    "summary", [None, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("first", "least"))]
)
@pytest.mark.parametrize("number", range(len(EVERY)), ids=[f"{q.kind}-{n}" for n, q in enumerate(EVERY)])
def test_one_person_moves_the_totals_by_no_more_than_the_sensitivity_and_some_person_by_all_of_it(number, summary):
    question, summaries = EVERY[number], dict.fromkeys(COLUMNS, summary) if summary else {}
    persons = PERSONS if summary == "first" else PERSONS[:6] + PERSONS[6::6]
    own = [question.totals(table_of([rows], **summaries)) for rows in persons]
    assert max(map(squared, own)) == question.squared_sensitivity
    counted = [question.records(Noisy(group, 1.0)) for groups in own for group in groups]
    assert max(counted) <= 1.0 + 1e-9, "one person is no cohort of several"
    drawn = random.Random(number)
    for _ in range(3):
        some = drawn.sample(range(len(persons)), 40)
        order = [name for name, place in enumerate(some) for _ in persons[place]]
        drawn.shuffle(order)
        together = question.totals(table_of([persons[place] for place in some], order=order, **summaries))
        assert np.array_equal(together, sum(own[place] for place in some))


SUMMARIES = {
    "mean": statistics.fmean,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "least": min,
    "largest": max,
}


@pytest.mark.parametrize("summary", SUMMARIES)
def test_a_person_has_one_number_by_the_declared_summary_of_the_rows_that_hold_one(summary):
    drawn = random.Random(2)
    persons = [
        [(drawn.choice([drawn.uniform(0, 50), drawn.uniform(0, 50), None]), 0, "f", "a") for _ in range(visits)]
        for visits in drawn.choices(range(1, MOST + 1), k=80)
    ]
    known = [[x for x, *_ in rows if x is not None] for rows in persons]
    numbers = [SUMMARIES[summary](values) if values else None for values in known]
    for question in (Questions.histogram("x", 0, 50, 9), Questions.variance("x", 0, 50), Questions.median("x", 0, 50)):
        expected = question.totals(fp.Table({"x": numbers}))
        assert np.array_equal(question.totals(table_of(persons, x=summary)), expected)


def test_a_person_is_asked_about_by_the_rows_that_meet_all_conditions_and_counts_in_the_first_one_s_group():
    visits = {
        "ann": [(70, 3, "f", "b"), (40, 9, "f", "a"), (44, 2, "f", "a")],  # with 40 to 50 years, first on ward a
        "bob": [(45, 5, "m", "b"), (46, 7, "m", "a")],  # first on ward b
        "eve": [(30, 9, "f", "a"), (80, 9, "f", "b")],  # at neither visit 40 to 50
        "kim": [(49, 1, "f", "z"), (49, 6, "f", "b")],  # the first visit that is in any group
    }
    table = table_of(list(visits.values()), y="largest")
    clauses = {"where": {"x": (40, 50)}, "by": {"ward": ["a", "b"]}}
    steps = Questions.count().squared_sensitivity ** 0.5

    def asked(question):
        return (question.totals(table) / steps).tolist()

    assert asked(Questions.count()) == [[4]]
    assert asked(Questions.count(**clauses)) == [[1], [2]]
    assert asked(Questions.rows(3, **clauses)) == [[2], [2]]
    assert asked(Questions.rows(1, **clauses)) == [[1], [2]]
    assert asked(Questions.histogram("y", 0, 10, 10, **clauses)) == [
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 1, 1, 0, 0, 0],
    ]
    assert asked(Questions.categories("s", ["f", "m"], **clauses)) == [[1, 0, 0], [1, 1, 0]]
    assert asked(Questions.categories("ward", ["a", "b"])) == [[1, 2, 1]]
    last = table_of(list(visits.values()), ward="last")
    assert (Questions.categories("ward", ["a", "b"]).totals(last) / steps).tolist() == [[2, 2, 0]]


class Scaled(Visits):
    """Its inputs are scaled by what the patients are like."""

    standardise = fp.ask.mean_and_scale({f"value {number}": (-4.0, 4.0) for number in range(5)})


@pytest.mark.exhaustive
def test_inputs_of_patients_are_standardised_by_what_patients_are_like(tmp_path):
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    run = fp.simulate(Scaled(), seed=2, epsilon=8.0, rounds=2, ledger=ledger, out=tmp_path / "run", progress=False)
    assert run.metrics["accuracy"] > 0.6
    (certificate, *_) = certify(Ledger(ledger), (), "00" * 32)
    assert certificate.unit == f"patient (at most {M} rows)" and certificate.questions


def test_a_table_that_is_not_of_the_task_s_unit_is_refused(tmp_path):
    for most_rows, unit, words in (
        (None, None, r"records have up to 1 row, and the task's unit is patient \(at most 4 rows\); give persons="),
        (2, None, r"records have up to 2 rows, .* most_rows=4"),
        (1, fp.Unit(), r"records are persons, and the task's unit is a row; name it: unit = fp.Unit\('patient', 1\)"),
    ):
        with pytest.raises(fp.ConfigError, match=words):
            fp.ask(Visits(unit=unit, most_rows=most_rows), [fp.ask.count()], epsilon=1.0, out=tmp_path / "asked")
    assert not Ledger(f"sqlite:///{tmp_path / 'asked' / 'ledger.db'}").dataset_ids()


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"most_rows": None}, "persons and most_rows belong together"),
        ({"persons": [1]}, "there are 2 rows, and persons are 1"),
        ({"most_rows": 0}, "most_rows is 0; give a whole number from 1"),
        ({"summaries": {"x": "median"}}, "summaries say 'median' for 'x'; give one of mean, first"),
        ({"summaries": {"z": "last"}}, "summaries say 'last' for 'z'"),
        ({"persons": None, "most_rows": None, "summaries": {"x": "last"}}, "of a table with persons"),
    ],
)
def test_what_cannot_be_a_table_of_persons_is_refused(changed, wrong):
    with pytest.raises(TableError, match=wrong):
        fp.Table(**{"columns": {"x": [1, 2]}, "persons": ["ann", "bob"], "most_rows": 2} | changed)


def test_a_file_is_read_by_patient(tmp_path):
    file = tmp_path / "visits.csv"
    file.write_text("patient,days\n01,2\n1,30\n01,4\n,8\n,8\n01,90\n")
    table = fp.read_table(file, person="patient", rows_per_person=2, summaries={"days": "largest"})
    question = Questions.histogram("days", 0, 40, 4)
    counts = question.totals(table)[0] / question.squared_sensitivity**0.5
    assert counts.tolist() == [3, 0, 0, 1]  # 01 has 4, 1 has 30; a row without a name is nobody else's
