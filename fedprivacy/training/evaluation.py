"""Local evaluation with privacy: a noisy sum of the scores of a client's records under the model that it uses.

It is one more release of the run's own mechanism, with the same sampling rate and noise multiplier as a local step, and
costs what a local step costs: accountants, budgets and filters count one step more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy.gradients.per_record import RecordScores
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE, SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Score, Shard
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.metrics import Evaluation


def unit(scores: int) -> float:
    """Weight of a record's count in its vector of so many scores; each score contributes from minus to plus this
    weight.

    Scores are centred, so that count and scores have equal shares of a vector of norm 1.
    """
    return 1.0 / math.sqrt(1.0 + scores)


@dataclass(frozen=True, slots=True)
class NoisySums:
    """Release of a local evaluation.

    Formal guarantee: one release of `event`. Nothing else in this object depends on the shard.

    Attributes:
        event: event of the release.
        sums: noisy sums of the sampled records' vectors: the count, then each centred score, in units of a norm of 1.
    """

    event: PoissonSampledGaussian
    sums: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LocalEvaluation:
    """Evaluation of a model on a client's own records: a noisy count of them, and noisy sums of their scores.

    A record's vector is its count and its scores, each clipped to its public bounds and centred between them, in equal
    shares: of Euclidean norm at most 1. A record without a score (its output cannot be computed, or is no number)
    contributes nothing.

    Formal guarantee: a record's vector is a function of the record, the parameters and public numbers alone
    (`fedprivacy.gradients.per_record`). So the promise of `SampledGaussianSum` is kept with a clipping norm of 1:
    float64 sums round far below its allowance.

    Attributes:
        event: event of one local step of the run.
        scores: scores to measure, in a public order.
    """

    event: PoissonSampledGaussian
    scores: Sequence[Score]

    def release(self, measured: RecordScores, shard: Shard, keystream: Keystream, position: Position) -> NoisySums:
        """Sample, measure, sum, add noise once.

        Args:
            measured: function that scores records under the model that the client uses, on the shard's device.
            shard: the client's records.
            keystream: the client's randomness.
            position: round and a step number that no local step has.
        """

        shard = shard.present()

        def clipped_sum(sample: NDArray[np.intp], _: float) -> Tensor:
            rows = torch.from_numpy(sample).to(shard.inputs.device)
            return self._vectors(measured(shard.inputs[rows], shard.targets[rows])).sum(0)

        mechanism = SampledGaussianSum(self.event, clipping_norm=1.0)
        released = mechanism.release(clipped_sum, len(shard.inputs), keystream, position)
        return NoisySums(self.event, tuple(released.tolist()))

    def _vectors(self, scores: Tensor) -> Tensor:
        """Make the vectors of the records that have scores, [records, scores], shape [some, 1 + scores]."""
        least, most = torch.tensor([(score.least, score.most) for score in self.scores], dtype=scores.dtype).unbind(1)
        known = scores[~scores.isnan().any(1)]
        centred = 2.0 * ((known.clamp(least, most) - least) / (most - least)) - 1.0
        return unit(len(self.scores)) * torch.cat([torch.ones_like(known[:, :1]), centred], 1)


def estimate_scores(scores: Mapping[str, Score], released: Sequence[NoisySums]) -> Evaluation:
    """Estimate the scores of all records of one or more clients from noisy sums: a post-processing.

    Each client's sums are divided by its sampling rate, so that every record counts the same.

    Args:
        scores: measured scores by name, in the order of the sums.
        released: sums of different clients, or rounds; at least one.
    """
    rates = [sums.event.sampling_rate for sums in released]
    count, *totals = np.sum([np.array(sums.sums) / rate for sums, rate in zip(released, rates, strict=True)], axis=0)
    weight = unit(len(scores))
    records = max(float(count) / weight, 1.0)
    noise = math.hypot(*(sums.event.noise_multiplier / rate for sums, rate in zip(released, rates, strict=True)))
    noise *= 1.0 + ROUNDING_ALLOWANCE
    means, deviations = {}, {}
    for (name, score), total in zip(scores.items(), totals, strict=True):
        centred = min(max(float(total) / (2.0 * weight * records), -0.5), 0.5)
        width = score.most - score.least
        means[name] = score.least + width * (centred + 0.5)
        deviations[name] = width * noise / (weight * records) * math.hypot(0.5, centred)
    return Evaluation(float(count) / weight, means, deviations)
