"""Plants every bug, one at a time, in memory: each of its tests, and its first gate, must notice.

    python -m tests.privacy.bugs [PART OF A MEANING OR PLACE ...]

Where nothing is planted, `make test-all` runs the same tests and gates. `benchmarks.mutation` plants every small change
instead of these, and takes an hour.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.privacy.bugs import BUGS
from tests.privacy.bugs.bug import Bug
from tests.privacy.bugs.planting import changed, plant
from tests.privacy.bugs.swapped import planted
from tests.privacy.bugs.trials import FAILED, PASSED, Outcome, Trial, import_heavy, run_tests, tried

HANGS = 180
"""Seconds after which a trial hangs: many times what each takes."""

SLOWEST = 10
"""Trials whose times are printed."""

AUDITED = "tests.privacy.audited_tasks"
"""Imports the code, as it is."""

Noticing = tuple[Bug, str]
"""A bug, and the node id of a test or the name of a gate that must notice it."""


def main(parts: Sequence[str]) -> int:
    """Plant bugs; 0 if all are noticed."""
    start, used = time.monotonic(), os.times()
    bugs = [bug for bug in BUGS if not parts or any(part in bug.meaning or part in bug.place for part in parts)]
    for bug in bugs:  # code that has moved on is told before anything else
        changed(bug.changes)
    import_heavy()
    taken, complaints = list[tuple[float, str]](), 0
    for outcome in tried(_trials(bugs), limit=HANGS):
        bug, by = outcome.named
        taken.append((outcome.seconds, f"{by}: {bug.meaning}"))
        if outcome.code != FAILED:
            complaints += 1
            print(_complaint(outcome), flush=True)
    for seconds, name in sorted(taken, reverse=True)[:SLOWEST]:
        print(f"{seconds:5.1f} s  {name}")
    seconds, processor = time.monotonic() - start, sum(os.times()[:4]) - sum(used[:4])
    print(f"{len(bugs)} bugs, {complaints} complaints; {seconds:.0f} s, {processor:.0f} s of processors")
    return 1 if complaints else 0


def _trials(bugs: Sequence[Bug]) -> Iterator[tuple[Noticing, Trial]]:
    """All tests, and then the gates: the code that they change is imported here, once for all of them."""
    for bug in bugs:
        yield from (((bug, test), _testing(bug, test)) for test in bug.tests)
    for bug in bugs:
        if bug.gates:
            importlib.import_module(AUDITED)
            yield (bug, bug.gates[0]), _auditing(bug)


def _testing(bug: Bug, test: str) -> Trial:
    """Import the changed code, and run a test of it."""

    def trial(folder: Path) -> int:
        plant(changed(bug.changes))
        return run_tests([test], folder)

    return trial


def _auditing(bug: Bug) -> Trial:
    """Change code that is imported already, and audit it."""

    def trial(_: Path) -> int:
        audited = importlib.import_module(AUDITED)
        with planted(bug.meaning), audited.engines_believed():
            (gate,) = audited.judged(bug.gates[:1], 0, bug.task, bug.settings)
        return PASSED if gate.passed else FAILED

    return trial


def _complaint(outcome: Outcome[Noticing]) -> str:
    (bug, by), code = outcome.named, outcome.code
    if code == PASSED:
        return f"Nobody notices that {bug.meaning}: {by} passes, with {bug.place} changed."
    ended = f"it ended with {code}, after {outcome.seconds:.0f} s of a processor"
    return f"{by} cannot say whether {bug.meaning} ({ended}):\n{outcome.output[-3000:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
