"""A tracker that fails, hangs or is slow harms neither the run nor other trackers, and it is said."""

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedprivacy.trackers import Feed
from tests.trackers.tracked_run import FACTS, POINTS, ROOT, point, warnings

HANG = 60.0
"""Seconds after which something hangs."""

EVERYTHING = [
    ("begin", (FACTS, Path("run"))),
    *(("record", each) for each in POINTS),
    ("end", "finished"),
]


class Told:
    """A tracker that remembers what it is told, and may fail or hang at one of its calls."""

    def __init__(self, *, fail_at=None, error=OSError, hang_at=None, hang_until=None):
        self.calls = []
        self._fail_at, self._error, self._hang_at, self._hang_until = fail_at, error, hang_at, hang_until
        self._called = threading.Condition()

    def begin(self, facts, folder):
        self._told("begin", (facts, folder))

    def record(self, point):
        self._told("record", point)

    def end(self, status):
        self._told("end", status)

    def wait_for(self, calls):
        with self._called:
            assert self._called.wait_for(lambda: len(self.calls) >= calls, HANG)

    def _told(self, name, what):
        with self._called:
            self.calls.append((name, what))
            self._called.notify_all()
        if name == self._hang_at:
            self._hang_until.wait()
        if name == self._fail_at:
            raise self._error(f"no {name} today")


@pytest.fixture
def never():
    """An event that a hanging tracker waits for; it comes after the test, so that its thread ends."""
    event = threading.Event()
    yield event
    event.set()


def begun(trackers, **options):
    """A feed that has told of all rounds."""
    feed = Feed(trackers, **options)
    feed.begin(FACTS, Path("run"))
    for each in POINTS:
        feed.record(each)
    return feed


@pytest.mark.parametrize(
    ("call", "error", "told"), [("begin", OSError, 1), ("record", SystemExit, 2), ("end", OSError, len(EVERYTHING))]
)
def test_a_tracker_that_raises_is_left_out_and_the_others_are_fed(caplog, call, error, told):
    """Also one that wants to end the program."""
    bad, good = Told(fail_at=call, error=error), Told()
    begun({"bad": bad, "good": good}).end("finished", HANG)
    assert bad.calls == EVERYTHING[:told]
    assert good.calls == EVERYTHING
    assert [record.levelno for record in caplog.records if record.name == "fedprivacy.server"] == [logging.WARNING]
    assert warnings(caplog) == [f"Tracker bad is left out of the rest of the run: {error.__name__}: no {call} today"]


@pytest.mark.parametrize(("call", "taken", "lacks"), [("begin", 1, 4), ("record", 2, 4), ("end", 5, 0)])
def test_a_tracker_that_hangs_delays_neither_rounds_nor_the_end_nor_the_others(caplog, never, call, taken, lacks):
    hanging, good = Told(hang_at=call, hang_until=never), Told()
    feed = begun({"bad": hanging, "good": good})
    hanging.wait_for(taken)
    feed.end("finished", patience=0.5)
    good.wait_for(len(EVERYTHING))
    assert good.calls == EVERYTHING
    assert f"Tracker bad does not answer: it lacks {lacks} rounds, and the end of the run." in warnings(caplog)


def test_of_the_rounds_that_pile_up_behind_a_tracker_the_oldest_are_dropped_and_it_is_said(caplog):
    free = threading.Event()
    slow, good = Told(hang_at="begin", hang_until=free), Told()
    feed = Feed({"slow": slow, "good": good}, most_waiting=5)
    feed.begin(FACTS, Path("run"))
    for number in range(12):
        feed.record(point(number))
        good.wait_for(number + 2)
    free.set()
    feed.end("finished", HANG)
    assert [what.round for name, what in slow.calls if name == "record"] == [7, 8, 9, 10, 11]
    assert [what.round for name, what in good.calls if name == "record"] == list(range(12))
    assert slow.calls[-1] == ("end", "finished")
    assert warnings(caplog) == [
        "Tracker slow is slow: 5 rounds wait for it. From now on, the oldest are dropped.",
        "Tracker slow was too slow: 7 rounds were dropped before it.",
    ]


def test_the_interpreter_ends_although_a_tracker_hangs_and_no_library_is_loaded_for_it():
    program = """
import sys
import threading
import fedprivacy.trackers
assert not {'torch', 'tensorboard', 'mlflow', 'wandb'} & set(sys.modules), sys.modules
from pathlib import Path
from tests.trackers.tracked_run import FACTS

class Hanging:
    def begin(self, facts, folder):
        threading.Event().wait()

feed = fedprivacy.trackers.Feed({"bad": Hanging()})
feed.begin(FACTS, Path("run"))
feed.end("finished", patience=0.1)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=HANG)
