"""Spans nest by thread, are bounded in memory, and leave nothing behind where nobody records."""

import threading
import time

import pytest

from fedprivacy._support.spans import Stretch, recorded, span, spanned


@spanned("inner")
def inner(seconds=0.0):
    """Sleeps."""
    time.sleep(seconds)
    return seconds


def all_of(totals):
    """It and everything inside."""
    return [totals, *(each for below in totals.inside.values() for each in all_of(below))]


def test_times_count_below_the_names_that_surround_them_and_add_up():
    with recorded("run") as recording:
        for _ in range(3):
            with span("outer"):
                inner(0.002)
                inner(0.001)
        inner()
    run = recording.whole
    assert (run.name, run.calls, list(run.inside)) == ("run", 1, ["outer", "inner"])
    outer = run.inside["outer"]
    assert (outer.calls, outer.inside["inner"].calls, run.inside["inner"].calls) == (3, 6, 1)
    assert run.inside["outer"].inside["inner"].own >= 9_000_000
    assert sum(each.own for each in all_of(run)) == run.total
    assert all(each.own >= 0 for each in all_of(run))
    whole = next(each for each in recording.stretches if each.name == "run")
    assert whole.lasted == run.total


def test_a_span_ends_with_the_error_that_ends_its_block():
    with pytest.raises(ValueError, match="here"), recorded("run") as recording, span("outer"):
        raise ValueError("here")
    assert [(each.name, each.thread) for each in recording.stretches] == [("outer", 0), ("run", 0)]
    with recorded("again") as again:
        pass
    assert again.whole.inside == {}


def test_every_thread_has_its_own_nesting():
    begun, go_on = threading.Event(), threading.Event()

    def work():
        with span("beside"):
            begun.set()
            go_on.wait(60)
            inner()

    with recorded("run") as recording, span("outer"):
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        assert begun.wait(60)
        inner()
        go_on.set()
        thread.join()
    here, there = recording.threads
    assert (here.number, there.number, there.name) == (0, 1, "worker")
    assert list(recording.whole.inside["outer"].inside) == ["inner"]
    assert list(there.totals.inside) == ["beside"]
    assert there.totals.inside["beside"].inside["inner"].calls == 1
    assert {each.name for each in recording.stretches if each.thread == 1} == {"beside", "inner"}


def test_what_is_open_at_the_end_of_a_recording_counts_as_far_as_it_has_come():
    """Spans that have ended inside a thread that goes on count, and nothing is negative."""
    inside, go_on = threading.Event(), threading.Event()

    def work():
        with span("beside"):
            inner(0.001)
            inside.set()
            go_on.wait(60)

    with recorded("run") as recording:
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(60)
    beside = recording.threads[1].totals.inside["beside"]
    assert (beside.calls, beside.own) == (0, 0)
    assert beside.total == beside.inside["inner"].own > 0
    go_on.set()
    thread.join()


def test_a_bounded_number_is_kept_whole_and_totals_have_all():
    with recorded("run", most=100) as recording:
        for number in range(50):
            with span("round", number), span("a"), span("b"):
                for _ in range(10):
                    inner()
    assert len(recording.stretches) == 100
    assert recording.left_out + len(recording.stretches) == 1 + 50 * 13
    deep = recording.whole.inside["round"].inside["a"].inside["b"].inside["inner"]
    assert deep.calls == 500
    assert recording.stretches[-1].name == "run", "the whole, which ends last"
    kept = [each.number for each in recording.stretches if each.name == "round"]
    assert kept == list(range(len(kept))), "the first ones"
    assert sum(each.name == "inner" for each in recording.stretches) < 90 < 100, (
        "the outer ones have places of their own"
    )
    assert isinstance(recording.stretches[0], Stretch)


def test_two_recordings_at_once_are_refused_and_the_first_goes_on():
    with recorded("run") as recording:
        with pytest.raises(RuntimeError, match="one run at a time"), recorded("other"):
            pass
        inner()
    assert recording.whole.inside["inner"].calls == 1
    with recorded("another"):
        pass
