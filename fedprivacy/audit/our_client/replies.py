"""Our client on neighbouring shards: all that it replies, and the steps that it takes, with the noise frozen.

**Replies** (`neighbours`) are compared byte by byte. Numbers that carry noise are the arrays of an update, and what was
released with them: the clipping norm of adaptive clipping, the sums of a local evaluation.

**Steps** (`changes`) are asked twice, with samples frozen, too, of shards that differ in one record. That a record
joined is judged by meaning, not by the sampler's word: at each position a record whose gradient is known is asked about
under the same name and place, and it joined if what left changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy.audit.gates import Alarms
from fedprivacy.audit.our_client.audited_client import SILENT, Audited, Parameters, noisy_count
from fedprivacy.audit.our_client.probes import (
    Known,
    dense,
    hostile_parameters,
    known_of,
    pairs_alone,
    pairs_of,
    shard_of,
    without_last,
    zeros_for,
)
from fedprivacy.audit.real_client import AskedClient
from fedprivacy.audit.subject import NOISED, Change, Effort, Fields, Neighbours, distance
from fedprivacy.flower.wire.messages import ASK, ENROL, GRANT, RECEIPT, Grant
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.tasks import Shard

_ASKED = (ENROL, ASK, MessageType.EVALUATE, MessageType.QUERY, *(f"{k}.more" for k in ("evaluate", "query", "train")))
"""Types of messages that ask for no update: to each, neighbours answer the same."""

_WORDS = (ConfigRecord({"proximal-mu": 1.0}), ConfigRecord({"server-round": 9, "epochs": 3, "batch-size": 1}))
"""Records that a server may send beside a grant: the pull of FedProx, zero in a first step, and meaningless words."""

_RAISES = -1.0

_NO_POWER_OF_TWO = 3.0
"""A divisor that rounds: what it divides can be told from the last bits of the quotient."""

_LOUD, _WIDE = 1e3, 256
"""A noise multiplier that leaves no bit of a float32 number unused, and coordinates enough to see one more bit."""

_MOST_RECORDS = 1024
"""Sums of up to so many records must not be told from those of one more: they were, once, by their type."""

_READING = 2.0**-21
"""Error of float32 that a reading of a release may have, relative to its norm."""

_RECORDS = 40
"""Number of records in the shards that a known record joins."""

_STEPS = 3
"""Number of steps in a round whose steps are compared."""

_TRACE, _SHORT = 1e-4, 2e-2
"""Below the first, in clipping norms, a change is float32's; up to the second a record that joined may fall short."""

_FOLLOWED = 1e-3
"""Maximum deviation of an optimiser by float32, relative to the distance that it moves."""


class Raising(Known):
    """A known task whose loss raises on some records, and is no number on others."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The output; raises for a target of -1, with the record in the error, and is NaN for one that is NaN."""
        if bool((targets == _RAISES).any()):
            raise ValueError(f"Cannot use {outputs.tolist()}.")
        return outputs.sum(1) + 0.0 * targets


def neighbours(audited: Audited, alarms: Alarms) -> Iterator[Neighbours]:
    """Replies to every type of message, and to grants; of records that contribute nothing, too."""
    for about, one, other, parameters, evaluates in _neighbours(audited):
        for message_type in _ASKED:
            replies = [_reply(audited, client, message_type, parameters) for client in (one, other)]
            yield _compare(about, message_type, *replies)
        for grant in _reply_grants(audited, evaluates=evaluates):
            replies = [_training_reply(client, grant, parameters) for client in (one, other)]
            alarms.must(
                any(name.startswith(NOISED) for name, _ in replies[0]),
                f"A client of such records sends no update, and shows that it has them ({about}).",
            )
            yield _compare(about, MessageType.TRAIN, *replies)
    for about, (mine, theirs) in chain(_same(audited), _null(audited)):
        told = f"Records that contribute nothing can be seen in {{}} ({about})."
        yield Neighbours(one=mine, other=theirs, in_words=told.format, alike=True)
    for complaint in _effects_of_extra_words(audited):
        alarms.must(False, complaint)


def _compare(about: str, message_type: str, one: Fields, other: Fields) -> Neighbours:
    """Two replies to the same message."""
    told = f"What leaves for '{message_type}' tells of a record without noise: {{}} ({about})."
    return Neighbours(one=one, other=other, in_words=told.format)


