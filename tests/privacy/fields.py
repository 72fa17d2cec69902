"""Values that a hostile server puts into the fields of what it signs, and that a client must refuse all the same."""

from __future__ import annotations

import json
import math

from fedprivacy._support.signing import server_public_key
from tests.flower.asked import STRANGER

NOT_NUMBERS = [math.nan, math.inf, -math.inf]


MANY = json.dumps([[0.5, 1.0 + number, "zero-out", 1] for number in range(501)])
"""A history of more events than can be composed."""

_OF_BOTH = {
    "client_id": ["x" * 1025],
    "round": [0, -1, 2**63],
    "attempt": [0, -1, 2**63],
    "noise_multiplier": [0.0, -1.0, 0.2999, 1.0001e4, 1e300, *NOT_NUMBERS],
    "relation": ["add-or-remove-one", "replace-one", "zero-out ", ""],
    "unit": ["", "patient", "patient (at most 8 rows)", "record (at most 2 rows)", "record ", "Record", "x" * 10**6],
    "earlier_runs": [-1],
    "charged": [
        "x",
        "{}",
        "[[]]",
        '[[0.5, 2.0, "zero-out", -1]]',
        '[[1.0, NaN, "zero-out", 1]]',
        " " * 4_000_001,
        MANY,
    ],
    "server_key": ["", "zz", "ab" * 32, server_public_key(STRANGER)],
    "signature": ["", "zz", "ab" * 64],
}

OF_TRAINING = _OF_BOTH | {
    "run_id": ["", "x" * 129, "a\nb", "a\0b", "\x1b[2J"],
    "steps": [0, -1, 100_001, 2**62],
    "sampling_rate": [0.0, -0.5, 1.0000001, *NOT_NUMBERS],
    "clipping_norm": [0.0, -1.0, 9e-7, 1.1e6, *NOT_NUMBERS],
    "clipping": ["", "flat ", "os:getpid", "AutomaticClipping", "x" * 10**6],
    "expected_batch_size": [0.0, -1.0, 1e-10, 1e20, *NOT_NUMBERS],
    "optimizer": ["", "rmsprop", "os:getpid", "torch.optim:SGD", "x" * 10**6],
    "learning_rate": [0.0, -1.0, 1e31, 1e300, *NOT_NUMBERS],
    "momentum": [1.0, -0.1, *NOT_NUMBERS],
    "weight_decay": [-0.1, 1001.0, 1e300, *NOT_NUMBERS],
    "algorithm": [
        *("", "fedavg", "[]", '{"name": "os:getpid"}', '{"name": []}', '{"name": "fedper"}', "[" * 10**5),
        *('{"name": "fedavg", "pull": 1.0}', '{"name": "mr-mtl", "pull": NaN}', '{"name": "mr-mtl", "pull": -1.0}'),
    ],
    "augmentation_multiplicity": [-1, 257, 2**62, 1],  # the task has no views of its records
    "local_evaluation": [1, 0, 2],
}
"""Values for each field of a grant."""

OF_QUESTIONS = _OF_BOTH | {
    "run_id": ["", "run", "Questions-1", " questions-1", "questions-" + "x" * 119, "questions-\n", "questions-\x1b[2J"],
    "steps": [0, 2, -1, 2**62],
    "sampling_rate": [0.0, 0.5, 0.999999, 1.0000001, *NOT_NUMBERS],
    "clipping_norm": [0.0, 0.5, 2.0, -1.0, *NOT_NUMBERS],
    "questions": ["", "x", "[]", "{}", "null", "[[]]", "[" * 100_000, " " * 1_000_001, "count"],
}
"""Values for each field of a grant for questions."""
