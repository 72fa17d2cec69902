"""Gates of a deployed client, asked on its own host with its own configuration.

**Node**: what it obeys, refuses, charges and says. In a deployment randomness is secret, so nothing can be frozen and
compared here. What is asked instead needs no seed: whose word counts, what is refused and how it is said, what is on
the disk when the first record is read, and that one grant is answered with one update and no other.

**Node-noise** and **reading**: what it makes of its own records, which are the noise that its updates carry, and how
they are read. At a sampling rate of 1 the sums of two trainings from one model are the same, whatever the records are.
So half of the difference of two updates is noise alone, and a number that is computed from it tells nothing of any
record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedprivacy._support import signing
from fedprivacy.accounting import pld
from fedprivacy.audit.findings import Gate
from fedprivacy.audit.gates import TOLERANCE, Alarms, Judged, gate, rms, verdict
from fedprivacy.audit.gates.four_claims import judge_noise
from fedprivacy.audit.host import DeployedClient, Host, costliest
from fedprivacy.audit.our_client.audited_client import Audited, Parameters
from fedprivacy.audit.our_client.replies import fields_of
from fedprivacy.audit.real_client import NoUpdateError
from fedprivacy.audit.subject import Effort, ObservedNoise
from fedprivacy.flower.client.node import EVERYTHING, Answerable
from fedprivacy.flower.client.release import ARRAYS, digest
from fedprivacy.flower.wire.messages import (
    ASK,
    RECEIPT,
    Enrolment,
    EnrolmentRequest,
    Grant,
    QuestionGrant,
    Receipt,
    Refusal,
    RefusalCode,
    spending,
)
from fedprivacy.flower.wire.payloads import claims_text
from fedprivacy.gradients import trainable_parameters
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.tasks import Shard
from fedprivacy.tasks.one_cell import READERS, try_cells
from fedprivacy.values.attempt import QUESTIONS, Attempt
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.wording import count_text

_TINY = 1e-9
"""A sampling rate below every delta: the budget alone would allow steps of it without noise."""

_LESS, _CHEAP = 0.999, 5.0
"""Factors on a noise multiplier: one makes the minimum too small, and one makes a whole budget last for many grants."""

_LEAST_DRAWS, _PAIRS = 4000, (4, 16)
"""Minimum draws of each layer's noise, and the fewest and most pairs of updates, in a quick audit, that give them."""

_MOST_DRAWS = 2e7
"""Draws of a large model's noise that are worth the time."""

_READING_PROVES = "One record changes nothing that the task reads of another."
_READING_ASSUMES = (
    "Cells of the first rows of .csv and .parquet files were changed, in a copy; they stand for all others, and files "
    "of other kinds were not looked at."
)

NOBODY_S = "a column that no list names"
"""Name of the column that the auditor asks about if the host's list names only others."""

UNITS = ("record", "patient", "patient (at most 2 rows)")
"""Units of privacy, of which a task has one at most."""

Said = TypeVar("Said", Refusal, Enrolment)

Forbidden = tuple[str, QuestionGrant, RefusalCode]
"""A forbidden grant: its description in words, the grant as it is sent, and the code of the refusal."""


class DiedError(BaseException):
    """The process ended, as by a power cut: nothing that handles errors goes on."""


