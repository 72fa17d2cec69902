"""Questions that a data owner's host must refuse: those that nobody may ask, and those that its list does not name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedprivacy._support import signing
from fedprivacy.audit.host import Host
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.flower.client.node import EVERYTHING, Answerable
from fedprivacy.flower.wire.messages import QuestionGrant, RefusalCode, spending
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.values.attempt import QUESTIONS, Attempt
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

NOBODY_S = "a column that no list names"
"""Name of the column that the auditor asks about if the host's list names only others."""

_LESS = 0.999
"""Factor on the minimum noise multiplier that makes it too small."""

UNITS = ("record", "patient", "patient (at most 2 rows)")
"""Units of privacy, of which a task has one at most."""

Forbidden = tuple[str, QuestionGrant, RefusalCode]
"""A forbidden grant: its description in words, the grant as it is sent, and the code of the refusal."""


def forbidden(audited: Audited, host: Host) -> Iterator[Forbidden]:
    """Grants for questions that this host must refuse."""
    settings, server = host.node.settings, host.server
    event = PoissonSampledGaussian(1.0, max(settings.least_noise_multiplier, 10.0), audited.grant.relation)
    usual = QuestionGrant(
        **spending(
            Attempt(f"{QUESTIONS}audit", 1), settings.client_id, 1, event, unit=audited.grant.unit, clipping_norm=1.0
        ),
        questions=Questionnaire((Questions.count(),)).as_text(),
        earlier_runs=0,
        charged="",
        server_key=signing.server_public_key(server),
    )
    invalid, not_allowed = RefusalCode.GRANT_INVALID, RefusalCode.QUESTION_NOT_ALLOWED
    yield "a question without a signature", usual, invalid
    yield "a question that a stranger signed", usual.signed(Ed25519PrivateKey.generate()), invalid
    training = signing.sign(server, signing.GRANT, usual.signed_bytes())
    yield "a question under the signature of a grant for training", replace(usual, signature=training), invalid
    less = replace(usual, noise_multiplier=_LESS * settings.least_noise_multiplier)
    yield "a question with less than the least noise (least-noise-multiplier)", less.signed(server), invalid
    for relation in NeighbouringRelation:
        if relation is not usual.relation:
            other = replace(usual, relation=relation).signed(server)
            yield f"a question for other neighbours ({relation})", other, invalid
    for unit in UNITS:
        if unit != usual.unit:
            yield f"a question for another unit of privacy ({unit})", replace(usual, unit=unit).signed(server), invalid
    for about, question in _not_listed(settings.answerable):
        asked = replace(usual, questions=Questionnaire((question,)).as_text())
        yield about, asked.signed(server), not_allowed


def _not_listed(answerable: Answerable) -> Iterator[tuple[str, Question]]:
    """Questions of kinds and columns that a list does not name."""
    samples: list[Question] = [
        Questions.count(),
        Questions.rows(1),
        Questions.mean(NOBODY_S, 0.0, 1.0),
        Questions.histogram(NOBODY_S, 0.0, 1.0),
        Questions.categories(NOBODY_S, ["a"]),
        Questions.quantiles(NOBODY_S, 0.0, 1.0),
    ]
    for question in samples:
        if question.kind not in answerable.kinds:
            yield f"a question of a kind that is not listed (questions: {question.kind})", question
    if EVERYTHING not in answerable.columns and "count" in answerable.kinds:
        yield "a condition on a column that is not listed (question-columns)", Questions.count(where={NOBODY_S: "a"})
        yield "groups by a column that is not listed (question-columns)", Questions.count(by={NOBODY_S: ["a"]})
