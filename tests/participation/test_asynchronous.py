"""The course of asynchronous rounds: who is dispatched when, whose answers make a step, what is waited for."""

import math
from collections import Counter

import pytest
from scipy import stats

from fedprivacy.participation import Buffer, Draws, Participation, availability_of, discount, speeds_of
from fedprivacy.participation.sizes import FixedSize

DRAWS = Draws.of("seed 0")
CLIENTS = [f"client-{n}" for n in range(6)]
STEPS = dict.fromkeys(CLIENTS, 10)


@pytest.fixture
def speeds(trace):
    """Client n takes n + 1 seconds for a local step."""
    return speeds_of(trace("client,seconds", *(f"{n},{n + 1}" for n in range(6))), DRAWS)


def rounds_of(buffer, count, steps=STEPS):
    """The courses of the first rounds."""
    courses, training, at = [], (), 0.0
    for number in range(1, count + 1):
        courses.append(buffer.course(number, steps, training, at))
        training, at = courses[-1].training, courses[-1].ended
    return courses


def told(course, number):
    return [(dispatch.client_id, dispatch.staleness(number)) for dispatch in course.answered]


def test_a_step_is_made_of_the_first_answers_of_this_round_and_of_rounds_before(speeds):
    """By hand: everybody trains, 10 steps; client n needs 10 (n + 1) seconds, and begins again with the next step."""
    one, two, three, four = rounds_of(Buffer(Participation(DRAWS, speeds=speeds), 6, 2), 4)
    assert (told(one, 1), one.ended) == ([("client-0", 0), ("client-1", 0)], 20.0)
    assert (told(two, 2), two.ended) == ([("client-0", 0), ("client-2", 1)], 30.0)
    at_once = {"client-0": 0, "client-1": 1, "client-3": 2}  # after 40 seconds; a draw says which of them waits
    assert three.ended == 40.0 and len(three.answered) == 2 and set(told(three, 3)) <= at_once.items()
    (waits,) = at_once.keys() - {d.client_id for d in three.answered}
    assert told(four, 4)[0] == (waits, at_once[waits] + 1) and four.ended == 50.0
    assert {d.client_id for d in one.dispatched} == set(CLIENTS)
    assert {d.client_id for d in two.dispatched} == {"client-0", "client-1"}


def test_whoever_is_done_is_replaced_at_once_by_one_that_is_free(speeds):
    course = Buffer(Participation(DRAWS, speeds=speeds), 2, 4).course(1, STEPS, (), 100.0)
    began = {d.client_id: d.ends - 10.0 * (int(d.client_id[-1]) + 1) for d in course.dispatched}
    moments = sorted(began.values())
    assert moments[:2] == [100.0, 100.0]
    assert moments[2:] == sorted(d.ends for d in course.answered)[: len(moments) - 2]
    assert len(course.answered) == 4 and len(course.training) == 1  # who completes the buffer begins from the new model


@pytest.mark.parametrize(("concurrency", "size"), [(6, 2), (3, 2), (2, 5), (4, 6), (1, 1), (5, 5)])
def test_nobody_trains_twice_at_a_time_or_in_a_round_and_no_more_than_may(concurrency, size):
    settings = {"speeds": speeds_of("lognormal:1", DRAWS), "drop_out": 0.2}
    training = {}
    for number, course in enumerate(rounds_of(Buffer(Participation(DRAWS, **settings), concurrency, size), 60), 1):
        names = [d.client_id for d in course.dispatched]
        assert len(set(names)) == len(names)
        assert all(d.round == number for d in course.dispatched)
        over = [d.client_id for d in course.over]
        assert len(set(over)) == len(over)
        before = dict(training)
        for d in course.dispatched:
            assert d.client_id not in before
            training[d.client_id] = d
        for d in course.over:
            assert training.pop(d.client_id) == d
        assert set(training.values()) == set(course.training)
        assert len(training) < concurrency + (len(course.answered) < size)
        assert len(course.answered) == size or not set(CLIENTS) - training.keys() - set(over)


def test_with_equal_speeds_and_a_buffer_for_all_that_train_rounds_are_those_that_end_together():
    participation = Participation(DRAWS, speeds=speeds_of("equal", DRAWS))
    together = Participation(DRAWS, cohort=FixedSize(3), speeds=speeds_of("equal", DRAWS))
    for number, course in enumerate(rounds_of(Buffer(participation, 3, 3), 30), 1):
        assert {d.client_id for d in course.answered} == together.turnout(number, CLIENTS, 0.0).client_ids
        assert {d.staleness(number) for d in course.answered} == {0}
        assert (course.training, course.ended) == ((), 10.0 * number)


def test_everybody_is_dispatched_as_often_where_all_are_alike():
    buffer = Buffer(Participation(DRAWS, speeds=speeds_of("equal", DRAWS)), 2, 1)
    counts = Counter(d.client_id for course in rounds_of(buffer, 1500) for d in course.dispatched)
    assert stats.chisquare([counts[c] for c in CLIENTS]).pvalue > 1e-4


def test_a_drop_out_is_known_at_once_and_replaced_and_one_that_leaves_when_it_leaves(trace, speeds):
    dropping = Participation(DRAWS, speeds=speeds, drop_out=0.5)
    course = Buffer(dropping, 2, 2).course(1, STEPS, (), 0.0)
    assert course.gone and all(d.ends in {0.0, *(a.ends for a in course.answered)} for d in course.gone)
    away = availability_of(trace("client,from,to", "0,0,7", "1,0,500", "2,0,500", "3,0,500"), DRAWS)
    course = Buffer(Participation(DRAWS, speeds=speeds, availability=away), 4, 3).course(1, STEPS, (), 0.0)
    assert [(d.client_id, d.ends) for d in course.gone] == [("client-0", 7.0)]
    assert [d.client_id for d in course.answered] == ["client-1", "client-2", "client-3"]


def test_when_nobody_is_left_who_could_fill_the_buffer_the_server_steps_with_less(trace, speeds):
    away = availability_of(trace("client,from,to", "0,0,15", "1,5,50", "2,40,45"), DRAWS)
    one, two, three = rounds_of(Buffer(Participation(DRAWS, speeds=speeds, availability=away), 2, 3), 3)
    assert told(one, 1) == [("client-0", 0), ("client-1", 0)]  # at 10 and at 25; client-2 comes at 40, and leaves
    assert [d.client_id for d in one.gone] == ["client-2"] and one.ended == 45.0
    assert not two.answered and [d.client_id for d in two.gone] == ["client-1"]
    assert three.empty and three.ended == two.ended == 50.0


def test_who_still_trains_is_taken_though_nobody_may_be_dispatched_any_more(speeds):
    buffer = Buffer(Participation(DRAWS, speeds=speeds), 6, 4)
    one = buffer.course(1, STEPS, (), 0.0)
    two = buffer.course(2, {}, one.training, one.ended)
    assert told(two, 2) == [("client-4", 1), ("client-5", 1)] and not two.dispatched
    assert buffer.course(3, {}, two.training, two.ended).empty


def test_a_stale_update_counts_less():
    assert [discount(staleness) for staleness in (0, 1, 3)] == [1.0, 1.0 / math.sqrt(2.0), 0.5]
