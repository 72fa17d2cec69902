"""Catalogue of the runs in every database that is named or found beside runs' folders."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedprivacy.ledger import LedgerError, default_url
from fedprivacy.ledger.database import database_file, ledger_url, shown
from fedprivacy.runs.records.store import RunStore
from fedprivacy.runs.settings.configuration import CONFIG, LEDGER, RUNS
from fedprivacy.values.runs import RunStanding

log = logging.getLogger("fedprivacy.runs")

_FRESH = 0.5
"""Seconds for which a listing is reused."""

_PROBED = 1.0
"""Seconds for which the result of a probe is reused."""

_State = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Place:
    """One database, and its content when it was last read."""

    url: str
    store: RunStore | None = None
    state: _State | None = None
    runs: tuple[RunStanding, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Config:
    """A run's configuration in its folder: its id, the file of its ledger if it names one, or why it is unreadable."""

    run_id: str = ""
    ledger: Path | None = None
    problem: str = ""


@dataclass(slots=True)
class Listing:
    """All runs, newest first, and the reasons why some databases and folders of runs could not be read."""

    runs: list[RunStanding] = field(default_factory=list)
    databases: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """The reasons of both."""
        return self.databases + self.folders


class Catalogue:
    """Catalogue that finds runs, and the database of each. Safe for concurrent use.

    Args:
        sources: URLs of ledgers, SQLite files, and folders. A folder's own ledger and those of its runs are read, even
            if a run uses a ledger elsewhere; new ones are found while the dashboard is open.

    Raises:
        LedgerError: a source is no database that could hold a run.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._folders = [Path(source) for source in sources if Path(source).is_dir()]
        urls = [url_of(source) for source in sources if not Path(source).is_dir()]
        self._named, self._places = urls, {url: _Place(url) for url in urls}
        self._configs: dict[Path, _Config] = {}
        self._stores: dict[str, RunStore] = {}
        self._lock = threading.Lock()
        self._listing, self._listed_at = Listing(), -_FRESH
        self._broken: list[str] = []
        self._probed_at = -_PROBED

    def listing(self) -> Listing:
        """List every run."""
        with self._lock:
            if time.monotonic() - self._listed_at >= _FRESH:
                self._listing, self._listed_at = self._list(), time.monotonic()
            return self._listing

    def broken(self) -> list[str]:
        """Name what cannot be read of the sources that were named: `ledger`, `runs`; empty: nothing is wrong.

        It says nothing of any run: neither how many there are nor where.
        """
        with self._lock:
            if time.monotonic() - self._probed_at >= _PROBED:
                ledgers, folders = all(map(_answers, self._named)), all(map(_is_listed, self._folders))
                self._broken = [name for name, well in (("ledger", ledgers), ("runs", folders)) if not well]
                self._probed_at = time.monotonic()
            return self._broken

    def store_of(self, run_id: str) -> RunStore | None:
        """Return the database that holds a run; None: there is no such run."""
        if run_id not in self._stores:
            self.listing()
        return self._stores.get(run_id)

    def close(self) -> None:
        """Close every connection."""
        for place in self._places.values():
            if place.store:
                place.store.close()

    def _read_configs(self) -> None:
        """Read the configurations of the folders' runs; none ever changes, so that each is read once."""
        found = [file for folder in self._folders for file in (folder / CONFIG, *folder.glob(f"*/{CONFIG}"))]
        known = {file: read for file, read in self._configs.items() if not read.problem}
        self._configs = {file: known.get(file) or _config_in(file) for file in found if file.is_file()}

    def _list(self) -> Listing:
        self._read_configs()
        named = sorted({config.ledger for config in self._configs.values() if config.ledger})
        for folder in self._folders:
            for file in (folder / LEDGER, *sorted(folder.glob(f"*/{LEDGER}")), *named):
                if file.is_file():
                    url = url_of(str(file))
                    self._places.setdefault(url, _Place(url))
        listing = Listing()
        for place in self._places.values():
            _look(place)
            listing.runs += place.runs
            listing.databases += [place.problem] * bool(place.problem)
            if place.store:
                self._stores |= {run.facts.run_id: place.store for run in place.runs}
        listing.folders += self._lost({run.facts.run_id for run in listing.runs})
        for problem in listing.folders:
            if problem not in self._listing.folders:
                log.warning("%s", problem)
        listing.runs.sort(key=lambda run: (-run.started, run.facts.run_id))
        return listing

    def _lost(self, listed: Collection[str]) -> Iterator[str]:
        """Yield the problems of folders whose runs are not listed because of them."""
        for file, config in self._configs.items():
            if config.problem:
                yield config.problem
            elif (
                config.run_id
                and config.run_id not in listed
                and not (config.ledger or file.with_name(LEDGER)).is_file()
            ):
                yield f"'{file.parent}' holds a run whose ledger is not here; name that ledger, too."


def _answers(url: str) -> bool:
    """Return whether a ledger can be read now, without much patience."""
    if (file := database_file(url)) and not file.is_file():
        return False  # SQLite would make a new one
    try:
        RunStore(url, patience=_PROBED).close()  # it reads the version of the tables, and no run
    except LedgerError:
        return False
    return True


def _is_listed(folder: Path) -> bool:
    """Return whether a folder of runs can be read now."""
    try:
        next(folder.iterdir(), None)
    except OSError:
        return False
    return True


def _config_in(file: Path) -> _Config:
    """Read the configuration of a run; its ledger is None if it is the run's own, or PostgreSQL."""
    try:
        config = json.loads(file.read_text())
        named = config["settings"]["ledger"]
        return _Config(str(config.get("run_id", "")), database_file(named) if named else None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _Config(
            problem=f"'{file}' cannot be read ({type(error).__name__}: {error}); mend it, or remove the folder."
        )


def default_sources() -> list[str]:
    """Return the default sources: the runs in this folder, and the deployments of this user."""
    folders = [RUNS] if Path(RUNS).is_dir() else []
    file = database_file(default_url())
    return folders + ([str(file)] if file and file.exists() else [])


def url_of(source: str) -> str:
    """Return the URL of a ledger that is given as a URL or as a file.

    Raises:
        LedgerError: the source is neither.
    """
    file = database_file(url := ledger_url(source))
    if file is not None and not file.is_file():
        raise LedgerError(
            f"store is '{shown(url)}', where there is none; name the ledger of a run, or a folder of runs."
        )
    return url


def _look(place: _Place) -> None:
    """Read a database, unless its files are unchanged."""
    state = _state(place.url)
    if state is not None and state == place.state:
        return
    try:
        place.store = place.store or RunStore(place.url)
        place.runs, place.state, place.problem = tuple(place.store.runs()), state, ""
    except LedgerError as error:
        if place.problem != str(error):
            log.warning("%s", error)
        place.state, place.problem = state, str(error)
        return
    if not any(run.running for run in place.runs):
        place.store.close()  # it opens again on request; a thousand runs must not keep a thousand files open


def _state(url: str) -> _State | None:
    """Return size and time of change of an SQLite ledger's files; None: only the database itself can tell."""
    file = database_file(url)
    if file is None:
        return None
    files = [file, file.with_name(f"{file.name}-wal")]
    return tuple((stat.st_mtime_ns, stat.st_size) for stat in (f.stat() for f in files if f.exists()))
