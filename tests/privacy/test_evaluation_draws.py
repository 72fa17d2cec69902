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
)
from fedprivacy.audit.gates.four_claims import judge_counts
from fedprivacy.audit.gates.local_evaluation import RAISES, WORTHLESS, Scored, evaluation_grant, shard_with_scores
from fedprivacy.audit.our_client.probes import shard_of, zeros_for
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from tests.privacy.audited_tasks import SOUND, audited, engines_believed

SCORES = 255
"""Number of scores of a client whose noise is tested: one less than its coordinates."""

JOINING = 32
"""Records whose joining is looked at."""

ROUNDS = 16
RATE = 0.5


@pytest.fixture(
    params=["with a private size", pytest.param("of a model that imputes, evaluated", marks=pytest.mark.exhaustive)]
)
def client_run(request):
    """A run whose clients are asked to evaluate."""
    task, settings = SOUND[request.param]
    with engines_believed():
        yield audited(0, task, **settings)


@pytest.fixture
def alarms():
    """Alarms, none of which may have been raised in the end."""
    alarms = Alarms()
    yield alarms
    assert alarms.reasons == []


def test_an_evaluation_has_noise_of_its_own_as_large_as_is_charged(client_run, alarms):
    task, sigma = Scored.like(client_run, [SCORES]), client_run.grant.noise_multiplier
    rows, training = [], []
    for client, grant in asked(client_run, task, sigma):
        answer = client.answer(grant, zeros_for(task))
        rows.append(np.array(answer.receipt.noisy_sums) / (sigma * (1.0 + ROUNDING_ALLOWANCE)))
        training.append(answer.flat)
    assert {len(row) for row in rows} == {1 + SCORES}
    noise = np.array(rows)
    parts = {"the count": noise[:, :1], "the scores": noise[:, 1:], "records that have none": noise[2::3]}
    for about, part in parts.items():
        alarms.test(p_value_of_variance(part), f"The noise is not as large as claimed, in {about}.")
    alarms.test(float(stats.kstest(noise.ravel(), stats.norm.cdf).pvalue), "The noise is not Gaussian.")
    alarms.test(p_value_of_echoes(noise), "The noise repeats itself within a release.")
    of_all, _ = p_value_of_correlations([*noise[:, :SCORES], *training])
    alarms.test(of_all, "The noise can be told from that of another release.")


def asked(run, task, sigma):
    """Clients without a record, or with some that have no score, in several rounds, attempts and runs."""
    client = run.client_of(task, shard_with_scores([], task))
    for number, position in enumerate([{"attempt": 2}, {"earlier_runs": 1}, *run.positions(ROUNDS)]):
        shard = shard_with_scores(torch.full(((0, 3, 40)[number % 3], SCORES), RAISES), task)
        yield client.holding(shard), evaluation_grant(run, noise_multiplier=sigma, **position)
    secret = run.client_of(task, shard_with_scores([], task), secret=True)
    for other in (secret, secret, client.colleague()):
        yield other, evaluation_grant(run, noise_multiplier=sigma)


def test_each_record_joins_an_evaluation_by_a_coin_of_its_own(client_run, alarms):
    task = Scored.like(client_run, [JOINING])
    scores = torch.full((JOINING, JOINING), WORTHLESS).fill_diagonal_(1.0)
    client = client_run.client_of(task, shard_of(1e4 * client_run.grant.clipping_norm * torch.eye(JOINING), scores))
    evaluated, trained = [], []
    for position in client_run.positions(4 * ROUNDS):
        answer = client.answer(evaluation_grant(client_run, sampling_rate=RATE, **position), zeros_for(task))
        count, *sums = answer.receipt.noisy_sums
        joined = np.array(sums) > 0.5 / math.sqrt(1.0 + JOINING)
        assert abs(count * math.sqrt(1.0 + JOINING) - joined.sum()) < 0.1
        evaluated.append(joined)
        trained.append(-answer.flat > 0.05 * np.abs(answer.flat).max())
    samples, steps = np.array(evaluated), np.array(trained)
    judge_counts(alarms, samples, RATE)
    for one, other in ((samples, steps), (samples[::2], samples[1::2])):
        common = int((one & other).sum())
        alarms.test(p_value_of_counts(common, one.size, RATE**2), "Too many records in common, or too few.")
