"""The course of a round: who is there, is asked and answers in time, and when it is over."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from fedprivacy.participation import COHORTS, DROPPED_OUT, TOO_LATE, Draws, Participation, availability_of, speeds_of
from fedprivacy.participation.draws import DrawPurpose
from fedprivacy.participation.timing import DAY
from fedprivacy.runs.settings.configuration import ConfigError

DRAWS = Draws.of("seed 0")
FALSE_ALARM = 1e-4
STEPS = dict.fromkeys(["client-0", "client-1", "client-2", "client-3"], 10)


@pytest.fixture
def trace(tmp_path):
    """Writes a trace, and gives its name."""

    def write(*lines):
        (tmp_path / "trace.csv").write_text("\n".join(lines) + "\n")
        return str(tmp_path / "trace.csv")

    return write


@pytest.fixture
def speeds(trace):
    """Client n takes n + 1 seconds for a local step."""
    return speeds_of(trace("client,seconds", "0,1", "1,2", "client-2,3", "3,4"), DRAWS)


@pytest.mark.parametrize(
    ("settings", "steps", "answering", "missed", "ended"),
    [
        ({}, {}, "0123", "", 140.0),  # with the slowest
        ({"wanted": 2}, {}, "0123", "23", 120.0),
        ({"wanted": 2}, {}, "123", "3", 130.0),  # an answer that cannot be used is none of the first
        ({"deadline": 30.0}, {}, "0123", "3", 130.0),
        ({"deadline": 30.0}, {"client-3": 7}, "0123", "", 130.0),  # fewer steps are done sooner
    ],
)
def test_a_round_ends_with_the_last_answer_that_is_wanted_in_time(speeds, settings, steps, answering, missed, ended):
    participation = Participation(DRAWS, speeds=speeds, **settings)
    closed = participation.closes(1, STEPS | steps, 100.0, {f"client-{n}" for n in answering})
    assert (closed.missed, closed.ended) == ({f"client-{n}": TOO_LATE for n in missed}, ended)


def test_drop_outs_are_as_frequent_as_they_should_be_and_end_a_round_at_once():
    participation = Participation(DRAWS, drop_out=0.3, speeds=speeds_of("equal", DRAWS))
    begun = [participation.begins(n, STEPS, 0.0) for n in range(1, 2001)]
    assert stats.binomtest(sum(map(len, begun)), 4 * 2000, 0.7).pvalue > FALSE_ALARM
    assert len(set(map(frozenset, begun))) == 16  # each by itself
    for number, answering in enumerate(begun, 1):
        closed = participation.closes(number, STEPS, 5.0, answering)
        assert closed.missed == dict.fromkeys(STEPS.keys() - answering, DROPPED_OUT)
        assert closed.ended == (15.0 if answering else 5.0)


@pytest.mark.parametrize("began", [0.0, 100.0])
def test_a_client_that_goes_away_during_training_drops_out_when_it_goes(trace, speeds, began):
    stays = (f"{n},{times}" for n in range(3) for times in ("0,50", "100,1000"))
    away = availability_of(trace("client,from,to", *stays, "3,0,33", "3,100,133"), DRAWS)
    participation = Participation(DRAWS, speeds=speeds, availability=away)
    assert participation.begins(1, STEPS, began) == {"client-0", "client-1", "client-2"}
    closed = participation.closes(1, STEPS, began, {"client-0", "client-1", "client-2"})
    assert (closed.missed, closed.ended) == ({"client-3": DROPPED_OUT}, began + 33.0)


def test_only_who_is_there_is_asked_and_if_nobody_is_the_server_waits(trace):
    times = ("0,10,17", "0,12,13", "0,16,20", "1,15,30", "1,30,40", "0,90,95", "2,15,16", "someone,0,9")
    participation = Participation(DRAWS, availability=availability_of(trace("client,from,to", *times), DRAWS))
    turnouts = {at: participation.turnout(1, STEPS, at) for at in (0.0, 15.0, 16.0, 35.0, 40.0, 95.0)}
    there = {at: (sorted(each.client_ids), each.began) for at, each in turnouts.items()}
    assert there == {
        0.0: (["client-0"], 10.0),
        15.0: (["client-0", "client-1", "client-2"], 15.0),
        16.0: (["client-0", "client-1"], 16.0),  # an end is not included
        35.0: (["client-1"], 35.0),  # lines that touch or overlap are one
        40.0: (["client-0"], 90.0),
        95.0: ([], math.inf),  # nobody comes again
    }
    assert participation.availability.next("client-1", 25.0) == (15.0, 40.0)  # and who works across 30 is not gone


def test_a_day_has_each_client_there_for_its_share_at_an_hour_of_its_own():
    diurnal = availability_of("diurnal:0.25", DRAWS)
    hours = [diurnal.next(f"client-{n}", DAY)[0] % DAY / DAY for n in range(1000)]
    assert stats.kstest(hours, "uniform").pvalue > FALSE_ALARM
    moments = np.linspace(0.0, 3 * DAY, 3000, endpoint=False)
    for client in ("client-0", "client-1", "client-2"):
        intervals = [diurnal.next(client, at) for at in moments]
        assert all(end > at for at, (_, end) in zip(moments, intervals, strict=True))
        assert np.allclose([end - start for start, end in intervals], DAY / 4)
        there = [start <= at for at, (start, _) in zip(moments, intervals, strict=True)]
        assert np.mean(there) == pytest.approx(0.25, abs=0.01)


def test_speeds_are_each_client_s_own_for_good_and_lognormal():
    lognormal = speeds_of("lognormal:0.5:60", DRAWS)
    drawn = [lognormal.seconds(f"client-{n}") for n in range(2000)]
    assert stats.kstest(np.log(np.array(drawn) / 60) / 0.5, "norm").pvalue > FALSE_ALARM
    assert drawn[7] == speeds_of("lognormal:0.5:60", Draws.of("seed 0")).seconds("client-7")


@pytest.mark.parametrize(
    ("setting", "lines", "words"),
    [
        ("speeds", ["client,time", "0,1"], "has no column seconds; its first line must name client, seconds"),
        ("speeds", ["client,seconds", "0,1", "1,-1"], "line 3 of .* has seconds '-1'; give seconds, a number"),
        ("availability", ["client,from,to", "0,1"], "line 2 .* has to None"),
        ("availability", ["client,from,to", "0,9,3"], "0 is there from 9 to 3; swap the two"),
    ],
)
def test_a_wrong_trace_is_refused_by_its_line(setting, lines, words, trace):
    read = {"speeds": speeds_of, "availability": availability_of}[setting]
    with pytest.raises(ConfigError, match=f"^{setting}: .*{words}"):
        read(trace(*lines), DRAWS)


def test_a_trace_of_others_or_of_the_slow_alone_is_refused(trace, speeds):
    with pytest.raises(ConfigError, match=r"speeds names file 'nowhere.csv', which cannot be read: No such file"):
        speeds_of("nowhere.csv", DRAWS)
    with pytest.raises(ConfigError, match="no line for client-4; give one for every client"):
        Participation(DRAWS, speeds=speeds).check(["client-0", "client-4"], 10)
    with pytest.raises(ConfigError, match="deadline is 9, and the fastest client takes 10 simulated seconds"):
        Participation(DRAWS, speeds=speeds, deadline=9.0).check(list(STEPS), 10)
    others = availability_of(trace("client,from,to", "hospital-9,0,1"), DRAWS)
    with pytest.raises(ConfigError, match="has a line for no client of this run"):
        Participation(DRAWS, availability=others).check(list(STEPS), 10)


# Cohorts and draws: every set of clients is as likely as it should be

CLIENTS = [f"client-{n}" for n in range(6)]
ROUNDS = range(1, 6001)


def cohorts(kind, size, clients=CLIENTS, name="seed 0"):
    """The clients that are sampled in each of many rounds."""
    participation = Participation(Draws.of(name), COHORTS[kind](size, len(clients)))
    return [frozenset(participation.turnout(number, clients, 0.0).client_ids) for number in ROUNDS]


def test_of_a_fixed_size_every_set_is_as_likely_as_any_other():
    counted = Counter(cohorts("fixed", 3))
    assert set(counted) == set(map(frozenset, combinations(CLIENTS, 3)))
    assert stats.chisquare(list(counted.values())).pvalue > FALSE_ALARM
    assert set(cohorts("fixed", 4, CLIENTS[:3])) == {frozenset(CLIENTS[:3])}, "all, where there are no more"


def test_poisson_asks_each_client_by_itself():
    sampled = cohorts("poisson", 2)
    sizes = np.bincount([len(cohort) for cohort in sampled], minlength=7)
    expected = len(ROUNDS) * stats.binom(6, 2 / 6).pmf(np.arange(7))
    sizes, expected = [*sizes[:5], sizes[5:].sum()], [*expected[:5], expected[5:].sum()]
    assert stats.chisquare(sizes, expected).pvalue > FALSE_ALARM
    counted = Counter(sampled)  # every set of two, too
    pairs = [counted[frozenset(pair)] for pair in combinations(CLIENTS, 2)]
    assert stats.chisquare(pairs).pvalue > FALSE_ALARM
    assert frozenset() in counted


def test_who_drops_out_has_nothing_to_do_with_who_is_asked():
    """Catches: one draw for both. Whoever is asked has a small number, and would drop out more often, or never."""
    participation = Participation(Draws.of("seed 0"), COHORTS["poisson"](3, len(CLIENTS)), drop_out=0.3)
    asked = {number: participation.turnout(number, CLIENTS, 0.0).client_ids for number in ROUNDS}
    begun = sum(len(participation.begins(number, dict.fromkeys(ids, 1), 0.0)) for number, ids in asked.items())
    assert stats.binomtest(begun, sum(map(len, asked.values())), 0.7).pvalue > FALSE_ALARM


def test_draws_are_uniform_never_0_or_1_and_other_ones_for_another_purpose_or_name():
    drawn = {
        (name, purpose): [Draws.of(name).uniform(purpose, "client-1", n) for n in ROUNDS]
        for name in ("seed 0", "seed 1")
        for purpose in DrawPurpose
    }
    for draws in drawn.values():
        assert stats.kstest(draws, "uniform").pvalue > FALSE_ALARM
        assert min(draws) > 0.0 and max(draws) < 1.0
    assert np.abs(np.corrcoef(list(drawn.values())) - np.eye(len(drawn))).max() < 0.06
    for purpose in DrawPurpose:
        assert drawn["seed 0", purpose][6] == Draws.of("seed 0").uniforms(purpose, ["client-0", "client-1"], 7)[1]