class RecordsWatch(TorchFunctionMode):
    """Notices when a record is first read while the block runs, and does something just then.

    Args:
        shard: whose records.
        dies: whether the process ends there.
    """

    def __init__(self, shard: Shard, *, dies: bool = False) -> None:
        super().__init__()
        self._shard, self._dies, self.read = shard, dies, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation of torch; one that makes something of records reads them."""
        result = func(*args, **(kwargs or {}))
        own = any(arg is self._shard.inputs or arg is self._shard.targets for arg in args)
        if own and isinstance(result, Tensor) and result.numel():
            self.read = True
            if self._dies:
                raise DiedError
        return result


@dataclass(frozen=True)
class _Asked:
    """The host under audit, and what it is usually asked."""

    audited: Audited
    host: Host
    reasons: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> Parameters:
        return self.audited.parameters

    @cached_property
    def grant(self) -> Grant:
        """One step that everybody joins, with the least noise that the configuration takes."""
        return replace(costliest(self.audited, self.host.node), learning_rate=1.0)

    @cached_property
    def cheap(self) -> Grant:
        """The same with so much noise that the client could pay for it again and again, were it to charge again."""
        return replace(self.grant, noise_multiplier=_CHEAP * self.grant.noise_multiplier)

    def reading(self, *, dies: bool = False) -> RecordsWatch:
        return RecordsWatch(self.host.node.shard, dies=dies)

    def must(self, holds: bool, reason: str) -> None:
        if not holds:
            self.reasons.append(reason)


@gate(
    "node",
    proves="The client on this host heeds its own server alone, within its own settings and budget, and charges first.",
    assumes="Asked as deployed, with secret randomness, under temporary keys and with an empty book: what its own book "
    "holds already was not looked at, and nothing was charged to it.",
)
def check_duties(audited: Audited, host: Host) -> Judged:
    """Check whether the client obeys its own configuration, for any request from any sender.

    Args:
        audited: the same task with the same shard, and the model that is sent.
        host: that is asked.
    """
    asked = _Asked(audited, host)
    _refuses(asked)
    _enrols(asked)
    if _updates(asked):
        _charges_first(asked)
        _keeps_the_budget(asked)
    return Judged(float(len(asked.reasons)), asked.reasons)


def refusal_code(reply: Message) -> RefusalCode | None:
    """The code of a reply that is a refusal and nothing besides; None: it says something else."""
    refusal = _alone(reply, Refusal)
    return None if refusal is None else refusal.code


def _alone(reply: Message, kind: type[Said]) -> Said | None:
    """The record of a kind that a reply holds and nothing besides; None: it holds something else, or more."""
    with suppress(ValueError):
        return kind.of(reply) if not reply.has_error() and list(reply.content) == [kind.name] else None
    return None


def _updates(asked: _Asked) -> bool:
    """A grant that the client must take: its update, receipt and charge, and the same grant again."""
    client, grant = asked.host.client(), asked.cheap
    reply = client.ask(grant, asked.parameters)
    if reply.has_error() or RECEIPT not in reply.content:
        asked.must(
            False, f"The client refuses a grant that its own configuration allows ({refusal_code(reply) or 'error'})."
        )
        return False
    asked.must(list(reply.content) == [ARRAYS, RECEIPT], "A reply holds more than an update and its receipt.")
    asked.must(_receipt_is_true(client, grant, reply), "A receipt is not what was granted and sent, signed.")
    asked.must(_charges(client) == [(grant.charged_as, grant.event, 1)], "The client's book does not hold the charge.")
    first = fields_of(reply)
    another = {name: np.asarray(values) + np.ones((), values.dtype) for name, values in asked.parameters.items()}
    again = (
        ("the same grant", grant, asked.parameters),
        ("the same grant with another model", grant, another),
        ("the same attempt under another grant", replace(grant, learning_rate=0.5), asked.parameters),
    )
    for about, changed, parameters in again:
        with asked.reading() as watched:
            answer = client.ask(changed, parameters)
        same = fields_of(answer) == first or refusal_code(answer) is not None
        asked.must(
            same and not watched.read,
            f"Asked again, a client trains again for nothing ({about}): its noise could be averaged away.",
        )
    client.lose_sealed()
    lost = client.ask(grant, asked.parameters)
    asked.must(refusal_code(lost) is not None, "An update that was lost is trained again, though it was granted once.")
    asked.must(len(client.charges()) == 1, "The client's book changed though nothing was granted.")
    return True


def _receipt_is_true(client: DeployedClient, grant: Grant, reply: Message) -> bool:
    """Return whether a receipt says what was granted and sent, under the client's own signature."""
    try:
        receipt = Receipt.of(reply)
    except ValueError:
        return False
    sent = {name: array.numpy() for name, array in reply.content.array_records[ARRAYS].items()}
    key = signing.client_public_key(client.host.key)
    signed = signing.signed_by_client(key, signing.RECEIPT, receipt.signed_bytes(), receipt.signature)
    return signed and receipt.matches(grant) and receipt.update == digest(sent)


