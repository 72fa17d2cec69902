"""How surely the auditor's gates catch planted bugs, and how often they fail where nothing is wrong.

    python -m benchmarks.audit_power --seeds 20

plants each bug of `tests.privacy.bugs` that a gate must notice, asks its first gate with so many seeds, and prints by
how many it was noticed, and what was said. Then the code as it is, in each setting: every gate must stay quiet.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.privacy.bugs import BUGS
from tests.privacy.bugs.bug import Change
from tests.privacy.bugs.planting import changed, plant
from tests.privacy.bugs.trials import PASSED, Trial, import_heavy, tried

HANGS = 4 * 3600
"""Seconds after which a bug has hung."""


def main() -> None:
    """Print the table; `--json`: one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=20, help="for each bug")
    parser.add_argument("--correct", type=int, default=20, help="seeds for each setting of the correct code")
    parser.add_argument("--only", default="", help="bugs whose meaning holds this text")
    options = parser.parse_args()
    import_heavy()
    trials = [
        (bug.meaning, _asking(bug.gates[:1], options.seeds, bug.task, bug.settings, bug.changes))
        for bug in BUGS
        if bug.gates and options.only in bug.meaning
    ]
    if not options.only:
        trials.append(("the code as it is", _of_sound_code(options.correct)))
    rows = []
    for outcome in tried(trials, limit=HANGS):
        if outcome.code != PASSED:
            print(f"{outcome.named} could not be tried ({outcome.code}):\n{outcome.output}")
            continue
        for row in json.loads(outcome.output.splitlines()[-1]):
            rows.append({"meaning": outcome.named} | row)
            if not options.json:
                print("{meaning}: {failed} of {seeds} by {gates}, {seconds:.1f} s each. {reason}".format(**rows[-1]))
    if options.json:
        print(json.dumps(rows))


def _asking(
    gates: Sequence[str], seeds: int, task: str, settings: Mapping[str, Any], changes: Sequence[Change]
) -> Trial:
    def trial(_: Path) -> int:
        plant(changed(changes))
        print(json.dumps([_asked(gates, seeds, task, settings)]))
        return PASSED

    return trial


def _of_sound_code(seeds: int) -> Trial:
    def trial(_: Path) -> int:
        from fedprivacy.audit.auditor import GATES
        from tests.privacy.audited_tasks import SOUND

        asked = {name: _asked(list(GATES), seeds, task.__name__, settings) for name, (task, settings) in SOUND.items()}
        print(json.dumps([row | {"meaning": f"the code as it is, {name}"} for name, row in asked.items()]))
        return PASSED

    return trial


def _asked(gates: Sequence[str], seeds: int, task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """In how many of so many seeds one of the gates failed, and why."""
    import torch

    from tests.privacy import audited_tasks

    logging.disable(logging.CRITICAL)  # clients that fail say so
    torch.set_num_threads(1)
    start, failed, reason = time.process_time(), 0, ""
    for seed in range(seeds):
        judged = audited_tasks.judged(gates, seed, task, settings)
        reasons = [gate.reasons[0] for gate in judged if not gate.passed]
        failed += bool(reasons)
        reason = reasons[0] if reasons else reason
    seconds = (time.process_time() - start) / max(seeds, 1)
    return {"gates": ", ".join(gates), "reason": reason, "seeds": seeds, "failed": failed, "seconds": seconds}


if __name__ == "__main__":
    main()
