"""Plants every bug, one at a time, in memory: each of its tests, and its first gate, must notice.

    python -m tests.privacy.bugs [PART OF A MEANING OR PLACE ...]

Most bugs are in the body of a function, and planted where all is imported already: the function gets other code. A
bug of another kind, and one that nobody notices so, is planted in a new process, which imports the changed module.

Where nothing is planted, `make test-all` runs the same tests and gates. `benchmarks.mutation` plants every small change
instead of these, and takes an hour.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.privacy.bugs import BUGS
from tests.privacy.bugs.bug import Bug
from tests.privacy.bugs.planting import changed, is_in_function
from tests.privacy.bugs.swapped import planted
from tests.privacy.bugs.trials import (
    FAILED,
    PASSED,
    Outcome,
    Trial,
    import_heavy,
    import_tests,
    run_by_import,
    run_in_place,
    tried,
)

HANGS = 180
"""Seconds after which a trial hangs: many times what each takes."""

SLOWEST = 10
"""Trials whose times are printed."""

BY_IMPORT = "--by-import"
"""Given to the new process for bugs that nobody has noticed in place."""

Noticing = tuple[Bug, str]
"""A bug, and the node id of a test or the name of a gate that must notice it."""


def main(arguments: Sequence[str]) -> int:
    """Plant bugs; 0 if all are noticed."""
    start, used = time.monotonic(), os.times()
    parts = [argument for argument in arguments if argument != BY_IMPORT]
    bugs = [bug for bug in BUGS if not parts or any(part in bug.meaning or part in bug.place for part in parts)]
    for bug in bugs:  # code that has moved on is told before anything else
        changed(bug.changes)
    import_heavy()
    everywhere = BY_IMPORT in arguments
    by_import = [bug for bug in bugs if everywhere or not all(map(is_in_function, bug.changes))]
    in_place = [bug for bug in bugs if bug not in by_import]
    outcomes = list(tried(_testing(by_import, run_by_import), limit=HANGS))
    import_tests(test for bug in in_place for test in bug.tests)
    once = list(tried(_testing(in_place, run_in_place), limit=HANGS))
    outcomes += [outcome for outcome in once if outcome.code == FAILED]
    silent = [outcome.named[0].meaning for outcome in once if outcome.code != FAILED]
    outcomes += [] if everywhere else tried(_auditing(bugs), limit=HANGS)

    taken, complaints = list[tuple[float, str]](), 0
    for outcome in outcomes:
        bug, by = outcome.named
        taken.append((outcome.seconds, f"{by}: {bug.meaning}"))
        if outcome.code != FAILED:
            complaints += 1
            print(_complaint(outcome), flush=True)
    if silent:
        again = [sys.executable, "-m", "tests.privacy.bugs", BY_IMPORT, *silent]
        complaints += subprocess.run(again, check=False).returncode
    for seconds, name in sorted(taken, reverse=True)[:SLOWEST]:
        print(f"{seconds:5.1f} s  {name}")
    seconds, processor = time.monotonic() - start, sum(os.times()[:4]) - sum(used[:4])
    print(f"{len(bugs)} bugs, {complaints} complaints; {seconds:.0f} s, {processor:.0f} s of processors")
    return 1 if complaints else 0


def _testing(bugs: Sequence[Bug], run: Callable[[Bug, list[str], Path], int]) -> Iterator[tuple[Noticing, Trial]]:
    for bug in bugs:
        yield from (((bug, test), functools.partial(run, bug, [test])) for test in bug.tests)


def _auditing(bugs: Sequence[Bug]) -> Iterator[tuple[Noticing, Trial]]:
    """Change code that is imported already, and audit it."""
    audited = importlib.import_module("tests.privacy.audited_tasks")

    def judged(bug: Bug, _: Path) -> int:
        with planted(bug.meaning), audited.engines_believed():
            (gate,) = audited.judged(bug.gates[:1], 0, bug.task, bug.settings)
        return PASSED if gate.passed else FAILED

    return (((bug, bug.gates[0]), functools.partial(judged, bug)) for bug in bugs if bug.gates)


def _complaint(outcome: Outcome[Noticing]) -> str:
    (bug, by), code = outcome.named, outcome.code
    if code == PASSED:
        return f"Nobody notices that {bug.meaning}: {by} passes, with {bug.place} changed."
    ended = f"it ended with {code}, after {outcome.seconds:.0f} s of a processor"
    return f"{by} cannot say whether {bug.meaning} ({ended}):\n{outcome.output[-3000:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