def _charges(client: DeployedClient) -> list[tuple[object, object, int]]:
    return [(charge.attempt, charge.event, charge.steps) for charge in client.charges()]


def _charges_first(asked: _Asked) -> None:
    """The process ends when the first record is read: the charge must be on the disk by then, and stay."""
    client, grant = asked.host.client(), asked.grant
    if not len(asked.host.node.shard.inputs):
        return
    died = False
    with asked.reading(dies=True) as watched:
        try:
            client.ask(grant, asked.parameters)
        except DiedError:
            died = True
    asked.must(watched.read and died, "When the client reads its records could not be seen: the gate saw none read.")
    on_disk = _charges(client)
    asked.must(
        on_disk == [(grant.charged_as, grant.event, 1)],
        "A record is read before its charge is on the disk: a client that dies then has paid nothing.",
    )
    with asked.reading() as watched:
        again = client.ask(grant, asked.parameters)
    asked.must(
        refusal_code(again) is not None and not watched.read,
        "A client that died while it trained trains the same grant again, and has paid for one of both.",
    )


def _keeps_the_budget(asked: _Asked) -> None:
    """Grants beyond the client's own budget, at once and after a first one, by what the accountant says they cost."""
    settings = asked.host.node.settings
    if not settings.budget.enforced:
        return
    beyond = 1  # so many steps that they cost clearly more than the budget
    while pld.epsilon({asked.grant.event: beyond}, settings.budget.delta) <= settings.budget.epsilon * (
        1.0 + TOLERANCE
    ):
        beyond *= 2
    if beyond > settings.most_steps:
        return
    for about, before in (("at once", 0), ("after another", 1)):
        client = asked.host.client()
        for _ in range(before):
            client.ask(asked.grant, asked.parameters)
        with asked.reading() as watched:
            reply = client.ask(replace(asked.grant, round=2, steps=beyond), asked.parameters)
        steps = sum(charge.steps for charge in client.charges())
        asked.must(
            refusal_code(reply) is RefusalCode.BUDGET_EXHAUSTED and steps == before and not watched.read,
            f"A grant that costs more than the client's own budget is not refused before anything is read ({about}).",
        )


def _refuses(asked: _Asked) -> None:
    """Test requests that no configuration allows: refused with a constant code, nothing charged, no record read."""
    for about, grant, expected in _forbidden_grants(asked):
        _check_refusal(asked, asked.host.client(), grant, about, expected)
    for about, question, expected in forbidden_questions(asked.audited, asked.host):
        _check_refusal(asked, asked.host.client(), question, about, expected)
    seed: dict[str, int] = {"seed": 1}
    client = asked.host.client(**seed)
    about = "a seed, by which a server could subtract the noise"
    _check_refusal(asked, client, client.sign(asked.grant), about, RefusalCode.SEED_IN_DEPLOYMENT)
    if not asked.host.node.brought:
        client = asked.host.client(task="somebody_elses.py:Task")
        about = "a task that the configuration does not name"
        _check_refusal(asked, client, client.sign(asked.grant), about, RefusalCode.TASK_NOT_ALLOWED)


