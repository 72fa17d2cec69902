"""Answers: what leaves of a client's table, at the price of one release.

A server that may ask may ask whenever it likes, whatever a run's settings are, so every client is asked. The tables are
the auditor's. Those that differ in one record are answered with the noise frozen, so that what differs is what the
record does; nobody's records show the noise. What a deployed client decides by itself is looked at in
`small_groups`.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from scipy import stats

from fedprivacy.audit.gates.alarms import Alarms, of_correlations, of_echoes, of_variance, rms
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.gates.leaks import differences
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.our_client.compared_replies import fields_of
from fedprivacy.audit.our_client.known_gradients import Known, like, shard_of, zeros_for
from fedprivacy.audit.real_client import AskedClient, NoUpdateError
from fedprivacy.audit.silence import silence
from fedprivacy.audit.subject import Effort
from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.ask_clients import ask_clients
from fedprivacy.flower.wire.messages import RECEIPT, QuestionGrant, Receipt, spending
from fedprivacy.ledger import Ledger
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.runs.plans.question_plan import question_plan
from fedprivacy.runs.settings.configuration import Value
from fedprivacy.tasks import Shard, ShardSource
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.identity import dataset_id
from fedprivacy.values.attempt import QUESTIONS, Attempt
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.privacy.selftests.small_groups import of_deployed

_SIGMA = 2.0
"""The noise multiplier of what is asked."""

_BOUNDS = {"number": (-1.0, 1.0), "other": (0.0, 10.0)}

_OF_ALL_KINDS: Sequence[Question] = (
    Questions.count(),
    Questions.count(where={"number": (0.0, 2.0)}, by={"level": ["a", "b"]}),
    Questions.categories("level", ["a", "b"]),
    Questions.histogram("number", -1.0, 1.0, 8),
    Questions.sum("other", 0.0, 10.0, by={"level": ["a", "b"]}),
    Questions.mean("number", -1.0, 1.0),
    Questions.mean_and_scale(_BOUNDS, where={"level": ["a", "b"]}),
    Questions.covariance(_BOUNDS),
    Questions.quantiles("number", -1.0, 1.0, points=16),
)
"""Questions whose totals a record at the bounds moves as far as it can."""

_SHARES = tuple(2.0 ** (number % 4) for number in range(len(_OF_ALL_KINDS)))

_OF_NOBODY: Sequence[Question] = (
    Questions.histogram("number", -1.0, 1.0, 40),
    Questions.mean_and_scale(_BOUNDS),
    Questions.quantiles("number", -1.0, 1.0, points=40),
    Questions.categories("level", ["a", "b"], by={"level": ["a", "b"]}),
    Questions.histogram("other", 0.0, 10.0, 40),
)
"""Questions whose totals are zero without a record, and with records that say nothing."""

_OF_NOBODY_SHARES = (1.0, 2.0, 4.0, 1.0, 8.0)

_WIDTHS = [len(question.groups) * question.width for question in _OF_NOBODY]
"""Of their totals."""

_CLIENTS = 3
"""Of a rehearsal."""

_ROUNDED = 1.0 + 1e-9
"""What one record may move all answers together by, in units of what is charged for."""


class _Raising:
    """A cell that fails whoever reads it."""

    def _fail(self, *_: object) -> Any:
        raise ValueError("4711")

    __str__ = __float__ = __eq__ = __hash__ = __bool__ = _fail


_CELLS: dict[str, tuple[object, object, object]] = {
    "a record at the bounds": (1.0, 10.0, "a"),
    "a record at the other bounds": (-1.0, 0.0, "b"),
    "a record in the middle": (0.0, 5.0, "a"),
    "a record of huge numbers": (1e300, -1e300, "a"),
    "a record that is not a number": (math.nan, math.inf, "b"),
    "a record of text": ("x", "1e1", " a "),
    "a huge whole number": (10**400, 10**5000, "a"),
    "a record that cannot be read": (_Raising(), _Raising(), _Raising()),
    "a record of another level": (0.5, 5.0, "of nobody else"),
    "a null record": (None, None, None),
}
"""Records, each a cell for every column."""

Cells = list[tuple[object, object, object]]


@gate(
    "answers",
    proves="An answer to questions tells of one record at most what was charged for it, with that noise, and no more.",
    assumes="The questions and tables that were tried stand for all others. How long an answer takes is not judged.",
)
def check(audited: Audited) -> Judged:
    """Check that noisy totals are what one release of the mechanism may be, and all that leaves."""
    found = _Found(audited)
    with silence():
        _one_record(found)
        _unreadable(found)
        _noise(found)
        _charged(found)
        of_deployed(found.alarms)
    return Judged(found.largest, found.alarms.reasons, found.alarms.p_value)


@dataclass
class _Found:
    """What was found so far: the alarms, and by how much one record moved all totals, in what was charged for."""

    audited: Audited
    alarms: Alarms = field(default_factory=Alarms)
    largest: float = 0.0

    def grant(self, questions: Sequence[Question], shares: Sequence[float], **changed: Any) -> QuestionGrant:
        """For these questions."""
        usual = self.audited.grant
        event = PoissonSampledGaussian(1.0, _SIGMA, usual.relation)
        asked = QuestionGrant(
            **spending(Attempt(f"{QUESTIONS}audit", 1), usual.client_id, 1, event, unit=usual.unit, clipping_norm=1.0),
            questions=Questionnaire(tuple(questions), tuple(shares)).as_text(),
            earlier_runs=0,
            charged="",
            server_key="",
        )
        return replace(asked, **changed)

    def client(self) -> tuple[Known, AskedClient]:
        """A known task, and a new client of it without a record."""
        task = like(self.audited, [max(_WIDTHS)])
        return task, self.audited.client_of(task, _shard(0))


def _table(cells: Cells) -> Table:
    columns = zip(*cells, strict=True) if cells else ((), (), ())
    return Table(dict(zip(("number", "other", "level"), map(list, columns), strict=True)))


def _shard(records: int) -> Shard:
    """So many records of zeros, from which nothing is trained."""
    return shard_of(torch.zeros(records, max(_WIDTHS)))


def _holding(client: AskedClient, cells: Cells) -> AskedClient:
    return client.holding(_shard(len(cells)), _table(cells))


def _units(questions: Sequence[Question], shares: Sequence[float]) -> list[float]:
    """The deviation of the noise in the totals of each question, as it is claimed for its share."""
    return [
        _SIGMA * math.sqrt(sum(shares) / share) * math.sqrt(question.squared_sensitivity)
        for question, share in zip(questions, shares, strict=True)
    ]


def _totals(reply: Message, questions: Sequence[Question]) -> list[NDArray[np.float64]]:
    """The noisy totals of each question.

    Raises:
        NoUpdateError: the client sent none, or others.
    """
    if reply.has_error() or RECEIPT not in reply.content:
        raise NoUpdateError("The client does not answer the auditor's questions.")
    arrays = [array.numpy() for array in reply.content.array_records[ARRAYS].values()]
    if [array.shape for array in arrays] != [(len(each.groups), 1 + each.width) for each in questions]:
        raise NoUpdateError("The client answers other questions than it was asked.")
    return [array[:, 1:].astype(np.float64) for array in arrays]


def _one_record(found: _Found) -> None:
    """One record moves all totals together by what is charged for, whoever else is there, and moves nothing else."""
    _, client = found.client()
    grant, alarms = found.grant(_OF_ALL_KINDS, _SHARES), found.alarms
    removed = found.audited.grant.relation is NeighbouringRelation.ADD_OR_REMOVE_ONE
    null: Cells = [] if removed else [_CELLS["a null record"]]
    crowds: list[Cells] = [[], [_CELLS["a record in the middle"]] * 9, [(0.9, 9.0, "b"), (None, None, "a")] * 20]
    for crowd in crowds:
        without = _holding(client, [*crowd, *null]).questioned(grant)
        for cells, record in _CELLS.items():
            about = f"{cells}, among {len(crowd)} others"
            with_it = _holding(client, [*crowd, record]).questioned(grant)
            name = next(differences(fields_of(with_it), fields_of(without), all_of_it=False), None)
            alarms.must(name is None, f"What leaves for an answer tells of a record without noise: {name} ({about}).")
            moved = _moved(with_it, without)
            alarms.must(moved <= _ROUNDED, f"One record moved an answer by more than was charged for ({about}).")
            found.largest = max(found.largest, moved)
    alarms.must(found.largest > 0.5, "No record moved an answer: nothing was seen of how far one can.")


def _moved(with_it: Message, without: Message) -> float:
    """How far two answers with the same noise are apart, in units of what is charged for."""
    pairs = zip(_totals(with_it, _OF_ALL_KINDS), _totals(without, _OF_ALL_KINDS), strict=True)
    units = _units(_OF_ALL_KINDS, _SHARES)
    moves = [np.square((one - other) / unit).sum() for (one, other), unit in zip(pairs, units, strict=True)]
    return _SIGMA * math.sqrt(sum(moves))


def _unreadable(found: _Found) -> None:
    """Tables that cannot be read are one code, whatever reading them raised."""
    _, client = found.client()
    grant, nobody = found.grant(_OF_ALL_KINDS, _SHARES), _shard(0)
    raised = [ValueError("record 1"), KeyError("record 2"), MemoryError("record 3")]
    replies = [fields_of(client.holding(nobody, error).questioned(grant)) for error in raised]
    for reply in replies[1:]:
        name = next(differences(replies[0], reply, all_of_it=True), None)
        found.alarms.must(name is None, f"What went wrong with a table leaves the client: {name}.")


def _noise(found: _Found) -> None:
    """The noise of answers about nobody: its size in every total, its shape, and that it is no other release's."""
    alarms, rows = found.alarms, list[NDArray[np.float64]]()
    units = _units(_OF_NOBODY, _OF_NOBODY_SHARES)
    for client, grant in _asked(found):
        totals = _totals(client.questioned(grant), _OF_NOBODY)
        rows.append(np.concatenate([part.ravel() / unit for part, unit in zip(totals, units, strict=True)]))
    noise = np.array(rows)
    parts = np.split(noise, np.cumsum(_WIDTHS)[:-1], axis=1)
    for question, part, update in zip(_OF_NOBODY, parts, _updates(found), strict=True):
        about = f"The noise of an answer is {rms(part):.3g} times what is charged for ({question.kind}); it must be 1."
        alarms.test(of_variance(part), about)
        least = part[:, int(np.square(part).sum(0).argmin())]
        alarms.test(min(1.0, part.shape[1] * of_variance(least)), f"A total has another noise ({question.kind}).")
        same = "The noise of an answer can be told from that of another, or of an update: a server could subtract it."
        alarms.test(of_correlations([*part, update[: part.shape[1]]])[0], same)
    alarms.test(of_variance(noise), f"The noise of answers is {rms(noise):.3g} times what is charged for.")
    alarms.test(float(stats.kstest(noise.ravel(), stats.norm.cdf).pvalue), "The noise of answers is not Gaussian.")
    alarms.test(of_echoes(noise), "The noise of an answer repeats itself: from one question another can be told.")


