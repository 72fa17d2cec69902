"""A mechanism takes no clipping norm for which its noise would not be what it says."""

import math

import pytest

from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.values.events import PoissonSampledGaussian

EVENT = PoissonSampledGaussian(sampling_rate=0.5, noise_multiplier=1.0)


@pytest.mark.parametrize("clipping_norm", [0.0, -1.0, 0.5e-6, 2e6, math.inf, math.nan])
def test_a_clipping_norm_that_no_noise_fits_is_refused(clipping_norm):
    """Catches: a norm of zero or below, whose noise is none; one so large that float32 holds no sum."""
    with pytest.raises(ValueError, match="clipping_norm"):
        SampledGaussianSum(EVENT, clipping_norm)


@pytest.mark.parametrize("clipping_norm", [1e-6, 1.0, 1e6])
def test_the_smallest_and_the_largest_clipping_norm_are_taken(clipping_norm):
    assert SampledGaussianSum(EVENT, clipping_norm).clipping_norm == clipping_norm