def fields_of(reply: Message, grant: Grant | None = None) -> Fields:
    """Everything in a reply but when it was sent, and how long after that Flower keeps it.

    Args:
        reply: of a client.
        grant: that it answers: it says what on the receipt is noised.
    """
    facts = reply.metadata
    fields: Fields = [("the reply's type", facts.message_type), ("its receiver", facts.dst_node_id)]
    fields.append(("its group", facts.group_id))
    if reply.has_error():
        return [*fields, ("the error's code", reply.error.code), ("the error's text", reply.error.reason)]
    for name, record in reply.content.items():
        fields.append((f"record '{name}'", type(record).__name__))
        for key, value in record.items():
            about = f"'{key}' of record '{name}'"
            if isinstance(value, Array):
                fields.append((f"the form of {about}", (value.dtype, tuple(value.shape), value.stype, len(value.data))))
                fields.append((f"{NOISED} {about}", bytes(value.data)))
            else:
                noised = name == RECEIPT and key in _noised_in_receipt(grant)
                fields.append((f"{NOISED} {about}" if noised else about, (type(value).__name__, repr(value))))
    return fields


def _noised_in_receipt(grant: Grant | None) -> tuple[str, ...]:
    """Names of the fields that the mechanism released in a receipt for a grant."""
    if grant is None:
        return ()
    adapted = ("clipping_norm",) if grant.adaptive is not None else ()
    return (*adapted, "evaluation") if grant.local_evaluation else adapted


def _reply(audited: Audited, client: AskedClient, message_type: str, parameters: Parameters) -> Fields:
    """Return the reply to a message; an exception would reach the server as an error with its text."""
    arrays = ArrayRecord({name: Array(values) for name, values in parameters.items()})
    settings = ConfigRecord({"server-round": 1})
    content = RecordDict({"arrays": arrays, GRANT: audited.grant.to_record(), "config": settings})
    try:
        return fields_of(client.send(message_type, content))
    except Exception as error:
        return [("the exception", type(error).__name__), ("its text", str(error))]


def _reply_grants(audited: Audited, *, evaluates: bool) -> Iterator[Grant]:
    """The run's own grant, the same with everybody in, and one that has the model evaluated."""
    for rate in dict.fromkeys((audited.grant.sampling_rate, 1.0)):
        yield replace(audited.grant, sampling_rate=rate)
    if evaluates:
        yield replace(audited.grant, sampling_rate=1.0, steps=2, local_evaluation=True)


def _training_reply(client: AskedClient, grant: Grant, parameters: Parameters) -> Fields:
    try:
        return fields_of(client.ask(grant, parameters), grant)
    except Exception as error:
        return [("the exception", type(error).__name__), ("its text", str(error))]


def _neighbours(audited: Audited) -> Iterator[tuple[str, AskedClient, AskedClient, Parameters, bool]]:
    """Yield words, two new clients with neighbouring shards, the model sent to them, and whether they can score it.

    Each client is made anew, so that nothing prepared for one of them, from its first records, shows in the other.
    """
    raising = Raising(known_of(audited).sizes[:2], audited.grant.relation, audited.task.dataset)
    for about, one, other in _raising(raising):
        yield about, audited.client_of(raising, one), audited.client_of(raising, other), zeros_for(raising), True
    quick = audited.effort is Effort.QUICK
    pairs = pairs_of(audited, records=1)
    empty = without_last(pairs[0].alone, size_public=audited.task.shard_sizes_public)
    for about, one, other in [
        *((p.about, p.with_it, p.without) for p in (pairs[:4] if quick else pairs)),
        ("the only record of the shard", pairs[0].alone, empty),
    ]:
        clients = audited.client_of(audited.task, one), audited.client_of(audited.task, other)
        yield about, *clients, audited.parameters, audited.grant.local_evaluation


def _raising(task: Raising) -> Iterator[tuple[str, Shard, Shard]]:
    """Shards that differ in one record of which the loss cannot be computed; in words, with it, and without it."""
    d = sum(task.sizes)
    for others in (0, 1, 20):
        records = torch.ones(others + 1, d)
        for about, target in (("the loss raises on a record", _RAISES), ("the loss is no number", torch.nan)):
            targets = torch.zeros(others + 1)
            targets[-1] = target
            shard = shard_of(records, targets)
            without = without_last(shard, size_public=task.shard_sizes_public)
            yield f"{about}, among {others} others", shard, without


