"""Lists of runs: what each was for, reached and spent, filtered and sorted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedprivacy._support.settings import KIND_WORDS, ConfigError, kind_of, names_in, no_settings
from fedprivacy.runs.records.catalogue import Catalogue, default_sources
from fedprivacy.runs.settings.configuration import FIELDS
from fedprivacy.values.metrics import measured_names, shown_metric
from fedprivacy.values.numbers import finite_or_none, plain
from fedprivacy.values.runs import Rows, RunStanding, RunStatus
from fedprivacy.values.wording import less_is_better


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
            raise ConfigError([f"settings is {self.settings!r}; give values by key, such as {{'epsilon': 1}}."])
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
    return ListedRuns(ordered([row for row in rows if wanted.takes(row)], sort), listing.problems)


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


def ordered(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Sort rows by a column, a metric or a setting, what has none at the end; the best or the largest first.

    Raises:
        ConfigError: no row has it.
    """
    columns = {"run", "task", "status", "started", "rounds", "epsilon"}
    metrics = measured_names(row["metrics"] for row in rows)
    if rows and by not in {*columns, *metrics, *FIELDS, *(key for row in rows for key in row["settings"])}:
        named = ", ".join([*sorted(columns), *metrics])
        raise ConfigError([f"sort is '{by}'; choose {named}, or a setting."])

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
