"""Where the suite's time goes: a plugin of pytest that writes it down, and the table that `make test-times` prints.

    pytest --times FOLDER ...
    python -m tests.times FOLDER

One line for each test and for what each test process pays before its first one. Processor seconds are the test
process's own and those of processes that it started and waited for; what outlives them (a cluster of Ray) is not seen.
"""

import json
import multiprocessing.util
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

CAUSES = ("imports", "processes", "fixtures", "engines", "Hypothesis", "tests")
"""Uses of a processor second: imports and collection, processes that were started, set-ups, gradient engines
prepared, Hypothesis' examples, and the tests themselves. Each second is counted once."""

COLUMNS = ("items", "seconds", *CAUSES, "waiting", "started")
"""Columns of a table: `waiting` is wall time in which no processor worked, `started` counts processes."""

SHOWN = 10
"""Files in a table; the rest is one row."""


def pytest_addoption(parser):
    parser.addoption("--times", metavar="FOLDER", help="write what each test took into this folder")


def pytest_configure(config):
    folder = config.getoption("--times")
    if folder and not config.getoption("numprocesses", None):  # the controller of several processes runs no test
        config.pluginmanager.register(Clock(Path(folder)))


class Clock:
    """Writes what each test of this process took."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'only')}-{os.getpid()}.jsonl").open("w")
        self._started = 0
        self._engines = 0.0
        sys.addaudithook(self._notice)
        spawn = multiprocessing.util.spawnv_passfds  # of which Python tells no audit hook

        def counted(*arguments):
            self._started += 1
            return spawn(*arguments)

        multiprocessing.util.spawnv_passfds = counted

    def _notice(self, event, _):
        self._started += event in ("subprocess.Popen", "os.fork", "os.posix_spawn")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self):
        """All modules are imported now."""
        own, children = _processor()
        self._write(imports=own, processes=children)
        if gradients := sys.modules.get("fedprivacy.gradients.engine"):
            self._watch(gradients.GradientEngine)

    def _watch(self, engine):
        prepare = engine.prepare

        def timed(*arguments, **named):
            begun = time.process_time()
            try:
                return prepare(*arguments, **named)
            finally:
                self._engines += time.process_time() - begun

        engine.prepare = timed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._took, wall, started, (_, children) = Counter(), time.monotonic(), self._started, _processor()
        result = yield
        self._took["processes"] = _processor()[1] - children
        self._took["waiting"] = max(0.0, time.monotonic() - wall - self._took.total())
        self._write(test=item.nodeid, started=self._started - started, **self._took)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self):
        return (yield from self._timed("fixtures"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        return (yield from self._timed("Hypothesis" if hypothesis else "tests"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self):
        return (yield from self._timed("fixtures"))

    def _timed(self, cause):
        (own, _), engines = _processor(), self._engines
        try:
            return (yield)
        finally:
            prepared = self._engines - engines
            self._took["engines"] += prepared
            self._took[cause] += _processor()[0] - own - prepared

    def _write(self, **line):
        print(json.dumps(line), file=self._file, flush=True)


def _processor():
    """Processor seconds so far: this process's, and those of its children that have ended."""

    def seconds(who):
        used = resource.getrusage(who)
        return used.ru_utime + used.ru_stime

    return seconds(resource.RUSAGE_SELF), seconds(resource.RUSAGE_CHILDREN)


def table(folder):
    """The files that took most, in Markdown; the last row is the whole suite."""
    files = _by_file(folder)
    longest = sorted(files, key=lambda file: -files[file]["seconds"])
    rest = sum((files[file] for file in longest[SHOWN:]), Counter())
    rows = {file: files[file] for file in longest[:SHOWN]} | {f"{len(longest[SHOWN:])} more files": rest}
    rows["all"] = sum(files.values(), Counter())
    lines = [f"| file | {' | '.join(COLUMNS)} |", "|---" + "|---:" * len(COLUMNS) + "|"]
    lines += [f"| {name} | {' | '.join(f'{took[column]:,.0f}' for column in COLUMNS)} |" for name, took in rows.items()]
    return "\n".join(lines)


def _by_file(folder):
    files = defaultdict(Counter)
    for test, line in _lines(folder):
        took = Counter(line) + Counter(items=test is not None, seconds=_seconds(line))
        files[test.partition("::")[0] if test else "before the first test"].update(took)
    return files


def seconds_by_test(folder):
    """Return processor seconds, and the number of processes started, of each test by its node id."""
    return {test: (_seconds(line), line["started"]) for test, line in _lines(folder) if test}


def _lines(folder):
    for written in folder.glob("*.jsonl"):
        for line in map(json.loads, written.read_text().splitlines()):
            yield line.pop("test", None), line


def _seconds(line):
    return sum(line.get(cause, 0) for cause in CAUSES)


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
