"""The shards of a simulation side by side: records that count for nothing, records at several clients, empty shards.

All of it is private, and a simulation's user owns all of the records. A deployed client computes and tells none of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import torch

from fedprivacy.flower.client.local import engine_of
from fedprivacy.flower.simulated.trial import opened_shard
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.runs.settings.device import autocast_of
from fedprivacy.runs.usable import Usable, check_usable, null_records, usable_in_training
from fedprivacy.tasks import OnPublic, Shard, Task, TaskError
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.values.unit import unit_of
from fedprivacy.values.wording import count_text

log = logging.getLogger(__name__)

_TRIED, _COMPARED, _NAMED = 10, 100, 3
"""Number of clients of whose records gradients are tried, at most twice as many; of those compared; of those named."""

_RECORDS, _BYTES = 1000, 2**23
"""Largest number of a client's records that are compared with others', and of their bytes."""

_FEWEST, _FEWEST_IN_PART = 10, 20
"""Fewest different records by which a shard is known as a copy of another, or of a part: fewer may just agree."""


def check_shards(task: Task, config: RunConfig, parts: Sequence[int], *, computed: bool) -> None:
    """Tell of records that count for nothing, that several clients hold, and of clients without any.

    Args:
        task: as `try_task` has tried it.
        config: the simulation's configuration.
        parts: clients whose shards are open.
        computed: whether gradients are tried.

    Raises:
        TaskError: more than half of the records count for nothing, and the task does not allow it.
    """
    shards = {simulated_client_id(part, config.clients): opened_shard(task, config, part) for part in parts}
    if not isinstance(task, OnPublic):  # whose records are nobody's
        _tell_of_copies(shards)
    if empty := [client for client, shard in shards.items() if not len(shard)]:
        log.warning("%s: no record; see how the split gives its parts. Budgets are spent all the same.", _some(empty))
    tried = set(islice(shards, 0, None, max(1, len(shards) // _TRIED))) if computed else set()
    views, autocast = config.augmentation_multiplicity, autocast_of(config.autocast)
    found = {}
    for client, shard in shards.items():
        if client in tried:
            engine = engine_of(task, shard.inputs.device, config.clipping, max(views, 1), autocast)
            found[client] = usable_in_training(task, shard, engine, views)
        else:
            found[client] = null_records(shard)
    void = [client for client, usable in found.items() if usable.mostly_void]
    why = [f"of {_some(void)} more than half"] if void else []
    allowed = getattr(task, "allow_null", Task.allow_null)
    remedy = "" if allowed else "Mend them, or set allow_null = True in the task to train on the others."
    try:
        check_usable(sum(found.values(), Usable(0, 0)), task.name, remedy, unit=unit_of(task).name, why=why)
    except ValueError as error:
        raise TaskError(f"task {task.name}: {error}") from error


def _tell_of_copies(shards: Mapping[str, Shard]) -> None:
    """Warn of clients that hold the same records, as all do if the task forgets which part is asked for."""
    found = list(_copies(dict(islice(shards.items(), _COMPARED))))
    if not found:
        return
    first, second, held, records = found[0]
    more = f", and so it is with {count_text(len(found) - 1, 'other client')}" if found[1:] else ""
    log.warning(
        "%s and %s hold the same records (%s of %s)%s: a record loses at each client that holds it, so that epsilon "
        "holds for none of them. Let shard() return part source.partition_id of source.num_partitions; if different "
        "persons merely have the same values, all is well. Nothing is spent yet.",
        *(first, second, f"{held:,}", f"{records:,}", more),
    )


def _copies(shards: Mapping[str, Shard]) -> Iterator[tuple[str, str, int, int]]:
    """Yield each client whose records an earlier client holds: that one, the client, and how many of how many."""
    holder: dict[int, str] = {}
    counts: dict[str, Counter[int]] = {}
    for client, shard in shards.items():
        counts[client] = Counter(_hashes(shard))
        distinct, records = len(counts[client]), counts[client].total()
        others = Counter(holder[each] for each in counts[client] if each in holder)
        earlier, held = others.most_common(1)[0] if others else ("", 0)
        copied = held and distinct >= _FEWEST and counts[client] == counts[earlier]
        in_part = records >= _FEWEST_IN_PART and distinct >= 0.95 * records and 2 * held > distinct
        if copied or in_part:
            yield earlier, client, records if copied else held, records
        for each in counts[client]:
            holder.setdefault(each, client)


def _hashes(shard: Shard) -> Iterator[int]:
    """Yield a number for each of the first records, which is the same for the same bytes in this process."""
    if not len(shard.inputs):
        return
    records = max(_FEWEST_IN_PART, min(_RECORDS, _BYTES // max(shard.inputs[0].nbytes, 1)))
    inputs, targets = (rows[:records].cpu() for rows in (shard.inputs, shard.targets))
    as_bytes = [rows.reshape(len(rows), -1).contiguous().view(torch.uint8).numpy() for rows in (inputs, targets)]
    for own, aimed in zip(*as_bytes, strict=True):
        yield hash(own.tobytes() + aimed.tobytes())


def _some(clients: Sequence[str]) -> str:
    more = len(clients) - _NAMED
    return ", ".join(clients[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