def _updates(found: _Found) -> list[NDArray[np.float64]]:
    """The noise of as many steps of training as there are questions, in the round in which they are first asked."""
    task, client = found.client()
    return found.audited.sums(client, found.audited.asking(steps=len(_OF_NOBODY)), zeros_for(task))


def _asked(found: _Found) -> Iterator[tuple[AskedClient, QuestionGrant]]:
    """Clients without a record, or with some that say nothing, in several rounds, attempts and runs."""
    task, client = found.client()
    quick = found.audited.effort is Effort.QUICK
    positions: list[dict[str, Any]] = [{}, {"attempt": 2}, {"earlier_runs": 1}, {"attempt": 3, "earlier_runs": 2}]
    positions += [*found.audited.positions(24 if quick else 200, first=2)]
    for number, position in enumerate(positions):
        holding = _holding(client, [_CELLS["a null record"]] * (0, 3, 40)[number % 3])
        yield holding, found.grant(_OF_NOBODY, _OF_NOBODY_SHARES, **position)
    secret = AskedClient(task, _shard(0), device=found.audited.device)
    for _ in range(2):
        yield _holding(secret, []), found.grant(_OF_NOBODY, _OF_NOBODY_SHARES)


class _Rehearsed(Known):
    """A task whose clients hold ten records each."""

    name = "answering"

    def table(self, source: ShardSource) -> Table:
        """Always the same."""
        return _table([_CELLS["a record in the middle"]] * 10)

    def partition(self, num_partitions: int) -> str:
        """Always the same split."""
        return f"{num_partitions} parts"


