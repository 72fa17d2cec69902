"""Estimates of the noise that spends budgets: where calibration begins to search. They decide its speed, nothing else.

>>> estimated = estimate_noise(*(np.array([number]) for number in (2.0, 1e-5, 0.01, 1_000.0, 0.0)))
>>> [round(float(numbers[0]), 3) for numbers in estimated]
[0.959, -2.511]

delta(eps) is an integral over s = t + i w of M(s) e^(-s eps) / (s (s + 1)), M the moment generating function of the
composed loss, for any t > 0 (Alghamdi et al. 2023, arXiv 2306.01907, Theorem 3.1). Near the saddle point few points w
are enough. Newton's method moves t to the saddle point and the noise to where delta is met.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from fedprivacy.accounting.arrays import ComplexArray, FloatArray, IntArray

_MOST_ITERATIONS = 40
_NEAR = 0.2  # largest distance of t from the saddle point, as the log of a mean loss, at which delta is computed
_CLOSE = 3e-5  # share of epsilon by which an estimate may miss it
_MOST_NOISE_MOVE, _MOST_TILT_RISE, _MOST_TILT_FALL = 0.3, 0.5, 0.7  # in logarithms
_LEAST_LEFT = 1e-6  # share of the square of mu
_LARGEST_MU = 1e150  # its square is finite
_LOWEST, _BEYOND = 9.0, 18.0  # deviations of the noise below 0, and in all, that are integrated
_FEWEST_NODES, _MOST_NODES = 32, 1024
_AT_ONCE = 2**13  # nodes of all budgets together
_ALIASES, _DEVIATIONS = 11.0, 14.0  # nats, and deviations of the composed loss, that a period holds
_ROOT_OF_POINTS = 8  # of the integral over w
_POINTS_PER_DEVIATION = 16.0  # of the PLD's grid, whose cells add to the variance


class Estimates(NamedTuple):
    """Noise multipliers for sensitivity 1, and the slopes there of log epsilon by log noise; both shape [budgets]."""

    noise: FloatArray
    slope: FloatArray


class _Setting(NamedTuple):
    """The numbers of each budget; every array has shape [budgets] or [budgets, 1]."""

    epsilon: FloatArray
    delta: FloatArray
    rate: FloatArray
    steps: FloatArray
    square: FloatArray  # of mu of Gaussian mechanisms that cost as much as the past

    def at(self, rows: IntArray) -> _Setting:
        """Select budgets, as columns."""
        return _Setting(*(numbers[rows, None] for numbers in self))


def estimate_noise(
    epsilons: FloatArray, deltas: FloatArray, rates: FloatArray, steps: FloatArray, squares: FloatArray
) -> Estimates:
    """Estimate the noise multiplier with which steps spend epsilon at delta, by the grid of `pld`.

    Args:
        epsilons: in nats, positive and finite, shape [budgets], as all others.
        deltas: in (0, 1).
        rates: sampling rates.
        steps: numbers of Poisson-sampled Gaussians of sensitivity 1.
        squares: mu^2 of Gaussian mechanisms that cost as much as what was executed before; 0 for nothing.

    Returns:
        Estimates, each the same in any company. Where none is found, those of a central limit theorem (see `gdp.mu`).
    """
    setting = _Setting(epsilons, deltas, rates, steps, squares)
    start, slope, tilt = _central(setting)
    log_noise, found = start.copy(), np.zeros(start.shape, dtype=np.bool_)
    before = np.full((2, start.size), np.nan)  # log noise and excess, where delta was computed last
    left = np.arange(start.size)
    for _ in range(_MOST_ITERATIONS):
        if not left.size:
            break
        moving = np.zeros(start.shape, dtype=np.bool_)
        for rows, nodes in _alike(left, np.exp(log_noise[left]), tilt[left]):
            point = _Point.of(setting.at(rows), log_noise[rows, None], tilt[rows, None], nodes)
            fall = point.fall
            with np.errstate(all="ignore"):
                secant = (point.excess - before[1, rows]) / (log_noise[rows] - before[0, rows])
                fall = np.where((secant / fall > 0.25) & (secant / fall < 4.0), secant, fall)
                move = np.clip(np.nan_to_num(-point.excess / fall), -_MOST_NOISE_MOVE, _MOST_NOISE_MOVE)
                turn = -(point.distance + point.by_noise * move) / (point.by_tilt * tilt[rows])
            known = np.isfinite(point.excess)
            before[:, rows[known]] = log_noise[rows[known]], point.excess[known]
            found[rows] = np.abs(point.excess) < _CLOSE * tilt[rows] * epsilons[rows]
            slope[rows] = np.where(found[rows], fall / (tilt[rows] * epsilons[rows]), slope[rows])
            moving[rows] = ~found[rows] & np.isfinite(turn)
            some = moving[rows]
            log_noise[rows[some]] += move[some]
            tilt[rows[some]] *= np.exp(np.clip(turn[some], -_MOST_TILT_FALL, _MOST_TILT_RISE))
        left = np.flatnonzero(moving)
    return Estimates(np.exp(np.where(found, log_noise, start)), slope)


def _central(setting: _Setting) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log noise and slopes by the central limit theorem, and roughly the tilts of saddle points."""
    epsilon, delta, rate, steps, square = setting
    highest = -scipy.special.ndtri(np.minimum(delta, 0.4))
    mu = 2.0 * epsilon / (highest + np.sqrt(highest**2 + 2.0 * epsilon))  # epsilon is about mu^2 / 2 + highest * mu
    left = np.sqrt(np.maximum(mu**2 - square, _LEAST_LEFT * mu**2))
    growth = np.maximum(np.minimum(left / rate, _LARGEST_MU) ** 2 / steps, 1.0 / _LARGEST_MU)
    exponent = np.where(rate == 1.0, growth, np.log1p(growth))
    slope = np.where(rate == 1.0, -1.0, -exponent * (1.0 + 1.0 / growth))
    return -0.5 * np.log(exponent), slope, np.maximum(epsilon / mu**2 - 0.5, 0.0) + 1.0 / mu


