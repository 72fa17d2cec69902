"""The only way out of a client.

Every reply is built here, from one of three types, and a type is all that may cross:

| what | kind | why it may leave |
|---|---|---|
| `PrivateUpdate` | private | came out of the mechanism, with the event that it cost |
| `Enrolment` | public | a name, a simulation's split, and the shard's size only where the task declares sizes public |
| `RefusalCode` | constant | one of a few codes; texts of exceptions stay in the client's log |

No example count, no local loss or accuracy, no exception text has a place in these types, so none can leave.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedprivacy.dpsgd import PrivateUpdate
from fedprivacy.flower.records import ENROLMENT, RECEIPT, REFUSAL, Enrolment, Grant, Receipt, Refusal, RefusalCode

ARRAYS = "arrays"


def update(message: Message, grant: Grant, released: PrivateUpdate) -> Message:
    """Reply with what DP-SGD released, and a receipt for the events that its mechanism executed."""
    receipt = Receipt(
        run_id=grant.run_id,
        client_id=grant.client_id,
        round=grant.round,
        steps=released.steps,
        sampling_rate=released.event.sampling_rate,
        noise_multiplier=released.event.noise_multiplier,
        relation=released.event.relation,
    )
    arrays = ArrayRecord({name: Array(p.cpu().numpy()) for name, p in released.parameters.items()})
    return Message(RecordDict({ARRAYS: arrays, RECEIPT: receipt.to_record()}), reply_to=message)


def enrolment(message: Message, client_id: str, shard_size: int | None, num_partitions: int) -> Message:
    """Reply with the client's name, the size of its shard (None unless the task declares it public), and the split."""
    record = Enrolment(client_id, shard_size or 0, num_partitions).to_record()
    return Message(RecordDict({ENROLMENT: record}), reply_to=message)


def refusal(message: Message, code: RefusalCode) -> Message:
    """Reply that there is no update: a normal reply, with a constant code."""
    return Message(RecordDict({REFUSAL: Refusal(code).to_record()}), reply_to=message)
