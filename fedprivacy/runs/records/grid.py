"""A sweep: the product of lists of settings times seeds, each run in its own folder, and what came out."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedprivacy._support.settings import ConfigError, kind_of, names_in
from fedprivacy.figures import save_png
from fedprivacy.figures.sweep import EpsilonLine, SeedSpread, spread_of, sweep_figure
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.comparison import final_of
from fedprivacy.runs.records.folder import has_terms_of, read_history
from fedprivacy.runs.settings.configuration import CONFIG, FIELDS, Value
from fedprivacy.values.nulls import finite_or_none
from fedprivacy.values.runs import Rows

TABLE, RUNS, FIGURE, FINISHED = "sweep.csv", "runs.csv", "sweep.png", "finished"

_OF_PRIVACY = ("epsilon", "delta", "noise-multiplier", "clipping", "clipping-norm", "filter")
"""Settings that a baseline does without."""

Combination = Mapping[str, Value]
"""One value for every setting of which several are swept, by hyphenated key; `privacy` is False for a baseline."""


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep: its folder, what it varies, and its settings."""

    folder: Path
    combination: Combination
    seed: int
    given: Mapping[str, Value]

    @property
    def finished(self) -> bool:
        """Return whether the run reached its end."""
        return (self.folder / FINISHED).exists()


@dataclass(frozen=True)
class SweepGrid:
    """The runs of a sweep: every combination of the values of its settings.

    Attributes:
        lists: values by hyphenated key; a list with one value sets it in every run.
        seeds: number of seeds, from 0 on.
        baseline: whether each choice of the settings that are not privacy's is run without privacy, too.
        out: the folder that receives the runs.
    """

    lists: Mapping[str, Sequence[Value]]
    seeds: int
    baseline: bool
    out: Path

    @classmethod
    def of(cls, texts: Mapping[str, str], seeds: int, out: Path, *, baseline: bool) -> SweepGrid:
        """Read the grid from lists as people write them, with commas.

        Raises:
            ConfigError: lists the values that are not of their setting's type.
        """
        lists: dict[str, Sequence[Value]] = {}
        problems: list[str] = []
        for key, text in texts.items():
            try:
                lists[key] = _values(key, text)
            except ValueError:
                problems.append(f"{key} is '{text}'; give numbers, separated by commas.")
        if problems:
            raise ConfigError(problems)
        return cls(lists, seeds, baseline, out)

    @property
    def swept(self) -> tuple[str, ...]:
        """Settings of which there are several values."""
        return tuple(key for key, values in self.lists.items() if len(values) > 1)

    @cached_property
    def combinations(self) -> tuple[Combination, ...]:
        """All combinations in the order of the lists, the last list fastest; baselines at the end."""
        private = [dict(zip(self.swept, chosen, strict=True)) for chosen in self._product(self.swept)]
        if not self.baseline:
            return tuple(private)
        others = [key for key in self.swept if key not in _OF_PRIVACY]
        without = [{**dict(zip(others, chosen, strict=True)), "privacy": False} for chosen in self._product(others)]
        return (*private, *without)

    @cached_property
    def runs(self) -> tuple[SweptRun, ...]:
        """Every combination with every seed."""
        return tuple(
            SweptRun(self.out / folder_of(combination, seed), combination, seed, self._given(combination, seed))
            for combination in self.combinations
            for seed in range(self.seeds)
        )

    def check(self) -> list[TrainingPlan]:
        """Check every combination, and that finished runs are of this sweep; nothing is run. A plan for each of them.

        Raises:
            ConfigError: lists everything that is wrong.
        """
        problems: dict[str, None] = {}
        plans = []
        for run in self.runs[:: self.seeds]:
            try:
                plans.append(plan := TrainingPlan.of(run.given))
                plan.client_terms.check_names(plan.simulated_clients)
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
        if problems:
            raise ConfigError(list(problems))
        for plan, run in zip(
            itertools.chain.from_iterable([plan] * self.seeds for plan in plans), self.runs, strict=True
        ):
            problems |= dict.fromkeys(_differences(plan, run))
        if problems:
            raise ConfigError(list(problems))
        return plans

    def _product(self, keys: Sequence[str]) -> itertools.product[tuple[Value, ...]]:
        return itertools.product(*(self.lists[key] for key in keys))

    def _given(self, combination: Combination, seed: int) -> dict[str, Value]:
        fixed = {key: values[0] for key, values in self.lists.items() if len(values) == 1}
        if "privacy" in combination:
            fixed = {key: value for key, value in fixed.items() if key not in _OF_PRIVACY}
        return fixed | dict(combination) | {"seed": seed}


def _values(key: str, text: str) -> list[Value]:
    """A list as it was written; a ValueError if one is not of the setting's type."""
    if key == "trackers":
        return [text]  # commas are its own
    kind = {"int": int, "float": float, "str": str}[kind_of(FIELDS[key])]
    return [kind(name) for name in names_in(text)]


def words_of(combination: Combination) -> str:
    """A combination for people.

    >>> words_of({"epsilon": 0.5, "strategy": "fedavg"})
    'epsilon 0.5, strategy fedavg'
    """
    return ", ".join(
        "no privacy" if key == "privacy" else f"{key} {_short(value)}" for key, value in combination.items()
    )


