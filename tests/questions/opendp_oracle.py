"""OpenDP's best offers at a given privacy, as functions of records: the oracle of the tests, and never imported by us.

Privacy is zero-concentrated differential privacy when one record is added or removed: a Gaussian of noise multiplier
sigma has rho = 1 / (2 sigma^2) (Bun and Steinke 2016).
"""

import math

import numpy as np
import opendp.prelude as dp

dp.enable_features("contrib")

ZCDP = dp.zero_concentrated_divergence()
WHOLE = (dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance())
REAL = (dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance())


def rho(sigma):
    return 1.0 / (2.0 * sigma**2)


def gaussian(query, sigma, d_in=1):
    """A query with discrete Gaussian noise, and the noise's standard deviation."""

    def noisy(scale):
        return query >> dp.m.then_gaussian(scale)

    scale = dp.binary_search_param(noisy, d_in=d_in, d_out=rho(sigma), T=float)
    return noisy(scale), scale


def count(sigma):
    return gaussian(WHOLE >> dp.t.then_count(), sigma)


def total(low, high, sigma):
    """The sum of whole numbers: of real ones between -60 and 60, OpenDP takes twice the sensitivity."""
    return gaussian(WHOLE >> dp.t.then_clamp((low, high)) >> dp.t.then_sum(), sigma)


def histogram(categories, sigma):
    query = WHOLE >> dp.t.then_count_by_categories(list(range(categories)), null_category=False, MO=dp.L2Distance[int])
    return gaussian(query, sigma)


def mean(low, high, size, sigma):
    """Where the number of records is public: one record is replaced by another."""
    bounded = dp.atom_domain(T=float, nan=False, bounds=(low, high))
    sized = (dp.vector_domain(bounded, size=size), dp.symmetric_distance())
    return gaussian(sized >> dp.t.then_mean(), sigma, d_in=2)


def quantile(probability, low, high, points, sigma):
    """One quantile among the same points by the exponential mechanism."""
    candidates = np.linspace(low, high, points + 1)[1:-1].tolist()

    def chosen(scale):
        return dp.m.make_private_quantile(*REAL, ZCDP, candidates=candidates, alpha=probability, scale=scale)

    return dp.binary_search_chain(chosen, d_in=1, d_out=rho(sigma))


def root_mean_square(values):
    return math.sqrt(float(np.mean(np.square(values))))
