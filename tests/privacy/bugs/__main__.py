"""Plants every bug, one at a time, in memory: each of its tests, and its first gate, must notice.

    python -m tests.privacy.bugs [PART OF A MEANING OR PLACE ...]

`benchmarks.mutation` tries every small change instead of these, and takes an hour.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
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

Noticing = tuple[Bug, str]
"""A bug, and the node id of a test or the name of a gate that must notice it."""


def main(parts: Sequence[str]) -> int:
    """Plant bugs; 0 if all are noticed, and nothing is noticed where there is none."""
    start, used = time.monotonic(), os.times()
    bugs = [bug for bug in BUGS if not parts or any(part in bug.meaning or part in bug.place for part in parts)]
    for bug in bugs:  # code that has moved on is told before anything else
        changed(bug.changes)
    import_heavy()
    complaints = _of_tests(bugs) + _of_gates([bug for bug in bugs if bug.gates])
    took = f"{time.monotonic() - start:.0f} s, {_processor(used):.0f} s of processors"
    print(f"{len(bugs)} bugs, {len(complaints)} complaints; {took}")
    return 1 if complaints else 0


def _of_tests(bugs: Sequence[Bug]) -> list[str]:
    """Complaints about tests; none if each notices its bug."""
    seconds, complaints = _healthy({test for bug in bugs for test in bug.tests})
    noticing = [(bug, test) for bug in bugs for test in bug.tests]
    noticing.sort(key=lambda each: seconds.get(each[1], 0.0), reverse=True)  # the longest first
    return complaints or _noticed((each, _testing(*each)) for each in noticing)


def _of_gates(bugs: Sequence[Bug]) -> list[str]:
    """Complaints about gates; none if the first gate of each bug notices it."""
    from tests.privacy import audited_tasks  # the code as it is: bugs are swapped in, as importing it takes a second

    def auditing(bug: Bug) -> Trial:
        def trial(folder: Path) -> int:
            with planted(bug.meaning), audited_tasks.engines_believed():
                (gate,) = audited_tasks.judged(bug.gates[:1], 0, bug.task, bug.settings)
            return PASSED if gate.passed else FAILED

        return trial

    return _noticed(((bug, bug.gates[0]), auditing(bug)) for bug in bugs)


def _testing(bug: Bug, test: str) -> Trial:
    def trial(folder: Path) -> int:
        plant(changed(bug.changes))
        return run_tests([test], folder)

    return trial


def _noticed(trials: Iterable[tuple[Noticing, Trial]]) -> list[str]:
    """Plant and try; complaints about what passes, or cannot run."""
    complaints, taken = list[str](), list[tuple[float, str]]()
    for outcome in tried(trials, limit=HANGS):
        bug, by = outcome.named
        taken.append((outcome.seconds, f"{by}: {bug.meaning}"))
        if outcome.code != FAILED:
            complaints.append(_complaint(outcome))
            print(complaints[-1], flush=True)
    for seconds, name in sorted(taken, reverse=True)[:SLOWEST]:
        print(f"{seconds:6.1f} s  {name}", flush=True)
    return complaints


def _complaint(outcome: Outcome[Noticing]) -> str:
    (bug, by), code = outcome.named, outcome.code
    if code == PASSED:
        return f"Nobody notices that {bug.meaning}: {by} passes, with {bug.place} changed."
    ended = f"it ended with {code}, after {outcome.seconds:.0f} s of a processor"
    return f"{by} cannot say whether {bug.meaning} ({ended}):\n{outcome.output[-3000:]}"


def _processor(since: os.times_result) -> float:
    """Processor seconds since then, of this process and those that have ended."""
    return sum(os.times()[:4]) - sum(since[:4])


# Where nothing is planted


class _Stopwatch:
    """A plugin of pytest that writes down how long each test takes."""

    def __init__(self, file: Path) -> None:
        self._file, self._seconds = file, dict[str, float]()

    def pytest_runtest_logreport(self, report):
        """Add a phase of a test."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self):
        """Write it down."""
        self._file.write_text(json.dumps(self._seconds))


def _healthy(tests: Collection[str]) -> tuple[dict[str, float], list[str]]:
    """Seconds of each test without any bug; and complaints, if one fails."""
    seconds, complaints = dict[str, float](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        shares = [share for first in range(2) if (share := sorted(tests)[first::2])]
        files = {Path(folder) / f"{number}.json": share for number, share in enumerate(shares)}
        for outcome in tried(((file, _timed(share, file)) for file, share in files.items()), limit=5 * HANGS):
            if outcome.code == PASSED:
                seconds |= json.loads(outcome.named.read_text())
            else:
                complaints.append(f"The tests fail where nothing is planted ({outcome.code}):\n{outcome.output}")
    return seconds, complaints


def _timed(tests: Sequence[str], file: Path) -> Trial:
    return lambda folder: run_tests(tests, folder, [_Stopwatch(file)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
