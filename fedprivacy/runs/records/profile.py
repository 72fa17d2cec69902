"""A profile of a simulation: its time by phase, and a trace that chrome://tracing and Perfetto open.

`profile.json` is both: a Chrome trace (Trace Event Format, as a JSON object) whose "X" events are stretches of time in
microseconds, nested by thread, and beside them, under `profile`, what each phase came to over the whole run.

A profile tells names of phases, numbers of rounds and durations. How long a client's work takes may say something of
its records. So a profile is for whoever holds them all: only `fedprivacy.simulation.profile` records one, of a
simulation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from fedprivacy._support.durable import write_durably
from fedprivacy._support.spans import Recording, Totals
from fedprivacy.runs.records.folder import RunFolderError, writing
from fedprivacy.values.runs import Rows

TRACE = "profile.json"

FIRST, LATER, ROUNDS = "first round", "later rounds", "rounds"
"""Names of the spans of rounds, and of their group. The first round prepares what later ones reuse."""

OTHER_THREADS = "other threads"
"""Names of spans outside the run's own thread. Their time is no part of the run's time."""

BETWEEN = " > "
"""Separator of the names in a phase."""

_PID = 1
"""Process number in a trace; the real one would say nothing."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of some rounds.

    Attributes:
        rounds: how many were begun.
        updates: how many clients' updates they averaged.
        seconds: that they took.
    """

    rounds: int
    updates: int
    seconds: float

    @property
    def clients_a_second(self) -> float:
        """Updates in a second; 0 of none."""
        return self.updates / self.seconds if self.updates else 0.0

    @classmethod
    def of(cls, rounds: Totals | None, updates: int) -> Self:
        """The pace of the rounds that were marked; None: there were none."""
        return cls(rounds.calls, updates, rounds.total / 1e9) if rounds else cls(0, 0, 0.0)


@dataclass(frozen=True)
class Profile:
    """A simulation's time, by phase.

    Attributes:
        phases: a row for each, below the phase that surrounds it: `phase`, the names from the outermost on; `calls`;
            `seconds` in all; `self_seconds`, of those what no phase inside accounts for; `share` of the run's time that
            `self_seconds` are, which add up to 1, and None in other threads; and milliseconds for a client's update,
            `first_round_ms` and `later_rounds_ms`, None outside of rounds.
        first, later: how fast the first round went, and the others together.
        notes: what is not in it.
    """

    phases: Rows
    first: Pace
    later: Pace
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, recording: Recording, updates: Sequence[int], notes: Sequence[str] = ()) -> Self:
        """Sum up a recording of a run.

        Args:
            recording: that has ended.
            updates: how many clients' updates each of its finished rounds averaged.
            notes: what the recording lacks.
        """
        run = recording.whole
        first, later = run.inside.get(FIRST), run.inside.get(LATER)
        paces = Pace.of(first, sum(updates[:1])), Pace.of(later, sum(updates[1:]))
        rows = Rows(_of_run(run, *paces))
        rows += _of_threads([thread.totals for thread in recording.threads[1:]])
        left, spans = recording.left_out, recording.left_out + len(recording.stretches)
        left_out = f"The trace leaves out {left:,} of {spans:,} spans; the totals have all of them."
        return cls(rows, *paces, (*notes, *[left_out] * (left > 0)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The profile in a run's folder.

        Raises:
            RunFolderError: there is none.
        """
        if not (folder / TRACE).exists():
            raise RunFolderError(f"'{folder}' has no {TRACE}; a simulation with profile=True, or --profile, writes it.")
        told = json.loads((folder / TRACE).read_text())["profile"]
        return cls(Rows(told["phases"]), Pace(**told["first"]), Pace(**told["later"]), tuple(told["notes"]))

    def write(self, recording: Recording, folder: Path) -> None:
        """Write `profile.json` into a run's folder, in place of one that is there.

        Raises:
            RunFolderError: it cannot be written.
        """
        trace = {
            "displayTimeUnit": "ms",
            "profile": asdict(self),
            "traceEvents": [*_names(recording), *_said(self.notes), *_stretches(recording)],
        }
        with writing(folder):
            write_durably(folder / TRACE, json.dumps(trace, separators=(",", ":")).encode())


