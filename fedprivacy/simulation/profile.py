"""Profiles a simulation: records where its time goes, and writes a trace and a table of it into the run's folder."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedprivacy._support.durable import write_durably
from fedprivacy._support.spans import Recording, recorded
from fedprivacy._support.table import compact_table
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.records.folder import RunFolderError, read_history, writing
from fedprivacy.runs.records.profile import BETWEEN, FIRST, TRACE, Pace, Profile
from fedprivacy.values.wording import count_text

log = logging.getLogger("fedprivacy.server")

TABLE = "profile.txt"

IN_WORKERS = (
    "What trained in worker processes is not in it: the server waited for them in 'asking clients'. Profile with "
    "--workers 1 and without --ray-address to see inside."
)

_LEAST_SHARE = 0.001
"""Share of the run's time below which a phase is left out of a terminal's table."""

_WIDTH = 80


@contextmanager
def profiled(folder: Path, placement: Placement, finished: int) -> Iterator[None]:
    """Profile the run that the block is; of one that fails or is stopped after its first round began, what there is.

    Args:
        folder: the run's.
        placement: where its clients run.
        finished: rounds that were finished before the block.

    Raises:
        RuntimeError: another run of this process is being profiled.
    """
    recording, notes = None, [IN_WORKERS] * placement.elsewhere
    try:
        with recorded("run") as recording:
            yield
    finally:
        if recording is not None and FIRST in recording.whole.inside:  # else the folder may be another run's
            _keep(recording, folder, finished, notes)


def show_profile(folder: Path, console: Console) -> None:
    """Show the profile in a run's folder, if it could be written, and say how its trace is opened."""
    if not (folder / TRACE).exists():
        return
    console.print(profile_table(Profile.read(folder)))
    how = "open it in chrome://tracing, or at https://ui.perfetto.dev, which sends it nowhere"
    console.print(f"Trace: {folder / TRACE} ({how})", highlight=False, soft_wrap=True, markup=False)


def profile_table(profile: Profile, *, whole: bool = False) -> Table:
    """A profile for people: phases below those that surround them, in the order in which they came first.

    Args:
        profile: of a run.
        whole: with phases that took next to nothing, too.
    """
    seconds = profile.phases[0]["seconds"]
    shown = [row for row in profile.phases if whole or row["seconds"] >= _LEAST_SHARE * seconds]
    hidden = len(profile.phases) - len(shown)
    notes = [*_paces(profile), *profile.notes]
    if hidden:
        notes.append(f"{count_text(hidden, 'phase')} of less than {_LEAST_SHARE:.1%} each: see {TABLE}.")
    title = "Where the time went; of rounds, milliseconds for each client update"
    table = compact_table(title, caption="\n".join(notes))
    table.add_column("phase")
    for column in ("calls", "seconds", "share", "first\nround", "later\nrounds"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in shown:
        around, _, name = f"{BETWEEN}{row['phase']}".rpartition(BETWEEN)
        table.add_row(
            "  " * around.count(BETWEEN) + name,
            f"{row['calls']:,}",
            f"{row['seconds']:.3f}",
            "" if row["share"] is None else f"{row['share']:.1%}",
            _milliseconds(row["first_round_ms"]),
            _milliseconds(row["later_rounds_ms"]),
        )
    return table


def _paces(profile: Profile) -> Iterator[str]:
    for name, pace in (("The first round", profile.first), ("Later rounds", profile.later)):
        if pace.updates:
            yield f"{name}: {_pace_words(pace)}."


def _pace_words(pace: Pace) -> str:
    each = 1e3 / pace.clients_a_second
    updates = count_text(pace.updates, "client update")
    return f"{updates} in {pace.seconds:.2f} s, {pace.clients_a_second:,.1f} a second, {each:.3g} ms each"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


def _keep(recording: Recording, folder: Path, finished: int, notes: list[str]) -> None:
    """Write what was recorded; a run does not fail because its profile cannot be written."""
    rounds = read_history(folder).rounds[finished:]
    profile = Profile.of(recording, [len(result.participants) for result in rounds], notes)
    text = io.StringIO()
    Console(file=text, emoji=False, width=_WIDTH).print(profile_table(profile, whole=True))
    try:
        profile.write(recording, folder)
        with writing(folder):
            write_durably(folder / TABLE, text.getvalue().encode())
    except RunFolderError as error:
        log.warning("The profile is not written: %s", error)
