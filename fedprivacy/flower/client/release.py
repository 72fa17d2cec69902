"""The only way out of a client.

Every reply is built here, from one of five types, and a type is all that may cross:

| what | kind | why it may leave |
|---|---|---|
| `PrivateUpdate` | private | came out of the mechanism, with the event that it cost; so did an adapted clipping norm |
| `NoisyTotals` | private | of a question: out of a Gaussian mechanism, which was charged for it |
| `NoisySums` | private | of a local evaluation: out of the same mechanism, which was charged one step more for it |
| `Enrolment` | public | a name, a split, what grants were charged; the shard's size only where sizes are public |
| `RefusalCode` | constant | one of a few codes; texts of exceptions stay in the client's log |

No exact example count, local loss or accuracy, and no exception text has a place in these types, so none can leave.

In a deployment an update is written to the disk as it will be sent (`Released.to_bytes`), and sent again, byte for
byte, where the first reply was lost: what has been released once costs nothing the second time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray
from safetensors import numpy as safetensors
from torch import Tensor

from fedprivacy._support.failpoints import reach
from fedprivacy._support.software import software
from fedprivacy.flower.wire.messages import Enrolment, Grant, QuestionGrant, Receipt, Refusal, RefusalCode, spending
from fedprivacy.flower.wire.payloads import as_arrays
from fedprivacy.questions.release import NoisyTotals
from fedprivacy.training.dpsgd import PrivateUpdate
from fedprivacy.training.evaluation import NoisySums
from fedprivacy.values.events import PoissonSampledGaussian

ARRAYS = "arrays"

_MOST_FACTS = 2**16
"""Upper bound, in bytes, of a sealed receipt: of all its texts, a client's name is the longest."""

_MOST_OF_AN_ARRAY = 256
"""Upper bound, in bytes, of what the head of a safetensors file says of an array besides its name."""


@dataclass(frozen=True, slots=True)
class Released:
    """The answer to a grant: trained parameters or noisy totals by name, and a receipt for the executed steps."""

    arrays: Mapping[str, NDArray[Any]]
    receipt: Receipt

    @classmethod
    def of(
        cls, grant: Grant, update: PrivateUpdate, evaluated: NoisySums | None, key: EllipticCurvePrivateKey | None
    ) -> Released:
        """Combine the releases of DP-SGD and local evaluation with a receipt, which a deployed client's key signs.

        Raises:
            ValueError: the two have different events, so that one receipt cannot state the steps of both.
        """
        if evaluated is not None and evaluated.event != update.event:
            raise ValueError(f"The local evaluation ran {evaluated.event}, and the training {update.event}.")
        arrays = {name: parameter.cpu().numpy() for name, parameter in update.parameters.items()}
        steps = update.steps + (evaluated is not None)
        norm = update.clipping_norm
        receipt = Receipt(
            **spending(grant.charged_as, grant.client_id, steps, update.event, unit=grant.unit, clipping_norm=norm),
            update=digest(arrays) if key else "",
            evaluation=json.dumps(evaluated.sums) if evaluated is not None else "",
            software=str(software()) if key else "",
        )
        return cls(arrays, receipt.sign(key) if key else receipt)

    @classmethod
    def from_answers(
        cls,
        grant: QuestionGrant,
        event: PoissonSampledGaussian,
        answers: Sequence[NoisyTotals],
        key: EllipticCurvePrivateKey | None,
    ) -> Released:
        """Combine the answers to all questions with a receipt of their event, which a deployed client's key signs."""
        arrays = as_arrays(answers)
        receipt = Receipt(
            **spending(grant.charged_as, grant.client_id, 1, event, unit=grant.unit, clipping_norm=grant.clipping_norm),
            update=digest(arrays, grant.questions) if key else "",
            software=str(software()) if key else "",
        )
        return cls(arrays, receipt.sign(key) if key else receipt)

    def answers(self, grant: QuestionGrant) -> bool:
        """Tell whether this sealed release of a deployed client answers the questions of this grant."""
        return self.receipt.matches(grant) and self.receipt.update == digest(self.arrays, grant.questions)

    @classmethod
    def from_bytes(cls, content: bytes) -> Released:
        """The inverse of `to_bytes`."""
        head, _, body = content.partition(b"\n")
        facts, arrays = json.loads(head), safetensors.load(body)
        receipt = Receipt.from_record(ConfigRecord(facts["receipt"]))
        return cls({name: arrays[name] for name in facts["arrays"]}, receipt)

    def to_bytes(self) -> bytes:
        """The bytes of arrays and receipt for the disk."""
        facts = {"arrays": list(self.arrays), "receipt": dict(self.receipt.to_record())}
        return json.dumps(facts).encode() + b"\n" + safetensors.save(dict(self.arrays))


def most_sealed(arrays: Mapping[str, NDArray[Any] | Tensor]) -> int:
    """Return an upper bound, in bytes, of `Released.to_bytes` for arrays of these names, types and shapes."""
    return _MOST_FACTS + sum(
        array.nbytes + 2 * len(json.dumps(name)) + _MOST_OF_AN_ARRAY for name, array in arrays.items()
    )


def digest(arrays: Mapping[str, NDArray[Any]], questions: str = "") -> str:
    """SHA-256, in hexadecimal, of arrays with their names, types and shapes, and of the questions that they answer."""
    found = hashlib.sha256(questions.encode())
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def update(message: Message, released: Released) -> Message:
    """Reply with what was released, for the first time or again."""
    reach("client.replying")
    arrays = ArrayRecord({name: Array(values) for name, values in released.arrays.items()})
    return Message(RecordDict({ARRAYS: arrays, Receipt.name: released.receipt.to_record()}), reply_to=message)


def enrolment(message: Message, facts: Enrolment) -> Message:
    """Reply with who the client is."""
    return Message(RecordDict({facts.name: facts.to_record()}), reply_to=message)


def refusal(message: Message, code: RefusalCode) -> Message:
    """Reply that there is no update: a normal reply, with a constant code."""
    return Message(RecordDict({Refusal.name: Refusal(code).to_record()}), reply_to=message)
