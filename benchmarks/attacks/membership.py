"""Membership inference: was this record among those that the model was trained on?

Each attack turns what a model says of the records into scores, the higher the likelier a member:

| attack | the attacker has | score |
|---|---|---|
| loss threshold (Yeom et al. 2018) | the model | minus the loss |
| quantile regression (Bertran et al. 2023) | and some records that are no members | confidence above theirs |
| LiRA offline (Carlini et al. 2022) | and models trained without the record | how unlikely among these |
| LiRA online (the same) | and models trained with it | likelihood ratio of both |

A strong attack shows that records are at risk. A weak one shows nothing: a better one may be found tomorrow. What
holds against all of them is the limit of differential privacy (`limits`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from torch.nn import functional

from benchmarks.attacks.roc import Roc
from benchmarks.attacks.shadows import Shadows
from fedprivacy.tasks.task import Shard

Scores = NDArray[np.float64]
"""One for each record, shape [records]; the higher the likelier a member."""

LOSS, QUANTILE, OFFLINE, ONLINE = "loss threshold", "quantile regression", "LiRA offline", "LiRA online"

OWN_VARIANCE = 64
"""From so many shadow models on, half of them on each side, each record has a variance of its own; of fewer, an
estimate would be all noise and one for all records is taken (Carlini et al. 2022, section VI-C)."""

_LEAST_DEVIATION = 1e-6


def attacked(shadows: Shadows, records: Shard, *, targets: int, seed: int = 0) -> dict[str, Roc]:
    """Attack models in turn, each with the others as shadow models, and join the attacks' scores.

    The regression's attacker knows half of the records that are no members, which are left out of its curve. Scores
    of several models are joined as they are: one threshold for all.

    Args:
        shadows: the models.
        records: the same that were put to them.
        targets: how many models are attacked, the first ones.
        seed: of which records the regression's attacker knows.

    Returns:
        The curve of each attack, by its name.

    Raises:
        ValueError: there are not so many models.
    """
    if not 1 <= targets <= len(shadows.members):
        raise ValueError(f"targets is {targets}; choose from 1 to {len(shadows.members)}, the models.")
    scores: dict[str, tuple[list[Scores], list[Scores]]] = {}
    for target in range(targets):
        known = (
            np.random.default_rng((seed, target, 1)).random(len(records.inputs)) < 0.5
        )  # the 1: not the coins of members
        for name, found, asked in _scores(shadows, target, records, known):
            inside, outside = scores.setdefault(name, ([], []))
            members = shadows.members[target]
            inside.append(found[asked & members])
            outside.append(found[asked & ~members])
    return {name: Roc.of(np.concatenate(a), np.concatenate(b)) for name, (a, b) in scores.items()}


def _scores(
    shadows: Shadows, target: int, records: Shard, known: NDArray[np.bool_]
) -> Iterator[tuple[str, Scores, NDArray[np.bool_]]]:
    """Each attack's name, its scores of one model, and about which records it is asked."""
    members, confidences = shadows.members, shadows.confidences
    everyone = np.ones(len(records.inputs), dtype=np.bool_)
    yield LOSS, loss_threshold(shadows.losses[target]), everyone
    outside = known & ~members[target]
    yield QUANTILE, quantile_regression(confidences[target], features_of(records), outside), ~outside
    if len(members) > 1:
        others = np.arange(len(members)) != target
        yield OFFLINE, lira_offline(confidences[target], confidences[others], members[others]), everyone
        yield ONLINE, lira_online(confidences[target], confidences[others], members[others]), everyone


def loss_threshold(losses: Scores) -> Scores:
    """Members are what the model takes well (Yeom, Giacomelli, Fredrikson, Jha 2018)."""
    return -losses


def lira_online(confidences: Scores, shadows: NDArray[np.float64], members: NDArray[np.bool_]) -> Scores:
    """log N(c; mu_in, s_in) - log N(c; mu_out, s_out) of each record's confidence c (Carlini et al. 2022, algorithm 1).

    Args:
        confidences: logit-scaled, of the attacked model, shape [records].
        shadows: those of the shadow models, shape [shadows, records].
        members: which of these were trained on the record, the same shape.

    Returns:
        The scores; 0, which decides nothing, for a record that all shadow models know, or none.
    """
    (mean_in, deviation_in), (mean_out, deviation_out) = (_fitted(shadows, side) for side in (members, ~members))
    scores = norm.logpdf(confidences, mean_in, deviation_in) - norm.logpdf(confidences, mean_out, deviation_out)
    return np.asarray(np.nan_to_num(scores, nan=0.0))


def lira_offline(confidences: Scores, shadows: NDArray[np.float64], members: NDArray[np.bool_]) -> Scores:
    """(c - mu_out) / s_out, in the order of Pr[N(mu_out, s_out) <= c] (the same, section V-C).

    That probability itself would be 1, to all digits, for many records. Arguments and result: as `lira_online`.
    """
    mean, deviation = _fitted(shadows, ~members)
    return np.nan_to_num((confidences - mean) / deviation, nan=0.0)


def _fitted(shadows: NDArray[np.float64], side: NDArray[np.bool_]) -> tuple[Scores, Scores]:
    """Mean and deviation of each record's confidences on one side, shape [records] each; NaN: there are none."""
    counts = side.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(side, shadows, 0.0).sum(axis=0) / counts
        squares = np.where(side, (shadows - means) ** 2, 0.0)
        variances = squares.sum(axis=0) / (counts - 1)
    if len(shadows) < OWN_VARIANCE:
        pooled = float(np.nansum(squares)) / max(int((counts - 1).clip(0).sum()), 1)
        variances = np.full(means.shape, pooled)
    return means, np.sqrt(np.maximum(variances, _LEAST_DEVIATION**2))


def features_of(records: Shard) -> NDArray[np.float64]:
    """What the regression sees of each record: its inputs and its target, shape [records, features]."""
    classes = records.targets.dim() == 1 and not records.targets.is_floating_point()
    targets = functional.one_hot(records.targets.long()) if classes else records.targets
    parts = [rows.reshape(len(records.inputs), -1).double().numpy() for rows in (records.inputs, targets)]
    return np.hstack(parts)


def quantile_regression(confidences: Scores, features: NDArray[np.float64], known_outside: NDArray[np.bool_]) -> Scores:
    """By how much a confidence exceeds those of like records that are no members (Bertran et al. 2023).

    Two regressions with the pinball loss, on records that the attacker knows to be none, give median and upper decile
    for a record like this; a confidence is measured from the first in units of their distance, as in the paper's
    Gaussian variant.

    Args:
        confidences: logit-scaled, of the attacked model, shape [records].
        features: of each record, shape [records, features].
        known_outside: which records the attacker knows to be no members, shape [records].
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    median, upper = (
        HistGradientBoostingRegressor(loss="quantile", quantile=level, max_iter=40, learning_rate=0.2, random_state=0)
        .fit(features[known_outside], confidences[known_outside])
        .predict(features)
        for level in (0.5, 0.9)
    )
    least = np.quantile(np.abs(confidences - median)[known_outside], 0.1) + _LEAST_DEVIATION
    return np.asarray((confidences - median) / np.maximum(upper - median, least))
