"""How surely the auditor's gates catch planted bugs, and how often they fail where nothing is wrong.

    python -m benchmarks.audit_power --seeds 20

plants each bug of `tests.privacy.planted` with so many seeds and prints by how many the gate caught it that is for it,
and what it said. Then the code as it is, in each setting: every gate must stay quiet.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from fedprivacy.audit.auditor import GATES
from tests.privacy.caught import found
from tests.privacy.planted import CORRECT, PLANTS, Plant


def main() -> None:
    """Print the table; `--json`: one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=20, help="for each bug")
    parser.add_argument("--correct", type=int, default=20, help="seeds for each setting of the correct code")
    parser.add_argument("--only", default="", help="bugs whose meaning holds this text")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # clients that fail say so
    torch.set_num_threads(1)
    rows = [_tried(plant, plant.gates[:1], options.seeds) for plant in PLANTS if options.only in plant.meaning]
    if not options.only:
        rows += [_tried(setting, list(GATES), options.correct) for setting in CORRECT]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("{meaning}: {failed} of {seeds} by {gates}, {seconds:.1f} s each. {reason}".format(**row))


def _tried(plant: Plant, gates: Sequence[str], seeds: int) -> dict[str, Any]:
    """In how many of so many seeds one of the gates failed, and why."""
    start, failed, reason = time.process_time(), 0, ""
    for seed in range(seeds):
        reasons = [judged.reasons[0] for judged in found(plant, gates, seed) if not judged.passed]
        failed += bool(reasons)
        reason = reasons[0] if reasons else reason
    seconds = (time.process_time() - start) / max(seeds, 1)
    named = {"meaning": plant.meaning, "gates": ", ".join(gates), "reason": reason}
    return named | {"seeds": seeds, "failed": failed, "seconds": seconds}


if __name__ == "__main__":
    main()
