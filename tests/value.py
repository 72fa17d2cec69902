"""The value of each test, as `make test-value` prints it: what it alone shows, and the cheapest tests that show all.

    python -m tests.value FOLDER [--seconds 3]

FOLDER holds what `pytest --reached FOLDER --times FOLDER --lane full` wrote. A test is worth the planted bugs that it
alone notices, the branches that it alone takes, and the promise that it is named for in the table of guarantees.
Every bug of the catalogue is planted, and met by the tests that reach its lines, the cheapest first, as many as some
processor seconds allow; what is found stays in the folder, and the next call plants only what is new.

The table proposes; people judge. Two tests that take the same branches may hold different values against each other.
Nothing is known of a test that starts processes, or that reads files and runs nothing: it is called unseen.
"""

import argparse
import ast
import csv
import functools
import heapq
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from tests.house import ROOT, promises
from tests.privacy.bugs import BUGS
from tests.privacy.bugs.bug import FIGURE
from tests.privacy.bugs.planting import is_in_function, lines_of
from tests.privacy.bugs.trials import (
    PASSED,
    import_heavy,
    import_tests,
    run_by_import,
    run_in_place,
    run_tests,
    tried,
)
from tests.reached import Suite, collected

HANGS = 120
"""Seconds after which the tests of one bug are ended; what failed by then has noticed it."""

NEVER_FREE = 0.02
"""Processor seconds that any test costs besides its own: to be collected, and to be reported."""

ALL = "--maxfail=0"
"""The option with which tests run on after a failure."""

LANES = ("quick", "full")


def lane_of(test):
    return "full" if test.marks & {"exhaustive", "soak"} else "quick"


# Who notices the planted bugs


class Failures:
    """A plugin of pytest that says which tests fail, in one line each."""

    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(f"\nnoticed: {report.nodeid}", flush=True)


def noticing(suite, folder, seconds):
    """Return the tests that notice each bug, by its meaning. Bugs that were planted before are read from the folder."""
    kept = folder / "noticed.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    found = {meaning: [test for test in tests if test in suite.tests] for meaning, tests in found.items()}
    new = [bug for bug in BUGS if bug.meaning not in found]
    chosen = {bug.meaning: {*bug.tests, *suite.reaching(map(lines_of, bug.changes), seconds)} for bug in new}
    in_place = [bug for bug in new if all(map(is_in_function, bug.changes))]
    import_heavy()
    for bugs, run in ([bug for bug in new if bug not in in_place], run_by_import), (in_place, run_in_place):
        if run is run_in_place:
            import_tests(test for bug in bugs for test in chosen[bug.meaning])
        trials = ((bug, functools.partial(run, bug, [*chosen[bug.meaning], ALL], plugins=[Failures()])) for bug in bugs)
        for outcome in tried(trials, limit=HANGS):
            found[outcome.named.meaning] = _failed(outcome)
            kept.write_text(json.dumps(found, indent=1))
            print(f"{len(found)} of {len(BUGS)}, {outcome.seconds:.0f} s: {outcome.named.meaning}", file=sys.stderr)
    if new:
        failing = _without_a_bug({test for tests in found.values() for test in tests})
        found = {meaning: sorted(set(tests) - failing) for meaning, tests in found.items()}
        kept.write_text(json.dumps(found, indent=1))
    return {bug.meaning: found[bug.meaning] for bug in BUGS}


def _failed(outcome):
    return [line.removeprefix("noticed: ") for line in outcome.output.splitlines() if line.startswith("noticed: ")]


def _without_a_bug(tests):
    """Return the tests that fail though nothing is planted: the circumstances of these trials do not suit them."""
    trial = functools.partial(run_tests, [*tests, ALL], plugins=[Failures()])
    (outcome,) = tried([("no bug", trial)], limit=3600)
    return set(_failed(outcome)) if outcome.code != PASSED else set()


# What there is to show


def branches(arcs):
    """Return the numbers of the steps that are a choice: into a function, or one of several ways on from a line."""
    ways = defaultdict(set)
    for path, line, following in arcs:
        ways[path, line].add(following)
    return np.array([n for n, (path, line, _) in enumerate(arcs) if line < 0 or len(ways[path, line]) > 1], np.int32)


