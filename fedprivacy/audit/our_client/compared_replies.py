"""All that our client replies, byte by byte, of neighbouring shards and with the noise frozen.

Numbers that carry noise are the arrays of an update, and what was released with them: the clipping norm of adaptive
clipping, the sums of a local evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from fedprivacy.audit.gates import Alarms
from fedprivacy.audit.our_client.audited_client import Audited, Parameters
from fedprivacy.audit.our_client.probes import Known, known_of, pairs_of, shard_of, without_last, zeros_for
from fedprivacy.audit.real_client import AskedClient
from fedprivacy.audit.subject import NOISED, Effort, Fields, Neighbours
from fedprivacy.flower.wire.messages import ASK, ENROL, GRANT, RECEIPT, Grant
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


class Raising(Known):
    """A known task whose loss raises on some records, and is no number on others."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The output; raises for a target of -1, with the record in the error, and is NaN for one that is NaN."""
        if bool((targets == _RAISES).any()):
            raise ValueError(f"Cannot use {outputs.tolist()}.")
        return outputs[:, 0] + 0.0 * targets


def neighbours(audited: Audited, alarms: Alarms) -> Iterator[Neighbours]:
    """Replies to every type of message, and to grants; of records that contribute nothing, too."""
    for about, one, other, parameters, evaluates in _neighbours(audited):
        for message_type in _ASKED:
            replies = [_reply(audited, client, message_type, parameters) for client in (one, other)]
            yield _compared(about, message_type, *replies)
        for grant in _grants(audited, evaluates=evaluates):
            replies = [_trained(client, grant, parameters) for client in (one, other)]
            alarms.must(
                any(name.startswith(NOISED) for name, _ in replies[0]),
                f"A client of such records sends no update, and shows that it has them ({about}).",
            )
            yield _compared(about, MessageType.TRAIN, *replies)
    for about, (mine, theirs) in chain(_same(audited), _null(audited)):
        told = f"Records that contribute nothing can be seen in {{}} ({about})."
        yield Neighbours(one=mine, other=theirs, in_words=told.format, alike=True)
    for complaint in _swayed(audited):
        alarms.must(False, complaint)


def _compared(about: str, message_type: str, one: Fields, other: Fields) -> Neighbours:
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


def _grants(audited: Audited, *, evaluates: bool) -> Iterator[Grant]:
    """The run's own grant, the same with everybody in, and one that has the model evaluated."""
    for rate in dict.fromkeys((audited.grant.sampling_rate, 1.0)):
        yield replace(audited.grant, sampling_rate=rate)
    if evaluates:
        yield replace(audited.grant, sampling_rate=1.0, steps=2, local_evaluation=True)


def _trained(client: AskedClient, grant: Grant, parameters: Parameters) -> Fields:
    try:
        return fields_of(client.asked(grant, parameters), grant)
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
    for grant in _grants(audited, evaluates=audited.grant.local_evaluation):
        one, other = (_trained(client.holding(shard), grant, audited.parameters) for shard in shards)
        yield "a null row among the task's own records, which a model may make something of", (one, other)


def _swayed(audited: Audited) -> Iterator[str]:
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
        replies = [fields_of(client.holding(shard).asked(grant, zeros_for(task))) for shard in held]
        if grant.adaptive is None:  # which counts the records of zeros, and releases the count with noise
            yield f"{number + 1} records of zeros instead of {number}", (replies[0], replies[1])
        yield f"a record that is not a number beside {number} of zeros", (replies[0], replies[2])
        yield f"a null record beside {number} of zeros", (replies[0], replies[3])
