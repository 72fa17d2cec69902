"""Standings: what a ledger holds of a run's clients, and the noise with which a run that was stopped goes on."""

import itertools

from fedprivacy.ledger import Allowance, Ledger
from fedprivacy.runs.plans.noise import RunNoise, Standing, standings_on
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

ALLOWANCE = Allowance(PrivacyBudget(8.0, 1e-5), "adaptive")


def test_a_run_goes_on_with_the_most_noise_that_it_has_charged_at_a_rate(tmp_path):
    """Only a client's guard can have reported several: a run that went on with less would change its mechanism."""
    noises = (2.0, 1.0, 1.5)
    for order in itertools.permutations(noises):
        events = {PoissonSampledGaussian(0.1, noise): 1 for noise in order} | {PoissonSampledGaussian(0.2, 7.0): 4}
        standing = Standing({PoissonSampledGaussian(0.1, 9.0): 3}, ALLOWANCE, charged=events)
        assert [standing.charged_at(rate) for rate in (0.1, 0.2, 0.3)] == [2.0, 7.0, None]
    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.open_budgets({"a": ALLOWANCE})
        claims = {("stopped", PoissonSampledGaussian(0.1, noise)): 2 for noise in noises}
        ledger.reconcile("a", claims | {("other", PoissonSampledGaussian(0.1, 9.0)): 3})
        standing = standings_on(ledger, "stopped", {"ward": "a"}, lambda *_: ALLOWANCE)["ward"]
    assert standing.charged_at(0.1) == 2.0 and standing.past == {PoissonSampledGaussian(0.1, 9.0): 3}
    assert standing.charged == {event: steps for (run_id, event), steps in claims.items()}


def test_the_bounds_of_a_run_s_noise_are_those_of_the_clients_that_come():
    noise = RunNoise(shared=2.0, own={"a": 1.0, "b": 5.0})
    assert noise.bounds(["a", "b", "c"]) == (1.0, 5.0) and RunNoise(9.0, {"a": 1.0}).bounds(["a", "c"]) == (1.0, 9.0)
    assert RunNoise(9.0, {"a": 1.0}).bounds(["a"]) == (1.0, 1.0) and RunNoise(2.0, {}).bounds(["a"]) == (2.0, 2.0)
    assert RunNoise(None, {"a": 1.0}).bounds(["a"]) is None
