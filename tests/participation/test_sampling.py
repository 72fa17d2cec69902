"""Cohorts and draws: every set of clients is as likely as it should be. False alarms: at most one in 10,000."""

from collections import Counter
from itertools import combinations

import numpy as np
from scipy import stats

from fedprivacy.participation import COHORTS, Draws, Participation
from fedprivacy.participation.draws import DrawPurpose

CLIENTS = [f"client-{n}" for n in range(6)]
ROUNDS = range(1, 6001)
FALSE_ALARM = 1e-4


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
