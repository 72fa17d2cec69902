"""An attack is called a breach if it finds more than is allowed, beyond what is chance."""

import numpy as np

from benchmarks.attacks.limits import breaches
from benchmarks.attacks.roc import Roc
from fedprivacy.values.events import PoissonSampledGaussian


def test_an_attack_that_is_as_good_as_allowed_breaches_nothing_and_a_better_one_does():
    rng = np.random.default_rng(3)
    history = {PoissonSampledGaussian(1.0, 2.0): 1}  # N(1/2, 1) against N(0, 1)
    others = rng.normal(size=20_000)
    assert breaches(Roc.of(rng.normal(size=20_000) + 0.5, others), history) == ()
    assert breaches(Roc.of(rng.normal(size=20_000) + 1.0, others), history) == (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    assert breaches(Roc.of(rng.normal(size=20_000) + 1.0, others), {PoissonSampledGaussian(1.0, 0.9): 1}) == ()
