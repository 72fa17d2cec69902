"""The release firewall: everything that leaves a client, byte by byte, compared between neighbouring shards.

With the noise frozen, only noised numbers may differ: the arrays of an update, and what was released with them: the
clipping norm of adaptive clipping, the sums of a local evaluation. Names, order, types, shapes, sizes, settings,
counts, metrics, codes of errors, and whether there is a reply at all, are the same whatever the records are. And where
a record contributes nothing, nothing differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from fedprivacy.audit.gates.gate import MOST_REASONS, Judged, gate
from fedprivacy.audit.our_client.audited_client import Audited, Parameters
from fedprivacy.audit.our_client.known_gradients import Known, known_of, shard_of, zeros_for
from fedprivacy.audit.our_client.neighbouring_shards import pairs_of, without_last
from fedprivacy.audit.real_client import AskedClient
from fedprivacy.audit.subject import Effort
from fedprivacy.flower.wire.messages import ASK, ENROL, GRANT, RECEIPT, Grant
from fedprivacy.tasks import Shard

Fields = list[tuple[str, object]]
"""Everything that a reply says, in its order: what it is called, and what it is."""

NOISED = "noised"
"""Begins the names of those fields that may differ."""

_ASKED = (ENROL, ASK, MessageType.EVALUATE, MessageType.QUERY, *(f"{k}.more" for k in ("evaluate", "query", "train")))
"""Types of messages that ask for no update: to each, neighbours answer the same."""

_WORDS = (ConfigRecord({"proximal-mu": 1.0}), ConfigRecord({"server-round": 9, "epochs": 3, "batch-size": 1}))
"""What a server may say beside a grant: the pull of FedProx, which is nothing in a first step, and idle words."""

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


@gate(
    "release",
    proves="Nothing leaves the client that depends on a record, but for numbers that carry noise.",
    assumes="The neighbouring shards that were tried stand for all others. How long an answer takes is not judged.",
)
def check(audited: Audited) -> Judged:
    """Whether nothing but noised numbers depends on a record."""
    found = _Found()
    for about, one, other, parameters, evaluates in _neighbours(audited):
        if len(set(found.reasons)) >= MOST_REASONS:
            break
        for message_type in _ASKED:
            found.compare(about, message_type, *(_reply(audited, c, message_type, parameters) for c in (one, other)))
        for grant in _grants(audited, evaluates=evaluates):
            found.compare(about, MessageType.TRAIN, *(_trained(c, grant, parameters) for c in (one, other)))
    for about, same in chain(_same(audited), _null(audited)):
        found.same(about, *same)
    found.reasons += _swayed(audited)
    return Judged(float(len(found.reasons)), found.reasons)


@dataclass(slots=True)
class _Found:
    """What differed so far."""

    reasons: list[str] = field(default_factory=list)

    def compare(self, about: str, message_type: str, one: Fields, other: Fields) -> None:
        """Two replies to the same message must differ in nothing but what is noised."""
        if message_type == MessageType.TRAIN and not any(name.startswith(NOISED) for name, _ in one):
            self.reasons.append(f"A client of such records sends no update, and shows that it has them ({about}).")
        if (name := first_difference(one, other, all_of_it=False)) is not None:
            self.reasons.append(f"What leaves for '{message_type}' tells of a record without noise: {name} ({about}).")

    def same(self, about: str, one: Fields, other: Fields) -> None:
        """Two replies must be the same in every byte."""
        if (name := first_difference(one, other, all_of_it=True)) is not None:
            self.reasons.append(f"Records that contribute nothing can be seen in {name} ({about}).")


def first_difference(one: Fields, other: Fields, *, all_of_it: bool) -> str | None:
    """The name of the first field in which two replies differ; None: none, or in those alone that are noised."""
    if [name for name, _ in one] != [name for name, _ in other]:
        return "which fields there are, or their order"
    for (name, mine), (_, theirs) in zip(one, other, strict=True):
        if mine != theirs and (all_of_it or not name.startswith(NOISED)):
            return name.removeprefix(f"{NOISED} ")
    return None


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
    """What a receipt for a grant holds that came out of the mechanism."""
    if grant is None:
        return ()
    adapted = ("clipping_norm",) if grant.adaptive is not None else ()
    return (*adapted, "evaluation") if grant.local_evaluation else adapted


def _reply(audited: Audited, client: AskedClient, message_type: str, parameters: Parameters) -> Fields:
    """What comes back for a message; an exception would reach the server as an error with its text."""
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
    """In words, two new clients with neighbouring shards, the model that they are sent, and whether they can score it.

    Each client is made anew: what is prepared for one of them, by its first records, shows in the other no more.
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
    """What a server says beside the grant, and nobody charges for, changes nothing in a grant's first step."""
    task = known_of(audited)
    client, grant = audited.client_of(task, shard_of(torch.ones(3, sum(task.sizes)))), audited.asking()
    arrays = ArrayRecord({name: Array(values) for name, values in zeros_for(task).items()})

    def asked(words: ConfigRecord) -> Fields:
        content = RecordDict({"arrays": arrays, GRANT: grant.to_record(), "config": words})
        return fields_of(client.send(MessageType.TRAIN, content))

    usual = asked(ConfigRecord({"server-round": 1}))
    for words in _WORDS:
        if first_difference(usual, asked(words), all_of_it=True) is not None:
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
