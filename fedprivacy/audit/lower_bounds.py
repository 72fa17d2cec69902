"""Lower bounds on what a training loses, from attacks on the client that really runs, as the server that sees it.

`per_step` attacks measure by how many deviations of the noise one record moves a release, and have the accountant
compose that over the run. `one_run` attacks guess, from all releases of a run, which of many canaries were in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.accounting.views import View
from fedprivacy.audit import canaries
from fedprivacy.audit.bounds import (
    Readings,
    clopper_pearson_of_scores,
    count_right_guesses,
    f_dp_epsilon,
    least_shift,
    one_run_epsilon,
    per_step_epsilon,
)
from fedprivacy.audit.canaries import OwnRecord
from fedprivacy.audit.findings import LowerBound
from fedprivacy.audit.real_client import AuditedTraining, new_parameters
from fedprivacy.gradients import trainable_parameters
from fedprivacy.tasks import Shard, Task

PER_STEP = "per-step-gaussian"
LAYERS = f"{PER_STEP}-layers"
OPPOSING = f"{PER_STEP}-opposing"
SPREAD = f"{PER_STEP}-spread"
DENSE = f"{PER_STEP}-dense"
OWN_RECORD = f"{PER_STEP}-own-record"
OWN_RECORD_TRAINED = f"{OWN_RECORD}-trained"
CLOPPER_PEARSON, ONE_RUN, F_DP = "clopper-pearson", "one-run", "one-run-f-dp"
NAMES = (PER_STEP, LAYERS, OPPOSING, SPREAD, DENSE, OWN_RECORD, CLOPPER_PEARSON, ONE_RUN, F_DP)
"""Names of all bounds, in the order in which they are found; where there is a trained model, there is one more."""

MOST_STEPS = 100
"""Maximum number of steps that one attack asks of a client."""

_MOST_GUESSED = 5_000  # canaries of one run

_GAUSSIAN = "The noise is Gaussian and the same in every step (noise); records join each step as claimed (sampling)"
_BUILT_IN = "canaries whose gradients are the records, in layers of the model's sizes"
_CLIPPED = "a record's part of a sum does not depend on the others (replay)"
_COINS = "A fair coin of the auditor decides for each canary whether it is in"

_FAMILIES = {OPPOSING: canaries.opposing, SPREAD: canaries.spread, DENSE: canaries.dense}


def lower_bounds(
    task: Task,
    shard: Shard | None,
    training: AuditedTraining,
    *,
    seed: int,
    confidence: float = 0.95,
    device: str = "cpu",
    trained: Mapping[str, NDArray[Any]] | None = None,
) -> tuple[LowerBound, ...]:
    """All bounds, each with a confidence so high that all hold together with probability `confidence`.

    Args:
        task: whose model and loss are audited.
        shard: records of the task, for the bound by one of its own; None: there are none to ask with.
        training: what is claimed.
        seed: of the auditor's choices and of the clients' keys.
        confidence: that all bounds hold.
        device: where the client trains, as in a run's configuration.
        trained: the model that the training came to, by name, at which the task's own records are tried, too; the
            gradients of all other canaries are the same at any model. None: there is none.

    Raises:
        RuntimeError: the client sent no update.
    """
    each = 1.0 - (1.0 - confidence) / (len(NAMES) + (trained is not None))
    sizes = canaries.scaled_down([values.numel() for values in trainable_parameters(task.model()).values()])
    found = list(per_step(sizes, training, seed=seed, confidence=each, device=device))
    if shard is not None:
        found += own_records(task, shard, training, seed=seed, confidence=each, device=device, trained=trained)
    found += one_run_bounds(sizes, training, seed=seed, confidence=each, device=device)
    return tuple(found)


def per_step(
    sizes: Sequence[int],
    training: AuditedTraining,
    *,
    seed: int,
    confidence: float,
    families: Iterable[str] = (OPPOSING, SPREAD, DENSE),
    device: str = "cpu",
) -> tuple[LowerBound, ...]:
    """Bounds by single steps, with built-in canaries: of one coordinate, by layer, and of further families.

    Args:
        sizes: parameters of each layer.
        training: what is claimed.
        seed: of the auditor's choices and of the client's key.
        confidence: of each bound.
        families: which others.
        device: where the client trains, as in a run's configuration.

    Raises:
        RuntimeError: the client sent no update.
    """
    rng = np.random.default_rng([seed, 0])
    planted, ends = canaries.one_coordinate(sizes, training, rng), np.cumsum(sizes)[:-1]
    by_layer = [Readings() for _ in sizes]
    for values, joined in planted.observe(training, MOST_STEPS, seed=seed, device=device):
        layers = zip(by_layer, np.split(values, ends), np.split(joined, ends), strict=True)
        by_layer = [so_far + Readings.of(*step) for so_far, *step in layers]
    found = [_gaussian_bound(PER_STEP, _mu([sum(by_layer, Readings())], confidence), training, confidence, _BUILT_IN)]
    if len(sizes) > 1:
        found.append(_gaussian_bound(LAYERS, _mu(by_layer, confidence), training, confidence, _BUILT_IN))
    for name in families:
        seen = _FAMILIES[name](sizes, training, rng).observe(training, MOST_STEPS, seed=seed, device=device)
        readings = sum((Readings.of(*step) for step in seen), Readings())
        found.append(_gaussian_bound(name, _mu([readings], confidence), training, confidence, _BUILT_IN))
    return tuple(found)


def own_records(
    task: Task,
    shard: Shard,
    training: AuditedTraining,
    *,
    seed: int,
    confidence: float,
    device: str = "cpu",
    trained: Mapping[str, NDArray[Any]] | None = None,
) -> tuple[LowerBound, ...]:
    """Bounds by single steps with a record of the task itself: at a new model, and at a trained one if there is one.

    A record's gradient may be quite another when the model has learnt. There is no bound where no gradient is finite.

    Raises:
        RuntimeError: the client sent no update.
    """
    found = [
        own_record(task, shard, training, seed=seed, confidence=confidence, device=device, trained=model)
        for model in ((None,) if trained is None else (None, trained))
    ]
    return tuple(bound for bound in found if bound is not None)


def own_record(
    task: Task,
    shard: Shard,
    training: AuditedTraining,
    *,
    seed: int,
    confidence: float,
    device: str = "cpu",
    trained: Mapping[str, NDArray[Any]] | None = None,
) -> LowerBound | None:
    """The bound by single steps with a record of the task itself; None if no record has a finite gradient.

    The server sends a new model in every step, or the trained one.

    Raises:
        RuntimeError: the client sent no update.
    """
    record = OwnRecord.longest(task, shard, new_parameters(task, seed) if trained is None else trained)
    if record is None:
        return None
    seen = record.observe(training, MOST_STEPS, seed=seed, device=device)
    readings = sum((Readings.of(*step) for step in seen), Readings())
    reached = min(1.0, record.norm / training.clipping_norm)
    name, where = (OWN_RECORD, "a new") if trained is None else (OWN_RECORD_TRAINED, "the trained")
    with_what = f"copies of a record of the task, whose gradient at {where} model is {reached:.0%} of the clipping norm"
    return _gaussian_bound(name, _mu([readings], confidence), training, confidence, with_what)


def one_run_bounds(
    sizes: Sequence[int], training: AuditedTraining, *, seed: int, confidence: float, device: str = "cpu"
) -> tuple[LowerBound, ...]:
    """Bounds by guesses about one run, with built-in canaries of one coordinate each.

    The run has the training's steps, but `MOST_STEPS` at most: who sees fewer steps knows less.

    Raises:
        RuntimeError: the client sent no update.
    """
    scores, members = _guessed_run(sizes, training, seed=seed, device=device)
    delta, counts = training.delta, count_right_guesses(scores, members)
    pearson = clopper_pearson_of_scores(scores[members], scores[~members], delta, confidence)
    independent = "their scores are independent of one another (noise, sampling)"
    gaussian = "the trade-off function of the run is Gaussian, as noise (noise) and many steps (sampling) make it"
    found = (
        (CLOPPER_PEARSON, pearson, independent),
        (ONE_RUN, one_run_epsilon(*counts, delta, confidence), "nothing else is assumed"),
        (F_DP, f_dp_epsilon(*counts, delta, confidence), gaussian),
    )
    return tuple(_bound(name, epsilon, training, confidence, f"{_COINS}; {also}.") for name, epsilon, also in found)


def _guessed_run(
    sizes: Sequence[int], training: AuditedTraining, *, seed: int, device: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Log-likelihood ratios of canaries over a run, were the claim true, and which of them were in."""
    rng = np.random.default_rng([seed, 1])
    where = rng.permutation(sum(sizes))[:_MOST_GUESSED]
    members, signs = rng.random(where.size) < 0.5, rng.choice([-1.0, 1.0], where.size)
    present = canaries.coordinates(sizes, training, where[members], signs[members])
    q, variance = training.event.sampling_rate, training.event.noise_multiplier**2
    log_q, log_absent = np.log(q), np.log1p(-q) if q < 1.0 else -np.inf
    scores = np.zeros(where.size)
    for values, _ in present.observe(training, min(training.steps, MOST_STEPS), seed=seed, device=device):
        scores += np.logaddexp(log_absent, log_q + (signs * values[where] - 0.5) / variance)
    return scores, members


def _mu(readings: Sequence[Readings], confidence: float) -> float:
    """The largest of several bounds, each with so high a confidence that the largest keeps it."""
    return max(least_shift(each, 1.0 - (1.0 - confidence) / len(readings)) for each in readings)


def _gaussian_bound(name: str, mu: float, training: AuditedTraining, confidence: float, with_what: str) -> LowerBound:
    epsilon = per_step_epsilon(mu, training.event, training.steps, training.delta)
    return _bound(name, epsilon, training, confidence, f"{_GAUSSIAN}; {_CLIPPED}. Asked with {with_what}.")


def _bound(name: str, epsilon: float, training: AuditedTraining, confidence: float, assumptions: str) -> LowerBound:
    return LowerBound(
        name=name,
        epsilon=epsilon,
        delta=training.delta,
        confidence=confidence,
        view=View.SERVER,
        relation=training.event.relation,
        assumptions=assumptions,
    )