def _null(audited: Audited) -> Iterator[tuple[str, tuple[Fields, Fields]]]:
    """Replies of clients with the task's own records, with a null row among them and without: the same."""
    records = pairs_of(audited, records=1)[0].with_it
    shards = [without_last(records, size_public=public) for public in (True, False)]
    client = audited.client_of(audited.task, shards[0])
    for grant in _reply_grants(audited, evaluates=audited.grant.local_evaluation):
        one, other = (_training_reply(client.holding(shard), grant, audited.parameters) for shard in shards)
        yield "a null row among the task's own records, which a model may make something of", (one, other)


def _effects_of_extra_words(audited: Audited) -> Iterator[str]:
    """Yield complaints if words beside the grant, which nobody charges for, change something in its first step."""
    task = known_of(audited)
    client, grant = audited.client_of(task, shard_of(torch.ones(3, sum(task.sizes)))), audited.asking()
    arrays = ArrayRecord({name: Array(values) for name, values in zeros_for(task).items()})

    def asked(words: ConfigRecord) -> Fields:
        content = RecordDict({"arrays": arrays, GRANT: grant.to_record(), "config": words})
        return fields_of(client.send(MessageType.TRAIN, content))

    usual = asked(ConfigRecord({"server-round": 1}))
    for words in _WORDS:
        if usual != asked(words):
            yield f"What a server says beside its grant changes what leaves: {', '.join(words)}."


def _same(audited: Audited) -> Iterator[tuple[str, tuple[Fields, Fields]]]:
    """Replies of clients with records that contribute nothing, one more and one less: the same, with public numbers."""
    task = Known([_WIDE], audited.grant.relation, audited.task.dataset)
    changed = {"expected_batch_size": _NO_POWER_OF_TWO, "learning_rate": 1.0, "noise_multiplier": _LOUD}
    grant = audited.asking(sampling_rate=1.0, **changed)
    client = audited.client_of(task, shard_of(torch.zeros(0, _WIDE)))
    for number in (0, 1, 16, 128, _MOST_RECORDS):
        shards = [torch.zeros(number, _WIDE), torch.zeros(number + 1, _WIDE)]
        unreadable = torch.zeros(number + 1, _WIDE)
        unreadable[-1] = torch.nan
        held = [*map(shard_of, [*shards, unreadable]), without_last(shard_of(shards[1]), size_public=True)]
        replies = [fields_of(client.holding(shard).ask(grant, zeros_for(task))) for shard in held]
        if grant.adaptive is None:  # which counts the records of zeros, and releases the count with noise
            yield f"{number + 1} records of zeros instead of {number}", (replies[0], replies[1])
        yield f"a record that is not a number beside {number} of zeros", (replies[0], replies[2])
        yield f"a null record beside {number} of zeros", (replies[0], replies[3])


def changes(audited: Audited, alarms: Alarms) -> Iterator[Change]:
    """Changes by known records, in one step and in several, and by the task's own."""
    joining = _Joining(audited)
    yield from _known_records(audited, alarms, joining)
    yield from _several_steps(audited, joining)
    _own_optimizer(audited, alarms, joining)
    yield from _own_records(audited, alarms, joining)


def _change(
    audited: Audited,
    one: NDArray[np.float64],
    other: NDArray[np.float64],
    bound: float,
    *,
    joined: bool,
    about: str,
    own: bool = False,
) -> Change:
    """The change between two releases that one record may change by a bound, if it joined."""
    return Change(
        about=about,
        moved=distance(one, other),
        allowed=bound * (1.0 + ROUNDING_ALLOWANCE) + _READING * float(np.linalg.norm(one)),
        clipping_norm=audited.grant.clipping_norm,
        joined=joined,
        confidential=own and audited.confidential,
    )


