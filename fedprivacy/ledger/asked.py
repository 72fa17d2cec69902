"""Questions as a certificate states them: each question to a dataset, with its cost alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fedprivacy.accounting import pld
from fedprivacy.ledger.replay import AnswerKey, Charge, ChargeKey, QuestionKey, Replay, WrittenAnswer
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.event_codec import as_fields
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.nulls import finite_or_none


def questions_by_attempt(replay: Replay) -> dict[Attempt, list[QuestionKey]]:
    """List the questions of each attempt, in order."""
    found: dict[Attempt, list[QuestionKey]] = {}
    for key in sorted(replay.questions):
        found.setdefault(Attempt(key.run_id, key.round, key.attempt), []).append(key)
    return found


def asked_of(
    charges: Mapping[ChargeKey, Charge],
    questions: Mapping[Attempt, Sequence[QuestionKey]],
    replay: Replay,
    delta: float,
) -> Iterator[dict[str, Any]]:
    """Yield the questions that a dataset's charges were for.

    Args:
        charges: charges of the dataset that count.
        questions: questions of each attempt.
        replay: state after all entries of the journal.
        delta: delta of the dataset's budget.

    Yields:
        `question`, `at`, `event` and `epsilon`. Without an answer the last two are None: the journal holds the cost of
        all questions asked together, but not this question's share.
    """
    for charged, charge in charges.items():
        for key in questions.get(charged.of, ()):
            put, answer = replay.questions[key], replay.answers.get(AnswerKey(charged.dataset_id, *key))
            event = _alone(answer, charge) if answer else None
            epsilon = finite_or_none(_epsilon(event, delta)) if event else None
            yield {"question": put.question, "at": put.at, "event": event and as_fields(event), "epsilon": epsilon}


def _alone(answer: WrittenAnswer, charge: Charge) -> PoissonSampledGaussian:
    """Return the event of a question by itself: Gaussian noise on all records."""
    return PoissonSampledGaussian(1.0, answer.noise_multiplier, NeighbouringRelation(charge.relation))


@lru_cache(maxsize=1024)
def _epsilon(event: PoissonSampledGaussian, delta: float) -> float:
    """Compute the epsilon of one execution, cached: most datasets are asked the same, with the same noise."""
    return pld.epsilon({event: 1}, delta)
