"""The noise of local evaluations and who joins them, read from clients' receipts: drawn anew, and as steps draw them.

No task, record or setting of a user decides about that, so no audit asks for it.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedprivacy.audit.gates import (
    Alarms,
    p_value_of_correlations,
    p_value_of_counts,
    p_value_of_echoes,
    p_value_of_variance,
    rms,
)
from fedprivacy.audit.gates.four_claims import judge_counts
from fedprivacy.audit.gates.local_evaluation import RAISES, WORTHLESS, Scored, evaluation_grant, shard_with_scores
from fedprivacy.audit.our_client.probes import shard_of, zeros_for
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from tests.privacy.audited_tasks import SOUND, audited, engines_believed
from tests.privacy.bugs.swapped import planted

SCORES = 255
"""Number of scores of a client whose noise is tested: one less than its coordinates."""

JOINING = 32
"""Records whose joining is looked at."""

ROUNDS = 16


def complaints_about_noise(audited):
    """List the faults in the noise of evaluations without scores: its size, its shape, another release's."""
    alarms, task, sigma = Alarms(), Scored.like(audited, [SCORES]), audited.grant.noise_multiplier
    rows, training = [], []
    for client, grant in asked(audited, task, sigma):
        answer = client.answer(grant, zeros_for(task))
        rows.append(np.array(answer.receipt.noisy_sums) / (sigma * (1.0 + ROUNDING_ALLOWANCE)))
        training.append(answer.flat)
    assert {len(row) for row in rows} == {1 + SCORES}
    noise = np.array(rows)
    parts = {"the count": noise[:, :1], "the scores": noise[:, 1:], "records that have none": noise[2::3]}
    for about, part in parts.items():
        alarms.test(
            p_value_of_variance(part), f"The noise is {rms(part):.3g} times what is claimed, in {about}; it must be 1."
        )
    alarms.test(float(stats.kstest(noise.ravel(), stats.norm.cdf).pvalue), "The noise is not Gaussian.")
    alarms.test(p_value_of_echoes(noise), "The noise repeats itself within a release.")
    of_all, _ = p_value_of_correlations([*noise[:, :SCORES], *training])
    alarms.test(of_all, "The noise can be told from that of another release.")
    return alarms.reasons


def asked(audited, task, sigma):
    """Clients without a record, or with some that have no score, in several rounds, attempts and runs."""
    client = audited.client_of(task, shard_with_scores([], task))
    for number, position in enumerate([{"attempt": 2}, {"earlier_runs": 1}, *audited.positions(ROUNDS)]):
        shard = shard_with_scores(torch.full(((0, 3, 40)[number % 3], SCORES), RAISES), task)
        yield client.holding(shard), evaluation_grant(audited, noise_multiplier=sigma, **position)
    secret = audited.client_of(task, shard_with_scores([], task), secret=True)
    for other in (secret, secret, client.colleague()):
        yield other, evaluation_grant(audited, noise_multiplier=sigma)


def complaints_about_samples(audited, rate):
    """List the faults in who joins an evaluation: each record with the rate, independently of the steps that train."""
    alarms, task = Alarms(), Scored.like(audited, [JOINING])
    scores = torch.full((JOINING, JOINING), WORTHLESS).fill_diagonal_(1.0)
    client = audited.client_of(task, shard_of(1e4 * audited.grant.clipping_norm * torch.eye(JOINING), scores))
    evaluated, trained = [], []
    for position in audited.positions(4 * ROUNDS):
        answer = client.answer(evaluation_grant(audited, sampling_rate=rate, **position), zeros_for(task))
        count, *sums = answer.receipt.noisy_sums
        joined = np.array(sums) > 0.5 / math.sqrt(1.0 + JOINING)
        alarms.must(
            abs(count * math.sqrt(1.0 + JOINING) - joined.sum()) < 0.1,
            "The count is not of those whose scores are summed.",
        )
        evaluated.append(joined)
        trained.append(-answer.flat > 0.05 * np.abs(answer.flat).max())
    samples, steps = np.array(evaluated), np.array(trained)
    if rate == 1.0:
        alarms.must(bool(samples.all()), "At a sampling rate of 1 a record was left out.")
        return alarms.reasons
    judge_counts(alarms, samples, rate)
    pairs = {"An evaluation and a step": (samples, steps), "Two evaluations": (samples[::2], samples[1::2])}
    for about, (one, other) in pairs.items():
        common = int((one & other).sum())
        alarms.test(
            p_value_of_counts(common, one.size, rate**2), f"{about} have too many records in common, or too few."
        )
    return alarms.reasons


IN_TURN = pytest.mark.parametrize(
    "setting",
    [
        "with a private size",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive if "evaluated" in name else pytest.mark.soak)
            for name in SOUND
            if name != "with a private size"
        ),
    ],
)


def small(setting="with a private size"):
    task, settings = SOUND[setting]
    return audited(0, task, **settings)


@IN_TURN
def test_an_evaluation_has_noise_of_its_own_as_large_as_is_charged(setting):
    with engines_believed():
        assert complaints_about_noise(small(setting)) == []


@pytest.mark.parametrize("rate", [0.5, pytest.param(1.0, marks=pytest.mark.exhaustive)])
@IN_TURN
def test_each_record_joins_an_evaluation_by_a_coin_of_its_own(setting, rate):
    with engines_believed():
        assert complaints_about_samples(small(setting), rate) == []


NOISE = {
    "an evaluation's count has no noise": "0 times what is claimed, in the count",
    "an evaluation of records that have no score has an eighth too little noise": "in records that have none",
    "an evaluation has a tenth too little noise": "The noise is 0.9",
    "the noise of an evaluation's second half is that of its first": "repeats itself within a release",
    "the noise of an evaluation is cut off beyond one and a half deviations, and as large as claimed": "not Gaussian",
    "half of an evaluation's noise is that of the round before": "can be told from that of another release",
}
"""Faults of the noise, and the test that sees them, and no other."""

SAMPLES = {
    "an evaluation samples as the round's first step does, with noise of its own": "An evaluation and a step have",
    "every second evaluation samples as the one before": "Two evaluations have",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("meaning", [*NOISE, *SAMPLES])
def test_a_fault_is_named_by_the_test_that_is_for_it(meaning):
    with planted(meaning), engines_believed():
        found = complaints_about_noise(small()) if meaning in NOISE else complaints_about_samples(small(), 0.5)
    assert found and [reason for reason in found if (NOISE | SAMPLES)[meaning] not in reason] == []