def _replay(
    audited: Audited,
    alarms: Alarms,
    grant: Grant,
    clients: tuple[AskedClient, AskedClient],
    parameters: Parameters,
    *,
    joined: bool,
    about: str,
    own: bool = False,
) -> Iterator[Change]:
    """Ask two clients with neighbouring shards the same, and compare."""
    (one, first), (other, second) = (audited.answer(client, grant, parameters) for client in clients)
    yield _change(audited, one, other, audited.grant.clipping_norm, joined=joined, about=about, own=own)
    if (adaptive := grant.adaptive) is None:
        alarms.must(
            first.receipt == second.receipt, f"A record changed what the client says of its own training ({about})."
        )
        return
    whole, rest = (
        np.append(released, noisy_count(adaptive, grant, answer.receipt.clipping_norm))
        for released, answer in ((one, first), (other, second))
    )
    about = f"{about}, with the count of adaptive clipping"
    yield _change(audited, whole, rest, audited.sensitivity, joined=joined, about=about, own=own)


class _Joining:
    """Record of who joins at which position, as seen in what leaves a client whose records are known."""

    def __init__(self, audited: Audited) -> None:
        self._audited, self.task = audited, known_of(audited)
        self.parameters = zeros_for(self.task)
        self.client = audited.client_of(self.task, shard_of(torch.zeros(0, sum(self.task.sizes))))
        self._known: dict[tuple[Grant, int], bool] = {}

    def joins(self, grant: Grant, place: int) -> bool:
        """Return whether the record at `place`, counted from 0, joins the only step of a grant."""
        if (grant, place) not in self._known:
            records = torch.zeros(place + 1, sum(self.task.sizes))
            blank = self._sum(shard_of(records.clone()), grant)
            records[place] = 100.0 * self._audited.grant.clipping_norm
            self._known[grant, place] = bool((self._sum(shard_of(records), grant) != blank).any())
        return self._known[grant, place]

    def _sum(self, shard: Shard, grant: Grant) -> NDArray[np.float64]:
        return self._audited.sum(self.client.holding(shard), grant, self.parameters)


def _one_step_grants(audited: Audited, count: int) -> Iterator[Grant]:
    """One step with the run's own sampling rate in several rounds, and one that everybody joins."""
    if audited.grant.sampling_rate < 1.0:
        yield from (audited.asking(**position) for position in audited.positions(count))
    yield audited.asking(sampling_rate=1.0)


def _known_records(audited: Audited, alarms: Alarms, joining: _Joining) -> Iterator[Change]:
    """Records that are their gradients: along one coordinate of each layer, along all, against everybody, none."""
    task, client, parameters = joining.task, joining.client, joining.parameters
    for about, shard, record in _cases(task, audited):
        both = shard_of(torch.cat([shard, record[None]]))
        with_it = client.holding(both)
        without = client.holding(without_last(both, size_public=task.shard_sizes_public))
        for grant in _one_step_grants(audited, 3 if audited.effort is Effort.QUICK else 12):
            joined = joining.joins(grant, len(shard))
            yield from _replay(audited, alarms, grant, (with_it, without), parameters, joined=joined, about=about)


def _cases(task: Known, audited: Audited) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield a record's description, the shard that it joins [records, d], and the record [d]."""
    sizes, generator, norm = task.sizes, audited.generator(1), audited.grant.clipping_norm
    d = sum(sizes)
    crowd = torch.randn(_RECORDS, d, generator=generator)
    crowd *= (2.0 * torch.rand(_RECORDS, 1, generator=generator) * norm) / crowd.norm(dim=1, keepdim=True)
    everywhere = dense(sizes, generator)
    firsts = torch.zeros(d)
    for number, start in enumerate([0, *np.cumsum(sizes)[:-1].tolist()]):
        along = torch.zeros(d)
        along[start] = -50.0 * norm
        firsts[start] = 50.0 * norm
        yield f"a record along one coordinate of layer {number + 1}", crowd, along
    yield "a record along one coordinate of every layer", crowd, firsts
    yield "a record along all coordinates", crowd, 5e3 * norm * everywhere
    yield "a record of enormous numbers", crowd, 1e18 * everywhere
    yield "a record half as long as the clipping norm", crowd, 0.5 * norm * everywhere
    yield "a record against all others", crowd, -1e4 * norm * crowd.mean(0)
    yield (
        "a record that is not a number, among records that all point one way",
        _alike(everywhere, -3.0 * norm),
        (torch.full((d,), torch.nan)),
    )
    yield (
        "an infinite record, among records that all point one way",
        _alike(everywhere, -3.0 * norm),
        (torch.full((d,), torch.inf)),
    )
    yield "a record against records that all point one way", _alike(everywhere, -3.0 * norm), 1e4 * norm * everywhere
    yield "a huge record among tiny ones", _alike(everywhere, 1e-3 * norm)[:3], -1e4 * norm * everywhere
    yield "the only record", crowd[:0], 1e4 * norm * everywhere
    yield "a record of zeros", crowd, torch.zeros(d)