def doors():
    """Return the commands, and the dashboard's addresses, by the file and the first line of their functions."""
    found = {}
    for path in sorted([*(ROOT / "fedprivacy/commands").rglob("*.py"), *(ROOT / "fedprivacy/dashboard").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            decorators = getattr(node, "decorator_list", ())
            if any(re.match(r"\w+\.(command|callback|get|post)\(", ast.unparse(each)) for each in decorators):
                found[str(path.relative_to(ROOT)), decorators[0].lineno] = f"{path.stem}:{node.name}"
    return found


def shown(suite, noticed):
    """Return what each test shows: (kind, name) pairs, and the numbers of its branches."""
    things = defaultdict(set)
    weight = {bug.meaning: "figure" if bug.breaks == FIGURE else "guarantee" for bug in BUGS}
    for meaning, tests in noticed.items():
        for test in tests:
            things[test].add((weight[meaning], meaning))
    for promise, *witnesses in promises():
        named = [witness for some in witnesses for witness in some]
        for test in suite.tests:
            if any(test == each or test.startswith((f"{each}::", f"{each}[")) for each in named):
                things[test].add(("promise", promise))
    opened = doors()
    entries = {n: opened[path, -line] for n, (path, line, _) in enumerate(suite.arcs) if (path, -line) in opened}
    chosen = branches(suite.arcs)
    taken = {}
    for name, test in suite.tests.items():
        taken[name] = np.intersect1d(test.arcs, chosen, assume_unique=True)
        things[name] |= {("door", entries[n]) for n in entries.keys() & set(test.arcs.tolist())}
    return things, taken


# The cheapest tests that show everything


def cover(suite, things, taken=None):
    """Choose tests greedily: always the one that shows most new things, and branches, for its seconds.

    Returns:
        Node ids of the chosen tests, with the number of new things of each.
    """
    left = set().union(*things.values())
    size = max((arcs.max() for arcs in (taken or {}).values() if arcs.size), default=-1) + 1
    open_branches, chosen = np.ones(size, bool), {}

    def gain(name):
        new = len(things.get(name, set()) & left)
        return new + (int(open_branches[taken[name]].sum()) if taken else 0)

    def price(name):
        return -gain(name) / (suite.tests[name].seconds + NEVER_FREE)

    waiting = [(price(name), name) for name in suite.tests]
    heapq.heapify(waiting)
    while waiting:
        _, name = heapq.heappop(waiting)
        now = price(name)
        if now == 0:
            continue
        if waiting and now > waiting[0][0]:
            heapq.heappush(waiting, (now, name))
            continue
        chosen[name] = gain(name)
        left -= things.get(name, set())
        if taken:
            open_branches[taken[name]] = False
    return chosen


def alone(things, taken):
    """Return what each test alone shows: the counts of bugs and of branches."""
    times = Counter(thing for some in things.values() for thing in some)
    size = max((arcs.max() for arcs in taken.values() if arcs.size), default=-1) + 1
    takers = sum((np.bincount(arcs, minlength=size) for arcs in taken.values()), np.zeros(size, int))
    return {
        name: (
            sum(times[thing] == 1 for thing in things[name] if thing[0] in ("guarantee", "figure")),
            int((takers[arcs] == 1).sum()),
        )
        for name, arcs in taken.items()
    }


COLUMNS = (
    "lane",
    "seconds",
    "started",
    "bugs",
    "bugs alone",
    "branches",
    "branches alone",
    "promises",
    "doors",
    "chosen",
)


def rows(suite, noticed):
    """Return a row of COLUMNS for each test, by node id. `chosen` names the lane that it belongs to by the evidence."""
    things, taken = shown(suite, noticed)
    high = {name: {each for each in some if each[0] != "figure"} for name, some in things.items()}
    quick, full, own = cover(suite, high), cover(suite, things, taken), alone(things, taken)
    table = {}
    for name, test in suite.tests.items():
        kinds = Counter(kind for kind, _ in things[name])
        bugs = kinds["guarantee"] + kinds["figure"]
        unseen = test.started or not taken[name].size
        belongs = "quick" if name in quick else "full" if name in full else "unseen" if unseen else "none"
        shows = (bugs, own[name][0], len(taken[name]), own[name][1], kinds["promise"], kinds["door"])
        table[name] = dict(
            zip(COLUMNS, (lane_of(test), round(test.seconds, 3), test.started, *shows, belongs), strict=True)
        )
    return table


def summary(table):
    """Return a table in Markdown: tests and their seconds by the lane that they are in and the one they belong to."""
    sums = defaultdict(Counter)
    for row in table.values():
        for lane in (row["lane"], "all"):
            for belongs in (row["chosen"], "all"):
                sums[lane, belongs].update(tests=1, seconds=row["seconds"])
    columns = ("quick", "full", "unseen", "none", "all")
    cells = {key: f"{some['tests']:,} ({some['seconds']:,.0f} s)" for key, some in sums.items()}
    lines = [f"| now in | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {lane} | {' | '.join(cells.get((lane, each), '0') for each in columns)} |" for lane in (*LANES, "all")
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0, help="of the tests that meet one bug")
    asked = parser.parse_args()
    suite = Suite(asked.folder, collected())
    table = rows(suite, noticing(suite, asked.folder, asked.seconds))
    with (asked.folder / "value.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("test", *COLUMNS))
        writer.writeheader()
        writer.writerows({"test": name} | row for name, row in table.items())
    print(f"{summary(table)}\n\nEach test's row is in {asked.folder / 'value.csv'}.")


if __name__ == "__main__":
    main()
