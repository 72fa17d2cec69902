"""The runs in folders, and in every ledger's database that is named or found there: their catalogue and lists of them.

The catalogue finds runs and the database of each. A list says what each run was for, reached and spent, filtered and
sorted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedprivacy._support.settings import KIND_WORDS, ConfigError, kind_of, names_in, no_settings
from fedprivacy.ledger import LedgerError, default_url
from fedprivacy.ledger.database import database_file, file_url, ledger_url, without_password
from fedprivacy.runs.records.store import EARLIER, RECORD, RunStore
from fedprivacy.runs.settings.configuration import FIELDS, LEDGER, RUNS
from fedprivacy.values.metrics import measured_names, shown_metric
from fedprivacy.values.numbers import finite_or_none, plain
from fedprivacy.values.runs import Rows, RunStanding, RunStatus
from fedprivacy.values.wording import less_is_better

log = logging.getLogger("fedprivacy.runs")

_FRESH = 0.5
"""Seconds for which a listing is reused."""

_PROBED = 1.0
"""Seconds for which the result of a probe is reused."""

_State = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Place:
    """One database, the folder if it is a run's own, and its content when it was last read."""

    url: str
    folder: Path | None = None
    store: RunStore | None = None
    state: _State | None = None
    runs: tuple[RunStanding, ...] = ()
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
        sources: URLs of ledgers, SQLite files, and folders. In a folder, its own run, the runs in it and their ledgers
            are read; new ones are found while the dashboard is open.

    Raises:
        LedgerError: a source is no database that could hold a run.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._folders = [Path(source) for source in sources if Path(source).is_dir()]
        urls = [_url_of(source) for source in sources if not Path(source).is_dir()]
        self._named, self._places = urls, {url: _Place(url) for url in urls}
        self._stores: dict[str, RunStore] = {}
        self._homes: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._listing, self._listed_at = Listing(), -_FRESH
        self._broken: list[str] = []
        self._probed_at = -_PROBED

    def listing(self) -> Listing:
        with self._lock:
            if time.monotonic() - self._listed_at >= _FRESH:
                self._listing, self._listed_at = self._list(), time.monotonic()
            return self._listing

    def problems(self) -> list[str]:
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
        for place in self._places.values():
            if place.store:
                place.store.close()

    def folder_of(self, run_id: str) -> Path | None:
        """Return the folder of a run; None: it is known from its ledger alone."""
        return self._homes.get(run_id)

    def _list(self) -> Listing:
        named = [file.with_name(RECORD) for url in self._named if (file := database_file(url))]  # beside its ledger
        files = [
            file
            for folder in self._folders
            for name in (RECORD, LEDGER)
            for file in (folder / name, *sorted(folder.glob(f"*/{name}")))
        ]
        for file in (*named, *files):
            if file.is_file():
                url = file_url(file.absolute())
                self._places.setdefault(url, _Place(url, file.parent if file.name == RECORD else None))
        listing, stores = Listing(), dict[str, RunStore]()
        for place in sorted(self._places.values(), key=lambda place: place.folder is None):
            _look(place)
            found = [run for run in place.runs if run.facts.run_id not in stores]  # else a copy of a run in its folder
            listing.runs += found
            listing.databases += [place.problem] * bool(place.problem)
            if place.store:
                stores |= {run.facts.run_id: place.store for run in found}
            if place.folder:
                self._homes |= {run.facts.run_id: place.folder for run in found}
        self._stores |= stores
        listing.folders += self._problems_of_folders()
        for problem in listing.folders:
            if problem not in self._listing.folders:
                log.warning("%s", problem)
        listing.runs.sort(key=lambda run: (-run.started, run.facts.run_id))
        return listing

    def _problems_of_folders(self) -> Iterator[str]:
        """Yield the problems of folders whose runs are not listed because of them."""
        for folder in self._folders:
            for file in (folder / EARLIER, *sorted(folder.glob(f"*/{EARLIER}"))):
                if file.is_file() and not file.with_name(RECORD).is_file():
                    yield f"'{file.parent}' holds a run of an earlier version of fedprivacy; read it with that version."


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


def default_sources() -> list[str]:
    """Return the default sources: the runs in this folder, and the deployments of this user."""
    folders = [RUNS] if Path(RUNS).is_dir() else []
    file = database_file(default_url())
    return folders + ([str(file)] if file and file.exists() else [])