def _alike(record: Tensor, length: float) -> Tensor:
    return (length * record).expand(_RECORDS, len(record)).clone()


def _several_steps(audited: Audited, joining: _Joining) -> Iterator[Change]:
    """Several steps of one grant: a record changes the steps that it joined, and leaves no trace in the others.

    It alone contributes, and the noise is silent: a step that it joined moves by C, any other by nothing.
    """
    if audited.grant.adaptive is not None:  # what it did to one step's norm, it may do to the next one's sum
        return
    task, client, parameters = joining.task, joining.client, joining.parameters
    generator, norm = audited.generator(2), audited.grant.clipping_norm
    record = 1e4 * norm * dense(task.sizes, generator)
    both = shard_of(torch.stack([torch.zeros_like(record), record]))
    without = without_last(both, size_public=task.shard_sizes_public)
    clients = [client.holding(shard) for shard in (both, without)]
    rate = min(audited.grant.sampling_rate, 0.5)
    for position in audited.positions(6 if audited.effort is Effort.QUICK else 24, first=101):
        grant = audited.asking(steps=_STEPS, sampling_rate=rate, noise_multiplier=SILENT, **position)
        ones, others = (audited.sums(asked, grant, parameters) for asked in clients)
        for number, (one, other) in enumerate(zip(ones, others, strict=True), 1):
            change = float(np.linalg.norm(one - other)) / norm
            untouched = change < _TRACE
            joined, about = change > 1.0 - _SHORT, f"step {number} of a round"
            yield _change(audited, one, one if untouched else other, norm, joined=joined, about=about)


def _own_optimizer(audited: Audited, alarms: Alarms, joining: _Joining) -> None:
    """The run's own optimiser moves the parameters by the released sums, and by nothing else."""
    steps = 1 if audited.grant.adaptive is not None else _STEPS
    task, generator = joining.task, audited.generator(6)
    records = audited.grant.clipping_norm * torch.stack([dense(task.sizes, generator) for _ in range(8)])
    client, parameters = joining.client.holding(shard_of(records)), joining.parameters
    own = replace(audited.grant, round=201, steps=steps, local_evaluation=False)
    sums = audited.sums(client, audited.asking(round=201, steps=steps), parameters)
    expected = torch.zeros(sum(task.sizes))
    move = own.local_optimizer.start(expected)
    for released in sums:
        move(torch.from_numpy(released / own.expected_batch_size).float())
    moved = torch.from_numpy(client.answer(own, parameters).flat).float()
    alarms.must(
        float((moved - expected).norm()) <= _FOLLOWED * float(expected.norm()),
        "The model moved by something else than the noisy sums of the steps and the run's own optimiser.",
    )


def _own_records(audited: Audited, alarms: Alarms, joining: _Joining) -> Iterator[Change]:
    """Records of the task's own kind, under a new model's parameters, large ones, and hostile ones."""
    quick = audited.effort is Effort.QUICK
    for about, parameters in hostile_parameters(audited):
        for pair in pairs_of(audited, records=2 if quick else 8):
            clients = audited.client.holding(pair.with_it), audited.client.holding(pair.without)
            for grant in _one_step_grants(audited, 1 if quick else 4):
                joined = joining.joins(grant, pair.place)
                where = f"{pair.about}, {about}"
                yield from _replay(audited, alarms, grant, clients, parameters, joined=joined, about=where, own=True)
        grant = audited.asking(sampling_rate=1.0)
        for pair in pairs_alone(audited, records=6 if quick else 24):
            clients = audited.client.holding(pair.with_it), audited.client.holding(pair.without)
            where = f"{pair.about}, {about}"
            yield from _replay(audited, alarms, grant, clients, parameters, joined=True, about=where, own=True)