def _charged(found: _Found) -> None:
    """A rehearsal: the ledger holds what each client's receipt says; an answer is free again, and not if asked anew."""
    task = _Rehearsed([1], found.audited.grant.relation, f"answering-{found.audited.task.dataset}")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'ledger.db'}"
        settings: dict[str, Value] = {"clients": _CLIENTS, "noise-multiplier": _SIGMA, "epsilon": 1e6, "delta": 1e-5}
        plan = question_plan(settings | {"ledger": url, "seed": found.audited.seed}, task)
        grid = _Noting(private_client(task, plan.config), _CLIENTS, {})
        asked = Questionnaire(tuple(_OF_ALL_KINDS), _SHARES)
        first, again = ask_clients(grid, plan, asked), ask_clients(grid, plan, asked)
        anew = ask_clients(grid, plan, asked, anew=True)
        datasets = [dataset_id(task, client_id) for client_id in first.told]
        charged = Ledger(url).accounts(datasets)
    executed = sum(receipt.steps for receipt in grid.receipts)
    found.alarms.must(
        len(first.told) == _CLIENTS and executed == 2 * _CLIENTS and len(again.reread) == _CLIENTS,
        "A client was asked again for an answer that the ledger has, or could not be asked at all.",
    )
    found.alarms.must(
        all(charged[dataset].history == {plan.event(): 2} for dataset in datasets),
        "The ledger holds something else than what answering cost a client.",
    )
    found.alarms.must(
        all(receipt.event == plan.event() for receipt in grid.receipts),
        "A client's receipt for an answer says something else than it was granted.",
    )
    found.alarms.must(
        again.federation == first.federation and anew.federation != first.federation,
        "An answer that was read again is another one, or one that was asked anew is the same.",
    )


class _Noting(InProcessGrid):
    """Notes what clients say that answers cost."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.receipts: list[Receipt] = []

    def _deliver(self, message: Message) -> Message:
        reply = super()._deliver(message)
        if reply.has_content() and RECEIPT in reply.content:
            self.receipts.append(Receipt.of(reply))
        return reply
