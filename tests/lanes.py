"""Three lanes of tests: a coffee, a change that lands, an hour.

A test without a mark proves a promise quickly, and everybody runs it. One marked `exhaustive` proves it over every
setting, and runs before a change lands. One marked `soak` repeats what is proven already, over more seeds and moments
than anybody waits for.

    pytest --lane quick                     # make test
    pytest --lane full                      # make test-all: quick and exhaustive
    pytest --lane soak [--slice 3/10]       # make soak: those marked, and every Hypothesis test with many more examples

Without --lane, whatever is named runs.

    pytest --order 7                        # make test ORDER=7: the tests in another order, with other random numbers
"""

import random
import sys
import zlib

import numpy as np
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
    parser.addoption(
        "--order", type=int, metavar="SEED", help="shuffle the tests, and draw other random numbers in each"
    )
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
    if (order := config.getoption("--order")) is not None:
        places = {file: random.Random(f"{order} {file}").random() for file in {_file(item) for item in items}}
        random.Random(order).shuffle(items)
        items.sort(key=lambda item: places[_file(item)])  # a file's tests stay together, for they share what is dear


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A test draws the same numbers in every run of one order, whatever ran before it in its process."""
    order = item.config.getoption("--order")
    seed = zlib.crc32(f"{item.nodeid}{'' if order is None else order}".encode())
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):  # not imported yet, it begins with one seed of its own
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # else each call would note where it came from, for later
            torch.cuda.manual_seed_all(seed)


def _in(lane, item):
    if lane == "soak":
        function = getattr(item, "obj", None)
        return item.get_closest_marker("soak") or getattr(function, "is_hypothesis_test", False)
    return not any(item.get_closest_marker(mark) for mark in LEFT_OUT[lane])


def _file(item):
    return item.nodeid.partition("::")[0]


def _slice(text):
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--slice {text}: give it as K/N, the K-th of N parts, such as 3/10.")
    return int(part), int(parts)