def _check_refusal(
    asked: _Asked, client: DeployedClient, grant: Grant | QuestionGrant, about: str, expected: RefusalCode
) -> None:
    with asked.reading() as watched:
        if isinstance(grant, QuestionGrant):
            reply = client.send(ASK, RecordDict({grant.name: grant.to_record()}))
        else:
            reply = client.asked_as_is(grant, asked.parameters)
    code = refusal_code(reply)
    asked.must(code is not None, f"What must be refused is not, or with more than a constant code: {about}.")
    asked.must(code in (None, expected), f"What must be refused is not, for that reason: {about}.")
    asked.must(not watched.read and not client.charges(), f"Before it refuses, the client charges or reads: {about}.")


def _forbidden_grants(asked: _Asked) -> Iterator[tuple[str, Grant, RefusalCode]]:
    """Grants that must be refused, in words, as they are sent, with the code."""
    client, settings, invalid = asked.host.client(), asked.host.node.settings, RefusalCode.GRANT_INVALID
    grant = client.sign(asked.grant)
    stranger = Ed25519PrivateKey.generate()
    yield "a grant without a signature", replace(grant, signature=""), invalid
    yield "a grant that was changed after it was signed", replace(grant, learning_rate=0.5), invalid
    yield "a grant that a stranger signed in the server's name", replace(grant, signature="").sign(stranger), invalid
    foreign = replace(grant, server_key=signing.server_public_key(stranger), signature="")
    yield "a grant of another server", foreign.sign(stranger), invalid
    purpose = signing.sign(asked.host.server, signing.ENROLMENT, grant.signed_bytes())
    yield "a signature that was made for something else", replace(grant, signature=purpose), invalid
    for relation in NeighbouringRelation:
        if relation is not grant.relation:
            about = f"a grant for other neighbours ({relation})"
            yield about, client.sign(replace(asked.grant, relation=relation)), invalid
    for unit in UNITS:
        if unit != grant.unit:
            about = f"a grant for another unit of privacy ({unit})"
            yield about, client.sign(replace(asked.grant, unit=unit)), invalid
    less = replace(asked.grant, sampling_rate=_TINY, noise_multiplier=_LESS * settings.least_noise_multiplier)
    yield "a grant with less than the least noise (least-noise-multiplier)", client.sign(less), invalid
    silent = replace(less, noise_multiplier=min(1e-3, less.noise_multiplier))
    yield "a grant with hardly any noise (least-noise-multiplier)", client.sign(silent), invalid
    more = replace(asked.grant, steps=settings.most_steps + 1)
    yield "a grant of more than the most steps (most-steps)", client.sign(more), invalid


def _enrols(asked: _Asked) -> None:
    """Test enrolment: which requests the client answers, and what it says."""
    client = asked.host.client()
    stranger = Ed25519PrivateKey.generate()
    right = client.request()
    wrong: dict[str, EnrolmentRequest | None] = {
        "without a request": None,
        "without a signature": replace(right, signature=""),
        "by a stranger": replace(right, signature="").sign(stranger),
        "for another run": client.request(run_id="2"),
        "for another client": client.request(client_key="0" * 64),
    }
    for about, request in wrong.items():
        code = refusal_code(client.enrol(request))
        asked.must(code is RefusalCode.ENROLMENT_INVALID, f"The client says who it is to whom it should not ({about}).")
    said = _alone(client.enrol(right), Enrolment)
    asked.must(said == _public(asked, ""), "At enrolment the client says more than is public.")
    client.ask(asked.grant, asked.parameters)
    claims = claims_text({(asked.grant.run_id, asked.grant.event): 1}) if client.charges() else ""
    asked.must(
        _alone(client.enrol(right), Enrolment) == _public(asked, claims),
        "At enrolment the client says something else than what is public and what its book holds.",
    )


def _public(asked: _Asked, claims: str) -> Enrolment:
    """Return what a client may say of itself."""
    node = asked.host.node
    size = len(node.shard) if node.task.shard_sizes_public else 0
    return Enrolment(client_id=node.settings.client_id, shard_size=size, num_partitions=0, spent=claims)