def _alike(rows: IntArray, noise: FloatArray, tilt: FloatArray) -> list[tuple[IntArray, int]]:
    """Group budgets whose integrals take as many nodes, and return these numbers; without those that need too many."""
    with np.errstate(over="ignore", divide="ignore"):
        needed = np.log2((_BEYOND + (1.0 + tilt) / noise) / _spacing(noise))
    nodes = 2.0 ** np.ceil(np.fmax(needed, math.log2(_FEWEST_NODES)))
    groups = []
    for one in np.unique(nodes[nodes <= _MOST_NODES]).astype(np.int64).tolist():
        some = rows[nodes == one]
        groups += [(part, one) for part in np.array_split(some, -(-some.size * one // _AT_ONCE))]
    return groups


def _spacing(noise: FloatArray) -> FloatArray:
    return np.minimum(0.5, 0.9 * noise)


class _Point(NamedTuple):
    """Distances of noise and tilts from where they should be; every array has shape [budgets]."""

    distance: FloatArray  # of the tilt from the saddle point, as a log
    by_tilt: FloatArray  # its derivatives by the tilt
    by_noise: FloatArray  # and by log noise
    excess: FloatArray  # log of delta over the wanted delta; NaN far from the saddle point
    fall: FloatArray  # its derivative by log noise

    @classmethod
    def of(cls, setting: _Setting, log_noise: FloatArray, tilt: FloatArray, nodes: int) -> _Point:
        """Integrate over the noise z of one execution, of all budgets, shape [budgets, nodes]."""
        epsilon, delta, rate, steps, square = setting
        inverse = np.exp(-log_noise)
        spacing = _spacing(1.0 / inverse)
        z = spacing * np.arange(nodes) - _LOWEST
        with np.errstate(all="ignore"):
            losses = np.log1p(rate * np.expm1(inverse * (z - 0.5 * inverse)))
            log_density = -0.5 * z**2 + np.log(spacing / math.sqrt(2.0 * math.pi))
            square = square + steps * _variance_of_cells(losses, np.exp(log_density))
            exponents = (1.0 + tilt) * losses + log_density
            highest = exponents.max(axis=1, keepdims=True)
            weights = np.exp(exponents - highest)
            total = _sum(weights)
            weights /= total
            mean = _sum(weights * losses)
            changes = (1.0 - (1.0 - rate) * np.exp(-losses)) * inverse * (inverse - z)  # of losses by log noise
            weighted = weights * (losses - mean)
            change, variance = _sum(weights * changes), steps * _sum(weighted * (losses - mean)) + square
            wanted, reached = epsilon + 1.0 / tilt + 1.0 / (1.0 + tilt), steps * mean + square * (tilt + 0.5)
            distance = np.log(reached / wanted)
            excess = np.full(tilt.shape, np.nan)
            near = np.flatnonzero(np.abs(distance) < _NEAR)
            some = _Setting(epsilon[near], delta[near], rate[near], steps[near], square[near])
            excess[near] = _log_integral(some, tilt[near], variance[near], weights[near], losses[near])
            excess += steps * (highest + np.log(total)) + 0.5 * square * (tilt**2 + tilt) - tilt * epsilon
            excess -= np.log(delta)
            by_tilt = variance / reached + (tilt**-2.0 + (1.0 + tilt) ** -2.0) / wanted
            by_noise = steps * (change + (1.0 + tilt) * _sum(weighted * changes)) / reached
        found = distance, by_tilt, by_noise, excess, steps * (1.0 + tilt) * change
        return cls(*(numbers[:, 0] for numbers in found))


def _sum(numbers: FloatArray) -> FloatArray:
    return np.asarray(numbers.sum(axis=1, keepdims=True))


def _variance_of_cells(losses: FloatArray, density: FloatArray) -> FloatArray:
    """Return what the cells of the grid of `pld` add to the variance of an execution's loss, shape [budgets, 1]."""
    deviations = np.sqrt(_sum(density * (losses - _sum(density * losses)) ** 2))
    return 4.0 ** np.floor(np.log2(deviations / _POINTS_PER_DEVIATION)) / 6.0


def _log_integral(
    setting: _Setting, tilt: FloatArray, variance: FloatArray, weights: FloatArray, losses: FloatArray
) -> FloatArray:
    """Compute log of the integral of M(s) e^(-s eps) / (s (s + 1)) over w / (2 pi), without its factor at w = 0.

    By the trapezoid rule: M(s) is a sum over nodes, of `weights` times e^(i w loss).
    """
    epsilon, delta, _, steps, square = setting
    period = np.maximum((_ALIASES - np.log(delta)) / tilt, _DEVIATIONS * np.sqrt(variance))
    spacing = 2.0 * math.pi / period
    # e^(i w loss) at the first points, and at each point after as many of them: all others are products of two.
    near = _powers(np.exp(1j * spacing * losses))
    far = np.roll(_powers(near[:, -1]), 1, axis=1)
    far[:, 0] = 1.0
    far *= weights[:, None]
    moments = (far @ near.transpose(0, 2, 1)).reshape(tilt.size, _ROOT_OF_POINTS**2)
    s = tilt + 1j * spacing * np.arange(1.0, _ROOT_OF_POINTS**2 + 1.0)
    exponents = steps * np.log(moments) - (s - tilt) * epsilon + 0.5 * square * (s**2 + s - tilt**2 - tilt)
    total = (np.exp(exponents) / (s * (1.0 + s))).real.sum(axis=1, keepdims=True) + 0.5 / (tilt * (1.0 + tilt))
    return np.asarray(np.log(total * 2.0 / period))


def _powers(numbers: ComplexArray) -> ComplexArray:
    """Return powers from the first on, shape [rows, powers, columns]."""
    powers = np.empty((len(numbers), _ROOT_OF_POINTS, numbers.shape[1]), dtype=np.complex128)
    powers[:, 0] = numbers
    for place in range(1, _ROOT_OF_POINTS):
        np.multiply(powers[:, place - 1], numbers, out=powers[:, place])
    return powers
