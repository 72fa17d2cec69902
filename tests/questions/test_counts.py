"""Counts: what is counted where, and what is made of noisy counts."""

import numpy as np
import pytest
from scipy.stats import norm

import fedprivacy as fp
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions, parse
from fedprivacy.questions.figures import Noisy
from fedprivacy.questions.lattice import STEPS

TABLE = fp.Table({"sex": ["f", "m", " f", "x", "", None, "3.0"], "age": [0, 9, 10, 99, -1, None, "?"]})


def counted(question, table=TABLE):
    return (question.totals(table)[0] / STEPS).tolist()


def figures(question, counts, deviation):
    return question.figures(Noisy(np.array(counts) * STEPS, deviation * STEPS))


def test_records_are_counted_by_level_or_interval_of_which_the_outer_ones_hold_those_beyond_and_an_empty_cell_by_none():
    assert counted(Questions.count()) == [7]
    assert counted(Questions.categories("sex", ["m", "f", 3])) == [1, 2, 1, 1]
    assert counted(Questions.histogram("age", 0, 20, 2)) == [3, 2]
    assert counted(Questions.categories("sex", ["none"])) == [0, 5]
    floats = fp.Table({"sex": np.array([1.0, np.nan, 2.0])})
    assert counted(Questions.categories("sex", [1]), floats) == [1, 1]


def test_each_bin_has_a_name_and_a_noisy_count():
    found = figures(Questions.categories("sex", ["m", "f"]), [1.5, -2.0, 3.0], 1.0)
    assert [(f.name, f.value) for f in found] == [("m", 1.5), ("f", -2.0), ("other", 3.0)]
    found = figures(Questions.histogram("age", 0, 1, 4), [1, 2, 3, 4], 1.0)
    assert [f.name for f in found] == ["0 to 0.25", "0.25 to 0.5", "0.5 to 0.75", "0.75 to 1"]
    assert Questions.histogram("age", 0, 1, 4).records(Noisy(np.full(4, 2.5 * STEPS), 1.0)) == 10.0


def test_heavy_hitters_are_the_largest_counts_that_stand_out_of_the_noise():
    question = Questions.heavy_hitters("icd", ["a", "b", "c", "d", "e"], 2)
    found = figures(question, [50, 400, 3, 300, 200, 9999], 1.0)
    assert [(f.name, f.value) for f in found] == [("b", 400), ("d", 300)]
    assert not figures(question, [4.0, 3.0, -5.0, 1.0, 4.0, 500.0], 1.0)
    assert [f.name for f in figures(question, [-9, 0, 0, 0, 6.0, 0], 1.0)] == ["e"]


def test_the_interval_of_a_level_knows_that_it_is_told_before_the_next_one():
    question = Questions.heavy_hitters("icd", ["a", "b", "c", "d", "e"], 1)
    (found,) = figures(question, [290, 400, 3, 300, 200, 9999], 50.0)
    farther = (400.0 - found.low) / 50.0
    assert norm.sf(farther) / norm.sf(farther - 2.0) == pytest.approx(0.025)  # 300 is two errors below


def test_what_the_noise_alone_makes_is_hardly_ever_a_heavy_hitter():
    """Once in a thousand answers at most."""
    question = Questions.heavy_hitters("icd", list(range(1000)), 10)
    noise = np.random.default_rng(3).normal(0.0, 50.0, (400, 1001))
    assert sum(bool(figures(question, row, 50.0)) for row in noise) <= 3


def test_how_many_is_a_whole_number_in_its_range():
    for most in (0, 1001, True):
        with pytest.raises(QuestionError):
            Questions.heavy_hitters("a", ["x"], most)
    for intervals in (0, 4097, 2.0, 10**5000):
        with pytest.raises(QuestionError):
            Questions.histogram("a", 0, 1, intervals)


BOUNDS = [
    *((0, 100, 10), (50, 250, 20), (0, 30, 30), (-3, 4, 7), (0, 12345670, 10), (1e6, 1e6 + 1, 30)),
    *((0, 1, 10), (0, 0.3, 3), (-0.7, 0.7, 14), (0.1, 0.7, 6), (0, 1, 3), (0, 365, 512), (-1e100, 1e100, 50)),
]


@pytest.mark.parametrize(("low", "high", "count"), BOUNDS)
def test_a_number_on_an_edge_counts_in_the_interval_that_begins_with_the_edge_shown(low, high, count):
    """As `count where x=edge:edge`, typed from the figures' names, says too."""
    question = Questions.histogram("x", low, high, count)
    edges = [name.split(" to ")[0] for name in question.bins]
    width = high / count - low / count
    assert np.allclose(np.diff([low, *map(float, edges[1:]), high]), width, rtol=2.1e-3)
    between = np.nextafter([float(edge) for edge in edges[1:]], -np.inf)
    table = fp.Table({"x": [low, *map(float, edges[1:]), *between, high]})
    assert counted(question, table) == [2] * count
    places = range(1, count - 1)
    if count > 2:
        typed_edges = [(edges[place], edges[place + 1]) for place in places]
        for first, after in typed_edges[:40]:
            (where,) = parse(f"count where x={first}:{after}")
            assert counted(where, table) == [2]


def test_whole_numbers_are_counted_where_whole_edges_say():
    random = np.random.default_rng(1)
    for _ in range(300):
        low, width, count = random.integers((-1000, 1, 1), (1000, 50, 60)).tolist()
        numbers = np.arange(low - 3, low + width * count + 3)
        places = np.clip((numbers - low) // width, 0, count - 1)
        found = counted(Questions.histogram("x", low, low + width * count, count), fp.Table({"x": numbers}))
        assert found == np.bincount(places, minlength=count).tolist()


@pytest.mark.parametrize("low", [1.0, -1.0, 1.0 - 2**-53, 1.999, 3e99, 0.0])
def test_between_the_narrowest_bounds_every_interval_has_edges_of_its_own(low):
    high = max(low + 1.01e-12 * abs(low), low + 1.01e-100)
    question = Questions.histogram("x", low, high, 4096)
    edges = [float(name.split(" to ")[0]) for name in question.bins]
    assert (np.diff(edges) > 0.0).all()
    assert counted(question, fp.Table({"x": edges})) == [1] * 4096