def _url_of(source: str) -> str:
    """Return the URL of a ledger that is given as a URL or as a file. Raises LedgerError: the source is neither."""
    file = database_file(url := ledger_url(source))
    if file is not None and not file.is_file():
        raise LedgerError(
            f"store is '{without_password(url)}', where there is none; name the ledger of a run, or a folder of runs."
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


@dataclass(frozen=True)
class RunFilter:
    """A selection of runs; what is left open selects all.

    Attributes:
        task: name of the task.
        tag: one of the run's tags.
        status: running, finished, stopped or failed.
        settings: values by hyphenated key, as they are typed.
        search: a part of its name, task, tags or note.

    Raises:
        ConfigError: lists settings and a status that there are not.
    """

    task: str = ""
    tag: str = ""
    status: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    search: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.settings, Mapping):
            raise ConfigError(f"settings is {self.settings!r}; give values by key, such as {{'epsilon': 1}}.")
        problems = [*no_settings(self.settings, FIELDS).values()]
        problems += [
            problem for key, typed in self.settings.items() if key in FIELDS and (problem := _problem(key, str(typed)))
        ]
        problems += [
            f"{name} is {text!r}; give a text."
            for name, text in (("task", self.task), ("tag", self.tag))
            if not isinstance(text, str)
        ]
        if self.status and self.status not in tuple(RunStatus):
            problems.append(f"status is '{self.status}'; choose one of {', '.join(RunStatus)}.")
        if problems:
            raise ConfigError(problems)

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a row of a list is selected."""
        return (
            self.task in ("", row["task"])
            and (not self.tag or self.tag in row["tags"])
            and self.status in ("", row["status"])
            and self.search.casefold() in " ".join([row["run"], row["task"], *row["tags"], row["note"]]).casefold()
            and all(_same(row["settings"].get(key), value) for key, value in self.settings.items())
        )


class ListedRuns(Rows):
    """Rows of runs.

    Attributes:
        problems: reasons why some folders and databases could not be read: their runs are missing here, or not up to
            date.
    """

    def __init__(self, rows: Iterable[dict[str, Any]], problems: Sequence[str]) -> None:
        super().__init__(rows)
        self.problems = list(problems)


def list_runs(
    *sources: str | os.PathLike[str],
    task: str = "",
    tag: str = "",
    status: str = "",
    settings: Mapping[str, str] | None = None,
    sort: str = "started",
) -> ListedRuns:
    """List recorded runs, each with its settings and the newest value of its metrics.

    >>> import fedprivacy as fp
    >>> _ = fp.simulate("cancer", clients=3, rounds=2, epsilon=1.0, tags="pilot, small", progress=False)
    >>> [(row["run"], row["tags"], row["status"]) for row in fp.list_runs("runs", tag="pilot")]
    [('cancer-1', ['pilot', 'small'], 'finished')]

    Args:
        sources: folders of runs, or ledgers; none: the folder `runs` and this user's deployments.
        task: name of the task that the runs are of.
        tag: one of their tags.
        status: running, finished, stopped or failed.
        settings: values of settings, by hyphenated key.
        sort: a column, a metric or a setting; the best or the largest first, the newest for "started".

    Returns:
        A row for each run: `run`, its name; `run_id`; `folder`, or None; `task`; `status`; `tags`; `note`; `started`,
        UTC; `rounds` and `rounds_planned`; `epsilon`, the largest of a client, or None; `metric`, the name of the one
        that is shown first; `metrics`; `settings`. `problems` of the list, logged as warnings, too, say what could not
        be read.

    Raises:
        ConfigError: there is no such setting, status or column.
        LedgerError: a source is no database that could hold a run.
    """
    wanted = RunFilter(task, tag, status, settings or {})
    places = [os.fspath(source) if isinstance(source, os.PathLike) else source for source in sources]
    if wrong := [source for source in places if not isinstance(source, str)]:
        raise ConfigError([f"sources has {source!r}; give a folder of runs, or a ledger." for source in wrong])
    places = places or default_sources()
    catalogue = Catalogue(places)
    try:
        listing = catalogue.listing()
        rows = [row_of(run, catalogue.folder_of(run.facts.run_id)) for run in listing.runs]
    finally:
        catalogue.close()
    return ListedRuns(sort_rows([row for row in rows if wanted.takes(row)], sort), listing.problems)


def row_of(run: RunStanding, folder: Path | None = None) -> dict[str, Any]:
    """Return the row of a run in a list; see `list_runs`."""
    facts, last = run.facts, run.last
    metrics = plain(last.metrics) if last else {}
    return {
        "run": facts.name,
        "run_id": facts.run_id,
        "folder": str(folder) if folder else None,
        "task": facts.task,
        "status": run.status.value,
        "tags": names_in(str(facts.settings.get("tags") or "")),
        "note": str(facts.settings.get("note") or ""),
        "started": datetime.fromtimestamp(run.started, UTC).isoformat(timespec="seconds"),
        "rounds": run.finished,
        "rounds_planned": facts.rounds,
        "epsilon": finite_or_none(last.epsilons.most) if last and facts.private else None,
        "metric": shown_metric(facts.metric, metrics),
        "metrics": metrics,
        "settings": dict(facts.settings),
    }


def sort_rows(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Sort rows by a column, a metric or a setting, what has none at the end; the best or the largest first.

    Raises:
        ConfigError: no row has it.
    """
    columns = {"run", "task", "status", "started", "rounds", "epsilon"}
    metrics = measured_names(row["metrics"] for row in rows)
    if rows and by not in {*columns, *metrics, *FIELDS, *(key for row in rows for key in row["settings"])}:
        named = ", ".join([*sorted(columns), *metrics])
        raise ConfigError(f"sort is '{by}'; choose {named}, or a setting.")

    def value(row: dict[str, Any]) -> Any:
        return (row if by in columns else row["metrics"] if by in metrics else row["settings"]).get(by)

    known = [row for row in rows if value(row) not in (None, "")]
    known.sort(
        key=lambda row: (isinstance(value(row), str), value(row)), reverse=by not in metrics or not less_is_better(by)
    )
    return known + [row for row in rows if value(row) in (None, "")]


def _problem(key: str, typed: str) -> str:
    """Say why a setting cannot have the value that is typed; empty: it can."""
    kind = kind_of(FIELDS[key])
    possible = typed.lower() in ("true", "false") if kind == "bool" else kind == "str" or _number(typed) is not None
    return "" if possible or not typed else f"{key} is '{typed}'; give {KIND_WORDS[kind]}."


def _number(typed: str) -> float | None:
    with suppress(ValueError):
        return float(typed)
    return None


def _same(value: object, typed: str) -> bool:
    """Tell whether a setting has the value that is typed."""
    typed = str(typed)
    if isinstance(value, bool):
        return typed.lower() == str(value).lower()
    if isinstance(value, int | float):
        return _number(typed) == value
    return typed == ("" if value is None else str(value))
