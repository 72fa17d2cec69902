"""Several runs on one budget: what a run may take of it, and what whoever chooses the next run by the last can gain."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedprivacy.accounting import (
    FILTERS,
    UNLIMITED,
    AdaptiveFilter,
    FixedMechanismFilter,
    FixedThenAdaptiveFilter,
    GaussianFilter,
    MechanismChanged,
    RunLimit,
    pld,
    rdp,
    runs_left,
    shared_noise,
    step_quota,
)
from fedprivacy.accounting.filters import SHARE_FOR_OTHERS
from fedprivacy.accounting.spend import shortage
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.accounting.oracles import gaussian_profile

RELATION = NeighbouringRelation.ADD_OR_REMOVE_ONE
BUDGET = PrivacyBudget(3.0, 1e-5)
EVENT, OTHER = PoissonSampledGaussian(0.1, 4.0), PoissonSampledGaussian(0.1, 3.0)
MIXING = ["fixed-then-adaptive", pytest.param("adaptive", marks=pytest.mark.soak)]


def limit(past=None, spend=1.0, filter="adaptive", budget=BUDGET):
    return RunLimit(FILTERS[filter](budget), past or {}, spend)


def added(past, event, steps):
    return {**past, event: past.get(event, 0) + steps}


def test_a_run_takes_its_spend_and_not_one_step_more():
    before = {OTHER: 50}
    allowed = limit(before).quota(before, EVENT)
    ceiling = pld.epsilon(before, 1e-5) + 1.0
    assert pld.epsilon({**before, EVENT: allowed}, 1e-5) <= ceiling < pld.epsilon({**before, EVENT: allowed + 1}, 1e-5)
    assert limit(before).quota(added(before, EVENT, allowed - 3), EVENT) == 3
    assert limit(before).quota(added(before, EVENT, allowed + 3), EVENT) == 0
    same = {EVENT: 100}  # steps of the same event in earlier runs are not the run's own
    whole = PrivacyBudget(pld.epsilon(same, 1e-5) + 1.0, 1e-5)
    assert limit(same).quota(same, EVENT) == step_quota(EVENT, whole, same)


def test_a_spend_without_a_budget_limits_the_run_all_the_same():
    unlimited = limit(budget=PrivacyBudget(math.inf, 1e-5))
    allowed = unlimited.quota({}, EVENT)
    assert pld.epsilon({EVENT: allowed}, 1e-5) <= 1.0 < pld.epsilon({EVENT: allowed + 1}, 1e-5)
    assert unlimited.noise_multiplier(0.1, 100, RELATION) == limit().noise_multiplier(0.1, 100, RELATION)
    assert limit(budget=PrivacyBudget(math.inf, 1e-5), spend=math.inf).quota({}, EVENT) == UNLIMITED


@pytest.mark.parametrize("filter", MIXING)
def test_no_sequence_of_runs_passes_the_budget_or_a_run_its_spend(filter):
    """Runs with rates, rounds and spends by chance, each with noise of its own; some stop early, some go on."""
    chance, shares, excess = random.Random(5), [], []
    for _ in range(6):
        budget = PrivacyBudget(chance.choice([0.5, 1.0, 3.0, 8.0]), chance.choice([1e-3, 1e-5, 1e-7]))
        past = {}
        for _ in range(5):
            run = limit(past, chance.choice([0.1, 0.3, 1.0]) * budget.epsilon, filter, budget)
            rate, steps = chance.choice([0.01, 0.1, 0.5, 1.0]), chance.choice([5, 40])
            try:
                event = PoissonSampledGaussian(rate, run.noise_multiplier(rate, steps, RELATION))
            except ValueError:  # spent
                break
            allowed = run.quota(past, event)
            past = added(past, event, min(chance.choice([steps // 2, steps, allowed]), allowed))
            excess.append(pld.epsilon(past, budget.delta) - run.before_epsilon - run.spend)
        shares.append(pld.epsilon(past, budget.delta) / budget.epsilon)
    assert max(excess) <= 1e-9
    assert 0.8 < max(shares) <= 1.0  # never above the budget, and of use


def hockey_stick_of_one_step(event, epsilons):
    x = np.linspace(-14.0, 14.0, 10_001)
    q, s = event.sampling_rate, event.noise_multiplier
    ratio = (1 - q) + q * np.exp(x / s - 0.5 / s**2)
    density = norm.pdf(x) * (x[1] - x[0])
    return np.array([density @ np.maximum(ratio - np.exp(epsilon), 0.0) for epsilon in epsilons])


def delta_of_whoever_changes_its_mind(fixed, adaptive):
    """Exact delta, at the budget's epsilon, of an adversary that chooses the filter by what the first steps showed.

    It takes many steps of a plain Gaussian, whose loss so far it knows. Then it goes on with them, as long as the one
    filter allows, or takes one step of another mechanism with the least noise that the other allows: whichever shows
    more.
    """
    epsilon, first = fixed.budget.epsilon, PoissonSampledGaussian(1.0, 300.0)
    taken = int(0.9 * adaptive.quota({}, first))
    other = PoissonSampledGaussian(0.03, adaptive.noise_multiplier(0.03, 1, RELATION, {first: taken}))
    z = np.linspace(-9.0, 9.0, 601)
    mu = math.sqrt(taken) / 300.0
    loss = mu * z + mu**2 / 2
    left = math.sqrt(fixed.quota({}, first) - taken) / 300.0
    stays, goes = gaussian_profile(left, epsilon - loss), hockey_stick_of_one_step(other, epsilon - loss)
    return float(norm.pdf(z) @ np.maximum(stays, goes) * (z[1] - z[0]))


def test_going_from_one_filter_to_another_would_pass_the_budget_had_delta_not_been_divided_before():
    budget = PrivacyBudget(8.0, 1e-5)
    assert delta_of_whoever_changes_its_mind(FixedMechanismFilter(budget), AdaptiveFilter(budget)) > 1.005e-5
    parted = [PrivacyBudget(8.0, share * 1e-5) for share in (1 - SHARE_FOR_OTHERS, SHARE_FOR_OTHERS)]
    kept = delta_of_whoever_changes_its_mind(GaussianFilter(parted[0]), AdaptiveFilter(parted[1]))
    assert 0.97e-5 < kept <= 1e-5
    both, first = FixedThenAdaptiveFilter(budget), PoissonSampledGaussian(1.0, 300.0)
    assert both.quota({}, first) == GaussianFilter(parted[0]).quota({}, first)
    assert both.quota({}, EVENT) == FixedMechanismFilter(parted[0]).quota({}, EVENT)
    mixed = {first: 100, EVENT: 3}
    assert both.quota(mixed, first) == AdaptiveFilter(parted[1]).quota(mixed, first)


def test_a_change_is_for_ever():
    """Back at the first mechanism, the tight quota is gone: else each change would be a choice between two bounds."""
    filter_ = FixedThenAdaptiveFilter(BUDGET)
    bound = AdaptiveFilter(PrivacyBudget(3.0, SHARE_FOR_OTHERS * 1e-5))
    past = {EVENT: 100, OTHER: 1}
    assert filter_.quota(past, EVENT) == bound.quota(past, EVENT) < filter_.quota({EVENT: 101}, EVENT) - 100
    past = added(past, EVENT, filter_.quota(past, EVENT))
    assert rdp.compose(past, [bound.order])[0] <= bound.bound


def test_a_budget_too_small_to_mix_keeps_its_one_mechanism():
    filter_ = FixedThenAdaptiveFilter(PrivacyBudget(0.005, 1e-5))
    event = PoissonSampledGaussian(0.01, 50.0)
    assert filter_.quota({event: 1}, event) > 0
    with pytest.raises(MechanismChanged, match="Keep sampling-rate and noise-multiplier"):
        filter_.quota({event: 1}, PoissonSampledGaussian(0.01, 60.0))


def test_open_noise_after_a_past_is_the_least_that_fits_be_it_the_past_s_own_or_another():
    filter_, past = FixedThenAdaptiveFilter(BUDGET), {EVENT: 20}
    noise = filter_.noise_multiplier(0.1, 200, RELATION, past)
    assert noise < EVENT.noise_multiplier
    assert filter_.quota(past, PoissonSampledGaussian(0.1, noise)) >= 200
    long_past = {EVENT: 600}  # nothing is left for another mechanism, but the tight quota is
    assert filter_.noise_multiplier(0.1, 20, RELATION, long_past) == EVENT.noise_multiplier
    assert filter_.noise_multiplier(0.1, 20, RELATION, past, least=5.0) == 5.0


def test_the_fixed_filter_repeats_its_past_and_nothing_else():
    filter_ = FixedMechanismFilter(BUDGET)
    assert filter_.noise_multiplier(0.1, 10**6, RELATION, {EVENT: 20}) == EVENT.noise_multiplier
    with pytest.raises(MechanismChanged, match="Keep sampling-rate"):
        filter_.noise_multiplier(0.2, 10, RELATION, {EVENT: 20})
    run = limit(filter="fixed-mechanism")  # a first run on a third of the budget
    assert run.quota({}, PoissonSampledGaussian(0.1, run.noise_multiplier(0.1, 50, RELATION))) >= 50


def test_a_budget_is_spent_once_no_earlier_mechanism_fits_another_time():
    kept, coarse, fine = AdaptiveFilter(BUDGET), PoissonSampledGaussian(1.0, 4.0), PoissonSampledGaussian(0.1, 30.0)
    past = {fine: 1, coarse: kept.quota({fine: 1}, coarse)}
    assert kept.quota(past, coarse) == 0 and not RunLimit(kept, past).spent
    assert RunLimit(kept, added(past, fine, kept.quota(past, fine))).spent


@pytest.mark.parametrize("filter_", FILTERS)
def test_a_spent_budget_names_its_filter_the_noise_before_and_noise_that_is_enough(filter_):
    kept, noise = FILTERS[filter_](BUDGET), 0.8
    event = PoissonSampledGaussian(0.01, noise, RELATION)
    spent = RunLimit(kept, {event: kept.quota({}, event)}, client_id="client-0")
    assert spent.spent and not RunLimit(kept, {event: 1}).spent
    with pytest.raises(ValueError, match=r"has spent .* of epsilon 3\.0 at delta 1e-05: not one more step") as refused:
        spent.noise_multiplier(0.01, 10, RELATION)
    words = str(refused.value)
    assert f"noise multiplier {noise}" in words and f"the {filter_} filter" in words and "larger epsilon" in words
    helps = re.search(r"A noise-multiplier of ([\d.]+) allows all 10 steps", words)
    assert bool(helps) is (filter_ == "adaptive")
    if helps:
        assert spent.quota(spent.before, PoissonSampledGaussian(0.01, float(helps[1]), RELATION)) >= 10


def test_clients_that_have_spent_differently_share_the_noise_of_those_that_can_join_every_round():
    new, half, nearly = limit(), limit({OTHER: 100}), limit({OTHER: 210})
    assert new.whole and half.whole and not nearly.whole
    each = [one.noise_multiplier(0.1, 50, RELATION) for one in (new, half, nearly)]
    assert shared_noise([new, half, nearly], 0.1, 50, RELATION) == max(each[:2])
    assert shared_noise([nearly], 0.1, 50, RELATION) == each[2]
    spent = limit({EVENT: AdaptiveFilter(BUDGET).quota({}, EVENT)})
    assert shared_noise([spent, new], 0.1, 50, RELATION) == each[0]


def test_the_runs_that_are_left_are_those_that_can_be_run():
    """A last part of the budget, smaller than a spend, allows no such run; another one with more noise it would."""
    first = limit(spend=0.9)
    noise = first.noise_multiplier(0.1, 50, RELATION)
    left = runs_left(first, PoissonSampledGaussian(0.1, noise), 50, solved_anew=True)
    past, done = {PoissonSampledGaussian(0.1, noise): 50}, 0
    while True:
        run = limit(past, 0.9)
        if not run.whole or run.spent:
            break
        event = PoissonSampledGaussian(0.1, run.noise_multiplier(0.1, 50, RELATION))
        assert run.quota(past, event) >= 50
        past, done = added(past, event, 50), done + 1
    assert left == done == 2
    assert runs_left(limit(spend=math.inf), EVENT, 50) == AdaptiveFilter(BUDGET).quota({}, EVENT) // 50 - 1


SHORT = {  # a filter, the share of its quota that was executed, the next noise multiplier; the bound, and the remedy
    "all of it": ("fixed-then-adaptive", 1.0, 4.0, "further ones would exceed the budget", "No noise helps"),
    "another noise": ("fixed-then-adaptive", 0.7, 3.0, "2% of delta and an RDP bound", "noise multiplier, 4, allows"),
    "one mechanism": ("fixed-mechanism", 0.7, 3.0, "for one mechanism alone", "noise multiplier, 4, allows"),
    "an RDP bound": ("adaptive", 1.0, 4.0, "lies above the epsilon that is read", "A noise-multiplier of"),
}


@pytest.mark.parametrize("case", SHORT)
def test_the_reason_names_filter_and_noise_and_what_helps_does_help(case):
    name, share, noise, bound, remedy = SHORT[case]
    kept = FILTERS[name](BUDGET)
    past = {EVENT: int(share * kept.quota({}, EVENT))}
    words = shortage(kept, past, replace(EVENT, noise_multiplier=noise), 40)
    assert words.startswith(f"With noise multiplier {noise:g} the {name} filter allows no step more: ")
    assert bound in words and remedy in words
    if found := re.search(r"A noise-multiplier of ([\d.]+) allows 40 steps", words):
        enough = float(found[1])
        assert kept.quota(past, replace(EVENT, noise_multiplier=enough)) >= 40
        assert kept.quota(past, replace(EVENT, noise_multiplier=enough - 0.02)) < 40
    elif found := re.search(r"allows (\d+) more steps\.$", words):
        assert kept.quota(past, EVENT) == int(found[1]) > 0