def forbidden_questions(audited: Audited, host: Host) -> Iterator[Forbidden]:
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
    yield "a question that a stranger signed", usual.sign(Ed25519PrivateKey.generate()), invalid
    training = signing.sign(server, signing.GRANT, usual.signed_bytes())
    yield "a question under the signature of a grant for training", replace(usual, signature=training), invalid
    less = replace(usual, noise_multiplier=_LESS * settings.least_noise_multiplier)
    yield "a question with less than the least noise (least-noise-multiplier)", less.sign(server), invalid
    for relation in NeighbouringRelation:
        if relation is not usual.relation:
            other = replace(usual, relation=relation).sign(server)
            yield f"a question for other neighbours ({relation})", other, invalid
    for unit in UNITS:
        if unit != usual.unit:
            yield f"a question for another unit of privacy ({unit})", replace(usual, unit=unit).sign(server), invalid
    for about, question in _not_listed(settings.answerable):
        asked = replace(usual, questions=Questionnaire((question,)).as_text())
        yield about, asked.sign(server), not_allowed


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


@gate(
    "node-noise",
    proves="Every update that leaves this host carries Gaussian noise of the granted size that nobody can draw again.",
    assumes="Asked as deployed, with secret randomness, for single steps that all records join: twice for the same, "
    "under another round, attempt and run, and with a book that knows nothing of the first time.",
)
def check_noise(audited: Audited, host: Host) -> Judged:
    """Check whether what the deployed client adds is Gaussian, as large as granted, and never the same.

    Args:
        audited: the same task, and the model that is sent.
        host: that is asked.
    """
    alarms = Alarms()
    try:
        noise = np.array([(one - other) / math.sqrt(2.0) for one, other in _update_pairs(audited, host)])
    except NoUpdateError:
        return Judged(math.inf, ["The client refuses a grant that its own configuration allows."])
    sizes = {f"layer '{n}'": p.numel() for n, p in trainable_parameters(audited.task.model()).items()}
    about = [f"update pair {number}" for number in range(1, len(noise) + 1)]
    judge_noise(alarms, ObservedNoise(rows=noise, of=" of updates", layers=sizes, about=about))
    return Judged(rms(noise), alarms.reasons, alarms.p_value)


def _update_pairs(audited: Audited, host: Host) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Two sums of the same records with the noise of each, in deviations of what was granted, shape [d] each."""
    grant = costliest(audited, host.node)
    deviation = grant.noise_multiplier * grant.clipping_norm * (1.0 + ROUNDING_ALLOWANCE)

    def noisy_sum(name: int) -> NDArray[np.float64]:
        """Return the sum for the grant under one of several names: round, attempt and run."""
        named = replace(grant, round=1 + name // 3, attempt=1 + name % 2, earlier_runs=name % 3)
        return audited.sum(host.client(), named, audited.parameters) / deviation

    sizes = [p.numel() for p in trainable_parameters(audited.task.model()).values()]
    fewest, most = _PAIRS if audited.effort is Effort.QUICK else (_PAIRS[0], 16 * _PAIRS[1])
    pairs = min(max(math.ceil(_LEAST_DRAWS / min(sizes)), fewest), most, max(int(_MOST_DRAWS / sum(sizes)), fewest))
    for number in range(pairs):
        yield noisy_sum(number), noisy_sum(number + number % 2)


def check_reading(audited: Audited, host: Host) -> Gate:
    """Fail if one cell changes other records, makes reading fail, or moves a public number of records."""
    trial = try_cells(host.node.task, host.node.settings.folder)
    reasons = [f"{misread}; {READERS}." for misread in trial.misread]
    proves = f"Nothing: no cell could be changed ({trial.untried})." if trial.untried else _READING_PROVES
    if trial.left:
        proves += f" {count_text(trial.columns, 'column')} tried, {trial.left} left out for want of time."
    return verdict("reading", proves, _READING_ASSUMES, Judged(float(len(reasons)), reasons))
