"""A profile is a table whose shares add to 1 and a trace that a viewer of the Trace Event Format opens."""

import json
import math
import threading

import pytest

from fedprivacy._support.spans import recorded, span
from fedprivacy.runs.records.folder import RunFolderError
from fedprivacy.runs.records.profile import FIRST, LATER, TRACE, Profile


def a_round(clients):
    with span("asking clients"):
        for _ in range(clients):
            with span("client"), span("training"):
                pass


@pytest.fixture(scope="module")
def recording():
    """Set-up, a thread beside it, and three rounds; not all of it is kept whole."""
    with recorded("run", most=35) as recording:
        with span("set-up"), span("opening a shard"):
            pass
        thread = threading.Thread(target=a_round, args=(1,), name="beside")
        thread.start()
        thread.join()
        with span(FIRST, 1):
            a_round(2)
        for number in (2, 3):
            with span(LATER, number):
                a_round(5)
                with span("checkpoint"):
                    pass
    return recording


@pytest.fixture(scope="module")
def profile(recording):
    return Profile.of(recording, [2, 5, 4], ["A note."])


@pytest.fixture(scope="module")
def trace(recording, profile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    profile.write(recording, folder)
    assert Profile.read(folder) == profile
    return json.loads((folder / TRACE).read_text(), parse_constant=pytest.fail)


def test_phases_stand_below_those_that_surround_them_and_both_kinds_of_rounds_are_one(profile):
    calls = {row["phase"]: row["calls"] for row in profile.phases}
    assert calls == {
        "run": 1,
        "run > set-up": 1,
        "run > set-up > opening a shard": 1,
        "run > rounds": 3,
        "run > rounds > asking clients": 3,
        "run > rounds > asking clients > client": 12,
        "run > rounds > asking clients > client > training": 12,
        "run > rounds > checkpoint": 2,
        "other threads": 1,
        "other threads > asking clients": 1,
        "other threads > asking clients > client": 1,
        "other threads > asking clients > client > training": 1,
    }


def test_shares_add_to_1_and_milliseconds_are_for_an_update_of_its_own_kind_of_rounds(profile, recording):
    rows = {row["phase"]: row for row in profile.phases}
    own = [row for phase, row in rows.items() if phase.startswith("run")]
    assert math.isclose(sum(row["share"] for row in own), 1.0) and min(row["share"] for row in own) >= 0.0
    assert math.isclose(sum(row["self_seconds"] for row in own), own[0]["seconds"])
    assert rows["other threads"]["share"] is None
    whole, rounds = recording.whole, rows["run > rounds"]
    assert math.isclose(rounds["first_round_ms"], whole.inside[FIRST].total / 1e6 / 2)
    assert math.isclose(rounds["later_rounds_ms"], whole.inside[LATER].total / 1e6 / 9)
    assert rows["run > rounds > checkpoint"]["first_round_ms"] is None
    assert rows["run > set-up"]["later_rounds_ms"] is None
    assert (profile.first.rounds, profile.later.rounds, profile.first.updates, profile.later.updates) == (1, 2, 2, 9)
    assert math.isclose(profile.later.clients_a_second, 9e9 / whole.inside[LATER].total)


def test_every_event_of_the_trace_has_what_the_format_asks_for(trace):
    named = {}
    for event in trace["traceEvents"]:
        assert (type(event["name"]), type(event["pid"]), type(event["tid"])) == (str, int, int)
        if event["ph"] == "X":
            assert event["ts"] >= 0.0 and event["dur"] >= 0.0
        elif event["ph"] == "M":
            named[event["name"], event["tid"]] = event["args"]["name"]
        else:
            assert (event["ph"], event["ts"], event["s"]) == ("i", 0, "g")
    assert named["process_name", 0] == "fedprivacy simulate"
    assert named["thread_name", 1] == "beside"


def test_the_spans_of_a_thread_nest(trace):
    """As a viewer stacks them: in the order of the file, each begins inside those that are open, and ends there."""
    for tid in (0, 1):
        open_until = []
        complete = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == tid]
        assert complete
        for event in complete:
            began = round(event["ts"] * 1e3)
            ended = began + round(event["dur"] * 1e3)
            while open_until and open_until[-1] <= began and open_until[-1] < ended:
                open_until.pop()
            assert not open_until or ended <= open_until[-1]
            open_until.append(ended)


def test_rounds_have_their_numbers_and_what_is_left_out_is_said(trace, recording, profile):
    rounds = [event["args"]["round"] for event in trace["traceEvents"] if event["name"] in {FIRST, LATER}]
    assert rounds == [1, 2, 3]
    notes = [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"]
    assert notes == list(profile.notes) and notes[0] == "A note."
    every = recording.left_out + len(recording.stretches)
    assert recording.left_out > 0
    assert notes[1].startswith(f"The trace leaves out {recording.left_out} of {every} spans")
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == len(recording.stretches) == 35


def test_a_folder_without_a_profile_says_how_one_is_made(tmp_path):
    with pytest.raises(RunFolderError, match=r"has no profile\.json; a simulation with profile=True"):
        Profile.read(tmp_path)
