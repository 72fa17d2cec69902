"""Which lines of the product each test reaches: a plugin of pytest that writes it down, and the reader of that.

    pytest --reached FOLDER --times FOLDER ...

`tests.value` and `benchmarks.mutation` choose tests by it. It sees the test's own process alone: what happens in one
that the test starts, or in a fork, is not there.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.house import ROOT
from tests.times import seconds_by_test

MARKS = ("exhaustive", "soak", "alone")


def pytest_addoption(parser):
    parser.addoption("--reached", metavar="FOLDER", help="write the lines that each test reaches into this folder")


def pytest_configure(config):
    folder = config.getoption("--reached")
    if folder and not config.getoption("numprocesses", None):  # the controller of several processes runs no test
        config.pluginmanager.register(Reached(Path(folder) / "reached"))


class Reached:
    """Writes the steps that each test of this process takes, with its fixtures."""

    def __init__(self, folder):
        from coverage import Coverage  # which nothing else needs

        folder.mkdir(parents=True, exist_ok=True)
        name = f"{os.environ.get('PYTEST_XDIST_WORKER', 'only')}-{os.getpid()}"
        self._tests, self._steps = (folder / f"{name}.jsonl").open("w"), folder / f"{name}.arcs"
        self._numbers = {}
        options = {"data_file": None, "config_file": False, "branch": True, "messages": False}
        self._coverage = Coverage(source=[str(ROOT / "fedprivacy")], **options)
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])  # most tests of words reach no line

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self._coverage.erase()
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()
            data, reached = self._coverage.get_data(), []
            for file in data.measured_files():
                name = os.path.relpath(file, ROOT)
                reached += [self._numbers.setdefault((name, *arc), len(self._numbers)) for arc in data.arcs(file)]
            marks = [mark for mark in MARKS if item.get_closest_marker(mark)]
            print(json.dumps({"test": item.nodeid, "marks": marks, "arcs": reached}), file=self._tests)

    def pytest_sessionfinish(self):
        self._tests.close()
        self._steps.write_text(json.dumps(list(self._numbers)))


def collected():
    """Return the node ids of the tests that there are now: an unknown one would end a run of pytest."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "--lane", "full", "-p", "no:xdist"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line for line in printed.splitlines() if "::" in line}


@dataclass
class Test:
    """A test that was measured.

    Attributes:
        marks: its marks that decide about lanes.
        seconds: processor time, measured with the rest.
        started: the number of processes that it started.
        arcs: the numbers of the steps that it took, ascending.
    """

    marks: frozenset
    seconds: float
    started: int
    arcs: np.ndarray


class Suite:
    """Tests that were measured, by their node ids, the cheapest first; and the steps that they took.

    Attributes:
        tests: node id to `Test`.
        arcs: the steps by number: a file's path, a line, and the line after it. A negative line stands for outside
            of the function that begins there.
    """

    def __init__(self, folder, there=None):
        """Read what pytest wrote into a folder, of the tests that are still there; None: of all."""
        costs, numbers, tests = seconds_by_test(folder), {}, {}
        for file in sorted((folder / "reached").glob("*.jsonl")):
            own = [
                numbers.setdefault(tuple(arc), len(numbers))
                for arc in json.loads(file.with_suffix(".arcs").read_text())
            ]
            own = np.array(own, np.int32)
            for line in map(json.loads, file.read_text().splitlines()):
                if there is not None and line["test"] not in there:
                    continue
                seconds, started = costs[line["test"]]
                arcs = np.unique(own[line["arcs"]]) if line["arcs"] else np.empty(0, np.int32)
                tests[line["test"]] = Test(frozenset(line["marks"]), seconds, started, arcs)
        self.tests = dict(sorted(tests.items(), key=lambda test: test[1].seconds))
        self.arcs = list(numbers)
        self._by_line = defaultdict(set)
        for number, (path, *lines) in enumerate(self.arcs):
            for line in lines:
                if line > 0:
                    self._by_line[path, line].add(number)

    def reaching(self, places, seconds):
        """Return the node ids of tests that reach one of some lines, the cheapest first.

        Args:
            places: (path, lines) of each file.
            seconds: of a processor that the tests may take together; one is returned however long it takes. Those
                that start processes are left out.
        """
        numbers = {number for path, lines in places for line in lines for number in self._by_line[path, line]}
        numbers, found, took = np.array(sorted(numbers), np.int32), [], 0.0
        for name, test in self.tests.items():
            if not test.started and np.isin(numbers, test.arcs, assume_unique=True).any():
                took += test.seconds
                if found and took > seconds:
                    break
                found.append(name)
        return found