def folder_of(combination: Combination, seed: int) -> str:
    """The name of a run's folder: what is swept, in letters that every file system takes; no two have the same."""
    parts = [part.replace(" ", "-") for part in words_of(combination).split(", ") if part]
    plain = re.sub(r"[^\w.+-]", "_", "_".join([*parts, f"seed-{seed}"]))
    exact = words_of(combination)
    return plain if re.fullmatch(r"[\w.+, -]*", exact) else f"{plain}-{zlib.crc32(exact.encode()):08x}"


def _short(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _differences(plan: TrainingPlan, run: SweptRun) -> list[str]:
    """Why a folder cannot be taken for this run: it holds one with other settings."""
    try:
        recorded = json.loads((run.folder / CONFIG).read_text())["settings"]
    except (OSError, ValueError, KeyError):
        return []  # nothing has begun there
    wanted = plan.config.public() | {"seed": run.seed}
    other = [key for key in wanted if key not in ("out", "resume") and recorded.get(key) != wanted[key]]
    if not other and not has_terms_of(run.folder, plan):
        other = ["table of client-terms"]
    if not other:
        return []
    return [f"'{run.folder}' holds a run with another {', '.join(other)}; name a new folder (--out)."]


@dataclass(frozen=True)
class SweepResults:
    """Results of the finished runs of a sweep, by the metric that the task shows first."""

    grid: SweepGrid
    metric: str

    @cached_property
    def runs(self) -> Rows:
        """A row for each finished run: its combination, `privacy`, `seed`, the metric, `epsilon_spent`, `rounds`."""
        return Rows(self._run(run) for run in self.grid.runs if run.finished)

    @cached_property
    def combinations(self) -> Rows:
        """A row for each combination with a finished run.

        Its settings, `privacy`, `runs`, `mean` and `deviation` of the metric over seeds (None: not measured) and
        `epsilon`, the largest of a client in any of the runs, or None.
        """
        return Rows(row for combination in self.grid.combinations if (row := self._combination(combination)))

    def spread(self, combination: Combination) -> SeedSpread | None:
        """The metric of a combination over its seeds; None: no run has measured it."""
        rows = [row for row in self.runs if _is_of(row, combination) and row[self.metric] is not None]
        return spread_of([row[self.metric] for row in rows]) if rows else None

    def lines(self) -> list[EpsilonLine]:
        """A line for each choice of the settings other than epsilon: the metric at each epsilon, in ascending order."""
        others = [key for key in self.grid.swept if key != "epsilon"]
        choices: dict[tuple[Value, ...], list[tuple[float, SeedSpread]]] = {}
        for combination in self.grid.combinations:
            found = self.spread(combination) if "privacy" not in combination else None
            if found and math.isfinite(epsilon := float(combination.get("epsilon", math.inf))):
                choices.setdefault(tuple(combination[key] for key in others), []).append((epsilon, found))
        lines = []
        for chosen, points in choices.items():
            choice = dict(zip(others, chosen, strict=True))
            plain = {key: value for key, value in choice.items() if key not in _OF_PRIVACY}
            without = self.spread({**plain, "privacy": False}) if self.grid.baseline else None
            lines.append(EpsilonLine(words_of(choice), sorted(points, key=lambda point: point[0]), without))
        return lines

    def save(self) -> list[Path]:
        """Write the tables, and the figure where epsilon is swept; what was written."""
        out = self.grid.out
        _write(self.combinations, out / TABLE)
        _write(self.runs, out / RUNS)
        lines = self.lines() if "epsilon" in self.grid.swept else []
        if not lines:
            return [out / TABLE]
        save_png(sweep_figure(lines, self.metric), out / FIGURE)
        return [out / TABLE, out / FIGURE]

    def _run(self, run: SweptRun) -> dict[str, Any]:
        history = read_history(run.folder)
        return {
            **_told(self.grid, run.combination),
            "seed": run.seed,
            self.metric: final_of(history, self.metric),
            "epsilon_spent": finite_or_none(history.last.max_epsilon),
            "rounds": history.finished,
            "folder": str(run.folder),
        }

    def _combination(self, combination: Combination) -> dict[str, Any] | None:
        rows = [row for row in self.runs if _is_of(row, combination)]
        if not rows:
            return None
        spread = self.spread(combination)
        spent = [row["epsilon_spent"] for row in rows]
        return {
            **_told(self.grid, combination),
            "runs": len(rows),
            "mean": spread.mean if spread else None,
            "deviation": spread.deviation if spread else None,
            "epsilon_spent": None if None in spent else max(spent),
        }


def _told(grid: SweepGrid, combination: Combination) -> dict[str, Value | None]:
    """The swept settings of a combination, None where it does without, and whether it is private."""
    return {key: combination.get(key) for key in grid.swept} | {"privacy": "privacy" not in combination}


def _is_of(row: Mapping[str, Any], combination: Combination) -> bool:
    """Return whether a row belongs to a run of this combination."""
    private = "privacy" not in combination
    return row["privacy"] is private and all(row[key] == v for key, v in combination.items() if key != "privacy")


def _write(rows: Rows, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0] if rows else [])
        table.writeheader()
        table.writerows(rows)
