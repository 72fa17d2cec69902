"""Lower bounds on epsilon, from the numbers of an attack: counts of guesses, or readings of releases.

Each is a confidence bound: on a mechanism that keeps what it promises it exceeds the true epsilon with a probability of
at most 1 - confidence. They differ in what they assume and so in how close they come:

| bound | from | assumes of the mechanism | of the attack |
|---|---|---|---|
| `clopper_pearson_epsilon` | false and true positives | nothing | independent scores |
| `one_run_epsilon` | right guesses about one run | nothing | fair, independent coins decide which canaries are in |
| `f_dp_epsilon` | the same | a family of trade-off functions | the same |
| `per_step_epsilon` | readings of single steps | Gaussian noise, Poisson samples | the length of canaries is the same |

Pure functions of numbers: numpy, scipy and our own accounting; no model, no message.

**False positives and false negatives** (Jagielski et al. 2020; Nasr et al. 2021, 2023). Whoever decides, from what an
(epsilon, delta)-private mechanism releases, whether a record was in, has error rates with

    1 - FNR <= e^epsilon FPR + delta    and    1 - FPR <= e^epsilon FNR + delta

(Kairouz, Oh, Viswanath 2015). Rates are known from counts: their upper ends are the binomial ones of Clopper and
Pearson (1934), which are exact.

**Guesses about many canaries of one run** (Steinke, Nasr, Jagielski 2023, arXiv 2305.08846). A fair coin decides for
each of m canaries, independently, whether it is in. Who sees what the mechanism releases guesses r of the coins and
abstains from the others; v guesses are right. Theorem 5.2: were the mechanism (epsilon, delta)-private for each canary,
then

    Pr[at least v right] <= F(v) + 2 m delta max over i = 1 .. v of (F(v - i) - F(v)) / i,

F(v) = Pr[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v]. Nothing is assumed of the mechanism, and canaries may disturb
one another: that costs power only.

**The same guesses and a trade-off function** (Mahloujifar, Melis, Chaudhuri 2024, arXiv 2410.22235; their algorithm 3,
for coins). They refute a whole trade-off function instead of one (epsilon, delta). Let p_k be the probability of
exactly k right guesses out of r about m canaries. Take one canary at random and turn its coin over: where its guess was
right and k were right in all, k - 1 are right now. A mechanism under which an event of probability y has at least
`least(y)` on a neighbouring shard therefore keeps, for every i,

    sum over k >= i of (r - k) p_k / m  >=  least(sum over k > i of k p_k / m).

From the claim that v or more are right with probability a, these inequalities give the least that all probabilities
can add up to, from k = v down to 0. Where that is more than 1, the probability was below a: the claim is refuted.

**Readings of single steps**, by the accountant (the white-box attack of Nasr et al. 2023). The server sees every step
(arXiv 2302.07956). A reading is what a release holds along a direction that the auditor chose, over the clipping norm.
Where k canaries of that direction joined the step, the mechanism promises

    y = b k + noise,    noise ~ N(0, s^2),    b <= 1,    s = noise multiplier,

so one record moves a reading by mu = b / s deviations. From all readings comes a lower bound on mu, and from it, by the
accountant, on the epsilon of T steps with sampling rate q: a record whose gradient has that length and direction in
every step makes exactly the releases of the Poisson-sampled Gaussian with noise 1 / mu.

The bound on mu is exact. Regressing y on k, with a constant, the slope's t has a noncentral t distribution with n - 2
degrees of freedom and noncentrality mu sqrt(S), S the sum of squares of k about its mean (for k = 0, 1 it is the
two-sample t of readings with the canary against readings without it). The bound is the noncentrality under which so
large a t has probability 1 - confidence. Who joined is the sampler's doing and independent of the noise, so the k are
fixed numbers here.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtrc, betaincinv, expit, gammainccinv, gammaincinv, ndtr, ndtri

from fedprivacy.accounting import pld
from fedprivacy.accounting.gdp import gaussian_epsilon
from fedprivacy.accounting.histories import check_delta
from fedprivacy.values.events import PoissonSampledGaussian

_CHOOSING = 4  # one of so many scores helps to choose the threshold
_THRESHOLDS = 201  # candidates: quantiles of the scores that choose

SHARE = 0.03
"""Share of the canaries that is guessed. Fixed before any is looked at: near the best for epsilons from 1 to 8."""

_LARGEST_EPSILON = 100.0  # epsilon, in nats; beyond, nothing is asked
_LARGEST_MU = 40.0
_HALVINGS = 40  # of the interval in which a bound is sought

Least = Callable[[float], float]
"""The least probability, on a neighbouring shard, of an event with a given probability: a trade-off function."""

_NO_NOISE = 1e-12  # share of the sum of squares that rounding may leave


def check_confidence(confidence: float) -> None:
    """Raises `ValueError` unless it is a probability in (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; choose a probability in (0, 1).")


def check_guesses(correct: int, guesses: int, canaries: int) -> None:
    """Raises `ValueError` unless so many of so many guesses about so many canaries can be right."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} of {guesses} guesses about {canaries} canaries cannot be right.")


def last_rejected(rejected: Callable[[float], bool], high: float) -> float:
    """A parameter at which a claim is rejected, next to one at which it is not; 0 where nothing is rejected.

    Claims weaken from 0 to `high`: a mechanism that keeps one keeps all after it. So every rejected parameter is a
    lower bound on the true one, even if rejections are not in order: a smallest p-value over all weaker claims is one.

    Args:
        rejected: whether the claim with this parameter is.
        high: the weakest claim.
    """
    low = 0.0
    if not rejected(low):
        return low
    if rejected(high):
        return high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def largest_rate(errors: int, trials: int, risk: float) -> float:
    """The rate of errors that is not exceeded, but for a probability of `risk` (Clopper, Pearson 1934).

    The largest p with Pr[Binomial(trials, p) <= errors] >= risk.
    """
    return 1.0 if errors >= trials else float(betaincinv(errors + 1, trials - errors, 1.0 - risk))


def clopper_pearson_epsilon(
    false_positives: int, absent: int, false_negatives: int, present: int, *, delta: float, confidence: float
) -> float:
    """Lower bound on epsilon at `delta` from the errors of a test that was fixed before it was tried.

    The largest of log((1 - delta - FPR) / FNR) and log((1 - delta - FNR) / FPR), with upper ends for both rates, each
    of which fails with half of 1 - confidence.

    Assumptions: the trials are independent, and the test was chosen without looking at them; see
    `clopper_pearson_of_scores`.

    Args:
        false_positives: how many absent records were held to be in.
        absent: how many absent records were tried.
        false_negatives: how many present records were held to be absent.
        present: how many present records were tried.
        delta: probability in [0, 1).
        confidence: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0.
    """
    check_confidence(confidence)
    risk = 0.5 * (1.0 - confidence)
    fpr, fnr = largest_rate(false_positives, absent, risk), largest_rate(false_negatives, present, risk)
    return max(0.0, _log_ratio(1.0 - delta - fpr, fnr), _log_ratio(1.0 - delta - fnr, fpr))


def clopper_pearson_of_scores(
    present: NDArray[np.float64], absent: NDArray[np.float64], delta: float, confidence: float
) -> float:
    """Lower bound on epsilon at `delta` from the scores of canaries.

    One score of four helps to choose a threshold, the one with which these have the largest bound; the others try it.
    So no correction is needed for the choice.

    Assumptions: scores are independent, those of present canaries of one distribution and those of absent ones of
    another, in an order that knows nothing of them.

    Args:
        present: scores of canaries that were in, shape [present]; larger ones speak for it.
        absent: scores of canaries that were not, shape [absent].
        delta: probability in [0, 1).
        confidence: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0; 0 where there are no four scores of each.
    """
    if min(present.size, absent.size) < _CHOOSING:
        return 0.0
    choosing = np.concatenate([present[::_CHOOSING], absent[::_CHOOSING]])

    def bound(threshold: float, left_in: NDArray[np.float64], left_out: NDArray[np.float64]) -> float:
        wrong, lost = int((left_out >= threshold).sum()), int((left_in < threshold).sum())
        return clopper_pearson_epsilon(wrong, left_out.size, lost, left_in.size, delta=delta, confidence=confidence)

    candidates = np.unique(np.quantile(choosing, np.linspace(0.0, 1.0, _THRESHOLDS)))
    chosen = max(candidates, key=lambda threshold: bound(threshold, present[::_CHOOSING], absent[::_CHOOSING]))
    trying = (np.delete(scores, slice(None, None, _CHOOSING)) for scores in (present, absent))
    return bound(chosen, *trying)


def _log_ratio(chance: float, error: float) -> float:
    return math.log(chance / error) if chance > 0.0 else 0.0


def one_run_p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of so many right guesses, were the mechanism (epsilon, delta)-private.

    Args:
        correct: v, from 0 to r.
        guesses: r, from 0 to m.
        canaries: m.
        epsilon: in nats, >= 0.
        delta: probability in [0, 1].

    Raises:
        ValueError: the counts are impossible.
    """
    check_guesses(correct, guesses, canaries)
    chance = float(expit(epsilon))
    few = _at_least(np.array([correct]), guesses, chance)[0]
    if delta == 0.0 or correct == 0:
        return float(few)
    fewer = np.arange(1, correct + 1)
    steepest = ((_at_least(correct - fewer, guesses, chance) - few) / fewer).max()
    return float(min(1.0, few + 2.0 * canaries * delta * steepest))


def _at_least(counts: NDArray[np.int_], guesses: int, chance: float) -> NDArray[np.float64]:
    """F: the probability of at least so many right guesses, each right with `chance`."""
    return np.asarray(np.where(counts > 0, bdtrc(np.maximum(counts, 1) - 1.0, guesses, chance), 1.0))


def one_run_epsilon(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at `delta`, in nats: what is larger, the guesses do not refute.

    Without delta and with every guess right it is log(a / (1 - a)), a the r-th root of 1 - confidence. Assumption: how
    many are count_right_guesses was decided before looking at who was in; see `count_right_guesses`.

    Raises:
        ValueError: the counts are impossible, or confidence is outside (0, 1).
    """
    check_confidence(confidence)
    return last_rejected(
        lambda e: one_run_p_value(correct, guesses, canaries, e, delta) <= 1.0 - confidence, _LARGEST_EPSILON
    )


def count_right_guesses(
    scores: NDArray[np.float64], members: NDArray[np.bool_], share: float = SHARE
) -> tuple[int, int, int]:
    """Right guesses, guesses and canaries, where those with the largest scores are guessed to be in.

    Args:
        scores: from the releases alone, larger where a canary seems to be in, shape [canaries].
        members: what the coins said, shape [canaries].
        share: of the canaries that is guessed, decided before looking at who was in.
    """
    guesses = max(1, int(share * scores.size))
    largest = np.argsort(-scores, kind="stable")[:guesses]
    return int(members[largest].sum()), guesses, scores.size


def gaussian_trade_off(mu: float) -> Least:
    """Return the trade-off function of N(mu, 1) against N(0, 1): Phi(Phi^-1(chance) - mu) (Dong, Roth, Su 2022)."""
    return lambda chance: float(ndtr(ndtri(chance) - mu))


def refutes_claim(correct: int, guesses: int, canaries: int, least: Least, risk: float) -> bool:
    """Return whether so many right guesses, or more, have a probability below `risk` under the claim.

    Args:
        correct: v, from 0 to r.
        guesses: r, from 0 to m.
        canaries: m.
        least: the trade-off function that the mechanism is said to have, or a worse one.
        risk: level of the test.

    Raises:
        ValueError: the counts are impossible.
    """
    check_guesses(correct, guesses, canaries)
    right, wrong = risk * correct / canaries, risk * (guesses - correct) / canaries
    whole = guesses / canaries
    for k in range(correct - 1, -1, -1):
        more = max(wrong, least(right))
        right += k / (guesses - k) * (more - wrong)
        wrong = more
        if right + wrong > whole:
            return True
    return False


def least_mu(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """Lower bound on the mu of a mechanism whose trade-off function is a Gaussian one; 0 where none is refuted.

    Raises:
        ValueError: the counts are impossible, or confidence is outside (0, 1).
    """
    check_confidence(confidence)
    risk = 1.0 - confidence
    return last_rejected(
        lambda mu: refutes_claim(correct, guesses, canaries, gaussian_trade_off(mu), risk), _LARGEST_MU
    )


def f_dp_epsilon(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at `delta`, in nats, by the exact epsilon of the Gaussian mechanism with `least_mu`.

    Assumption: the trade-off function is Gaussian. Without sampling it is. With Poisson samples it is in the limit of
    many steps, and before that the Gaussian which rates of errors of some percent show has a smaller epsilon at a small
    delta than the mechanism: what is lost by the assumption is tightness.

    Raises:
        ValueError: as `least_mu`, or delta is outside (0, 1).
    """
    check_delta(delta)
    return gaussian_epsilon(least_mu(correct, guesses, canaries, confidence), delta)


def _rule() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights of Gauss's rule on (0, 1/2), in panels: dense where probabilities are small."""
    ends = np.array([0.0, *10.0 ** np.arange(-12.0, 0.0), 0.5])
    nodes, weights = leggauss(24)
    halves = 0.5 * np.diff(ends)[:, None]
    return (ends[:-1, None] + halves * (1.0 + nodes)).ravel(), (halves * weights).ravel()


_CHANCES, _WEIGHTS = _rule()


@dataclass(frozen=True, slots=True)
class Readings:
    """Sums over readings y and over how many canaries k each holds; those of several steps are added.

    Attributes:
        number: n.
        canaries: sum of k.
        canaries_squared: sum of k^2.
        values: sum of y.
        values_squared: sum of y^2.
        products: sum of k y.
    """

    number: int = 0
    canaries: float = 0.0
    canaries_squared: float = 0.0
    values: float = 0.0
    values_squared: float = 0.0
    products: float = 0.0

    @classmethod
    def of(cls, values: NDArray[np.float64], canaries: NDArray[np.float64]) -> Readings:
        """Return statistics of readings and of the signed count of canaries that joined each; both of shape [readings].

        Raises:
            ValueError: a reading is not finite.
        """
        if not np.isfinite(values).all():
            raise ValueError("A reading is not finite: what was released cannot be read.")
        return cls(
            values.size,
            float(canaries.sum()),
            float(canaries @ canaries),
            float(values.sum()),
            float(values @ values),
            float(canaries @ values),
        )

    def __add__(self, other: Readings) -> Readings:
        return Readings(*map(operator.add, astuple(self), astuple(other)))

    @property
    def spread(self) -> float:
        """S, the sum of squares of k about its mean."""
        return self.canaries_squared - self.canaries**2 / max(self.number, 1)

    @property
    def slope(self) -> float:
        """Movement of a reading by a canary that joined: least squares, in clipping norms; 0 if k never varies."""
        return (self.products - self.canaries * self.values / self.number) / self.spread if self.spread > 0.0 else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in clipping norms; 0 where only rounding is left."""
        whole = self.values_squared - self.values**2 / self.number
        left = whole - self.slope**2 * self.spread
        return math.sqrt(left / (self.number - 2)) if left > _NO_NOISE * self.values_squared else 0.0


def least_shift(readings: Readings, confidence: float) -> float:
    """Lower bound on mu, by how many deviations of the noise one record moves a release.

    Formal guarantee: where the readings are as the module says, it exceeds mu with probability 1 - confidence.

    Returns:
        mu >= 0; 0 for fewer than three readings, and infinite where there is no noise at all.
    """
    check_confidence(confidence)
    if readings.number < 3 or readings.slope <= 0.0:
        return 0.0
    if readings.deviation == 0.0:
        return math.inf
    root = math.sqrt(readings.spread)
    t = readings.slope * root / readings.deviation
    return max(0.0, _least_noncentrality(t, readings.number - 2, confidence)) / root


def _least_noncentrality(t: float, degrees: int, confidence: float) -> float:
    """The noncentrality under which a noncentral t exceeds `t` with probability 1 - confidence.

    Solves E[Phi(t sqrt(V / degrees) - noncentrality)] = confidence, V chi-square, by Gauss's rule over quantiles of V.
    (scipy's own function has no value for the noncentralities of readings with little noise.)

    Args:
        t: positive.
        degrees: of freedom, at least 1.
        confidence: probability in (0, 1).
    """
    below, above = gammaincinv(0.5 * degrees, _CHANCES), gammainccinv(0.5 * degrees, _CHANCES)
    roots = t * np.sqrt(np.stack([below, above]) / (0.5 * degrees))
    far = 1.0 - float(ndtri(0.5 * min(confidence, 1.0 - confidence)))

    def excess(noncentrality: float) -> float:
        return float((ndtr(roots - noncentrality) @ _WEIGHTS).sum()) - confidence

    return float(brentq(excess, roots.min() - far, roots.max() + far, xtol=1e-10 * max(t, 1.0)))


def per_step_epsilon(mu: float, event: PoissonSampledGaussian, steps: int, delta: float) -> float:
    """The epsilon, at `delta`, of so many steps in which one record moves a release by `mu` deviations.

    It is `pld.epsilon`, of the accountant that states the upper bound: the two are in order whenever the noises are.

    Assumptions: the noise is Gaussian and independent from step to step, and records join with the event's sampling
    rate, independently.

    Args:
        mu: >= 0, may be infinite.
        event: of each step; its own noise multiplier is not believed.
        steps: how often it is executed.
        delta: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0; infinite where there is no noise at all.
    """
    if mu <= 1.0 / sys.float_info.max:
        return 0.0
    if math.isinf(mu):
        return math.inf
    noisy = PoissonSampledGaussian(event.sampling_rate, event.sensitivity / mu, event.relation)
    return pld.epsilon({noisy: steps}, delta)
