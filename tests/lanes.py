"""Three lanes of tests: a coffee, a change that lands, an hour.

A test without a mark proves a promise quickly, and everybody runs it. One marked `exhaustive` proves it over every
setting, and runs before a change lands. One marked `soak` repeats what is proven already, over more seeds and moments
than anybody waits for.

    pytest --lane quick                     # make test
    pytest --lane full                      # make test-all: quick and exhaustive
    pytest --lane soak [--slice 3/10]       # make soak: those marked, and every Hypothesis test with many more examples

Without --lane, whatever is named runs.
"""

import zlib

import pytest
from hypothesis import Phase, settings

LEFT_OUT = {None: (), "quick": ("exhaustive", "soak"), "full": ("soak",)}
"""Marks of what a lane leaves out."""

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""To make a failure small takes minutes; --hypothesis-profile default does."""

settings.register_profile("suite", max_examples=25, derandomize=True, deadline=None, phases=UNSHRUNK)
settings.register_profile("soak", max_examples=500, deadline=None, print_blob=True, phases=UNSHRUNK)


def pytest_addoption(parser):
    parser.addoption("--lane", choices=["quick", "full", "soak"], help="which tests run; all without it")
    parser.addoption("--slice", type=_slice, default=(1, 1), metavar="K/N", help="the K-th of N parts of these tests")


def pytest_configure(config):
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("soak" if config.getoption("--lane") == "soak" else "suite")


def pytest_collection_modifyitems(config, items):
    lane, (part, parts) = config.getoption("--lane"), config.getoption("--slice")
    keep = [item for item in items if _in(lane, item) and zlib.crc32(item.nodeid.encode()) % parts == part - 1]
    if left_out := set(items).difference(keep):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = keep


def _in(lane, item):
    if lane == "soak":
        function = getattr(item, "obj", None)
        return item.get_closest_marker("soak") or getattr(function, "is_hypothesis_test", False)
    return not any(item.get_closest_marker(mark) for mark in LEFT_OUT[lane])


def _slice(text):
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--slice {text}: give it as K/N, the K-th of N parts, such as 3/10.")
    return int(part), int(parts)
