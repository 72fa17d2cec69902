"""The shards of a simulation side by side: records that count for nothing, records at several clients, empty shards.

All of it is private, and a simulation's user owns all of the records. A deployed client computes and tells none of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import torch

from fedprivacy.flower.client.local import engine_of
from fedprivacy.flower.simulated.trial import opened_shard
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.runs.settings.device import autocast_of
from fedprivacy.runs.usable import Usable, check_usable, null_records, usable_in_training
from fedprivacy.tasks import OnPublic, Shard, ShardSource, TaskError
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.values.cell_text import text
from fedprivacy.values.wording import count_text

log = logging.getLogger(__name__)

_TRIED, _COMPARED, _NAMED = 10, 100, 3
"""Number of clients of whose records gradients are tried, at most twice as many; of those compared; of those named."""

_RECORDS, _BYTES = 1000, 2**23
"""Largest number of a client's records that are compared with others', and of their bytes."""

_FEWEST, _FEWEST_IN_PART = 10, 20
"""Fewest different records by which a shard is known as a copy of another, or of a part: fewer may just agree."""


def check_shards(task: OpenedTask, config: RunConfig, parts: Sequence[int], device: torch.device | None = None) -> None:
    """Tell of records that count for nothing, that several clients hold, and of clients without any.

    Args:
        task: as `try_task` has tried it.
        config: the simulation's configuration.
        parts: clients whose shards are open.
        device: device on which gradients are tried; None: they are not.

    Raises:
        TaskError: more than half of the records count for nothing, and the task does not allow it.
    """
    shards = {simulated_client_id(part, config.clients): opened_shard(task, config, part) for part in parts}
    if config.privacy and not isinstance(task.original, OnPublic):  # whose records are nobody's
        _tell_of_copies("shard", {client: _hashes(shard) for client, shard in islice(shards.items(), _COMPARED)})
    if empty := [client for client, shard in shards.items() if not len(shard)]:
        log.warning("%s: no record; see how the split gives its parts. Budgets are spent all the same.", _some(empty))
    tried = islice(shards, 0, None, max(1, len(shards) // _TRIED)) if device else ()
    views, autocast = config.augmentation_multiplicity, autocast_of(config.autocast)
    found = {client: null_records(shard) for client, shard in shards.items()}
    for client in tried:
        assert device is not None
        shard = shards[client].to(device)
        engine = engine_of(task, shard.inputs.device, config.clipping, max(views, 1), autocast)
        found[client] = usable_in_training(task, shard, engine, views)
    void = [client for client, usable in found.items() if usable.mostly_void]
    reasons = [f"more than half of those of {_some(void)}"] if void else []
    remedy = "" if task.allow_null else "Mend them, or set allow_null = True in the task to train on the others."
    try:
        check_usable(sum(found.values(), Usable(0, 0)), task.name, remedy, unit=task.unit.name, reasons=reasons)
    except ValueError as error:
        raise TaskError(f"task {task.name}: {error}") from error


def check_tables(task: OpenedTask, config: RunConfig) -> None:
    """Tell of records that the tables of the first two clients both hold.

    Raises:
        TaskError: a table cannot be read.
    """
    rows = {}
    for part in range(min(config.clients, 2)):
        table = task.table(ShardSource(partition_id=part, num_partitions=config.clients))
        cells = zip(*(column[:_RECORDS] for column in table.columns.values()), strict=True)
        rows[simulated_client_id(part, config.clients)] = (hash(tuple(map(text, row))) for row in cells)
    _tell_of_copies("table", rows)


def _tell_of_copies(method: str, records: Mapping[str, Iterable[int]]) -> None:
    """Warn of clients that hold the same records, as all do if the task forgets which part is asked for."""
    found = list(_copies(records))
    if not found:
        return
    first, second, held, count = found[0]
    more = f", and so it is with {count_text(len(found) - 1, 'other client')}" if found[1:] else ""
    log.warning(
        "%s and %s hold the same records (%s of %s)%s: a record loses at each client that holds it, so that epsilon "
        "holds for none of them. Let %s() return part source.partition_id of source.num_partitions; if different "
        "persons merely have the same values, all is well. Nothing is spent yet.",
        *(first, second, f"{held:,}", f"{count:,}", more, method),
    )


def _copies(records: Mapping[str, Iterable[int]]) -> Iterator[tuple[str, str, int, int]]:
    """Yield each client whose records an earlier client holds: that one, the client, and how many of how many.

    Args:
        records: a number for each record, by client; equal records have equal numbers.
    """
    holder: dict[int, str] = {}
    counts: dict[str, Counter[int]] = {}
    for client, own in records.items():
        counts[client] = Counter(own)
        distinct, count = len(counts[client]), counts[client].total()
        others = Counter(holder[each] for each in counts[client] if each in holder)
        earlier, held = others.most_common(1)[0] if others else ("", 0)
        copied = held and distinct >= _FEWEST and counts[client] == counts[earlier]
        in_part = count >= _FEWEST_IN_PART and distinct >= 0.95 * count and 2 * held > distinct
        if copied or in_part:
            yield earlier, client, count if copied else held, count
        for each in counts[client]:
            holder.setdefault(each, client)


def _hashes(shard: Shard) -> Iterator[int]:
    """Yield a number for each of the first records, which is the same for the same bytes in this process."""
    if not (shard.inputs.numel() and shard.targets.numel()):
        return
    records = max(_FEWEST_IN_PART, min(_RECORDS, _BYTES // max(shard.inputs[0].nbytes, 1)))
    inputs, targets = (rows[:records].detach().cpu() for rows in (shard.inputs, shard.targets))
    as_bytes = [rows.reshape(len(rows), -1).contiguous().view(torch.uint8).numpy() for rows in (inputs, targets)]
    for own, aimed in zip(*as_bytes, strict=True):
        yield hash(own.tobytes() + aimed.tobytes())


def _some(clients: Sequence[str]) -> str:
    more = len(clients) - _NAMED
    return ", ".join(clients[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