def _names(recording: Recording) -> Iterator[dict[str, Any]]:
    """The metadata events: what process and threads are called."""
    yield {"name": "process_name", "ph": "M", "pid": _PID, "tid": 0, "args": {"name": "fedprivacy simulate"}}
    for thread in recording.threads:
        yield {"name": "thread_name", "ph": "M", "pid": _PID, "tid": thread.number, "args": {"name": thread.name}}


def _said(notes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Events without duration that a viewer shows at the beginning."""
    for note in notes:
        yield {"name": note, "ph": "i", "s": "g", "ts": 0, "pid": _PID, "tid": 0}


def _stretches(recording: Recording) -> Iterator[dict[str, Any]]:
    """The complete events, in the order of their beginnings, an outer one before those inside."""
    ended_last_first = reversed(recording.stretches)
    for stretch in sorted(ended_last_first, key=lambda each: (each.began, -each.lasted)):
        event = {"name": stretch.name, "ph": "X", "ts": stretch.began / 1e3, "dur": stretch.lasted / 1e3}
        numbered = {} if stretch.number is None else {"args": {"round": stretch.number}}
        yield event | {"pid": _PID, "tid": stretch.thread} | numbered


def _of_run(run: Totals, first: Pace, later: Pace) -> Iterator[dict[str, Any]]:
    """A row for each phase of the run's own thread, with both kinds of rounds as one."""
    joined = Totals(run.name)
    joined.calls, joined.own = run.calls, run.own
    for name, each in run.inside.items():
        _add(joined.below(ROUNDS if name in {FIRST, LATER} else name), each)
    for path, totals in _walk(joined, ()):
        by_kind = {FIRST: first, LATER: later} if path[1:2] == (ROUNDS,) else {}
        each_update = {kind: _milliseconds(_at(run, (kind, *path[2:])), pace) for kind, pace in by_kind.items()}
        yield _row(path, totals, totals.own / joined.total, each_update)


def _of_threads(threads: Sequence[Totals]) -> Iterator[dict[str, Any]]:
    """A row for each phase of the other threads together, after one for all of them, whose calls are the threads."""
    joined = Totals(OTHER_THREADS)
    for marked in threads:
        _add(joined, marked)
        joined.calls += 1
    for path, totals in _walk(joined, ()) if threads else ():
        yield _row(path, totals, None, {})


def _row(
    path: tuple[str, ...], totals: Totals, share: float | None, each_update: dict[str, float | None]
) -> dict[str, Any]:
    return {
        "phase": BETWEEN.join(path),
        "calls": totals.calls,
        "seconds": totals.total / 1e9,
        "self_seconds": totals.own / 1e9,
        "share": share,
        "first_round_ms": each_update.get(FIRST),
        "later_rounds_ms": each_update.get(LATER),
    }


def _milliseconds(totals: Totals | None, pace: Pace) -> float | None:
    """Seconds for each client's update."""
    return totals.total / 1e6 / pace.updates if totals and pace.updates else None


def _walk(totals: Totals, around: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Totals]]:
    """It and all inside, each with the names from the outermost on."""
    path = (*around, totals.name)
    yield path, totals
    for each in totals.inside.values():
        yield from _walk(each, path)


def _at(totals: Totals | None, names: tuple[str, ...]) -> Totals | None:
    """The phase under these names, the outermost first."""
    for name in names:
        totals = totals.inside.get(name) if totals else None
    return totals


def _add(totals: Totals, more: Totals) -> None:
    totals.calls += more.calls
    totals.own += more.own
    for each in more.inside.values():
        _add(totals.below(each.name), each)
