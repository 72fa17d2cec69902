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
from typing import Any, Self

from fedprivacy._support.settings import ConfigError, key_of, kind_of, names_in
from fedprivacy.figures import save_png
from fedprivacy.figures.comparison import EpsilonLine, SeedSpread, spread_of, sweep_figure
from fedprivacy.figures.named import Figure
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.comparison import final_of
from fedprivacy.runs.records.folder import has_terms_of, read_history
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.settings.configuration import CONFIG, FIELDS, NAMING, PLACES, Value, differing_settings
from fedprivacy.runs.settings.strategies import SERVER_SETTINGS, STRATEGIES
from fedprivacy.tasks import Task
from fedprivacy.training.algorithms import ALGORITHM_SETTINGS, ALGORITHMS, arguments_of
from fedprivacy.values.metrics import main_metrics, measured_names, shown_metric
from fedprivacy.values.numbers import finite_or_none
from fedprivacy.values.runs import Rows
from fedprivacy.values.wording import less_is_better

TABLE, RUNS, FIGURE, FINISHED = "sweep.csv", "runs.csv", "sweep.png", "finished"

DEVIATION = "_deviation"
"""Suffix of the column with a metric's standard deviation over seeds."""

_OF_PRIVACY = ("epsilon", "delta", "noise-multiplier", "clipping", "clipping-norm", "filter")
"""Settings that a baseline does without."""

_BASELINE_RATES = "baseline-learning-rates"

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

    A setting that a swept algorithm or strategy does not take is left open where that one is run.

    Attributes:
        lists: values by hyphenated key; a list with one value sets it in every run.
        seeds: number of seeds, from 0 on.
        out: the folder that receives the runs.
        baseline: whether each choice of the settings that are not privacy's is run without privacy, too.
        baseline_rates: learning rates of the runs without privacy; empty: those of the others.
        task: the task, where it has no name; None: the one that the lists name.
    """

    lists: Mapping[str, Sequence[Value]]
    seeds: int
    out: Path
    baseline: bool = False
    baseline_rates: tuple[float, ...] = ()
    task: Task | None = None

    @classmethod
    def of(cls, texts: Mapping[str, str], seeds: int, out: Path, *, baseline: bool, baseline_rates: str = "") -> Self:
        """Read the grid from lists as people write them, with commas.

        Raises:
            ConfigError: lists the values that are not of their setting's type.
        """
        lists: dict[str, Sequence[Value]] = {}
        problems: list[str] = []
        for key, text in {**texts, **({_BASELINE_RATES: baseline_rates} if baseline_rates else {})}.items():
            try:
                lists[key] = _values("learning-rate" if key == _BASELINE_RATES else key, text)
            except ValueError:
                problems.append(f"{key} is '{text}'; give numbers, separated by commas.")
        if problems:
            raise ConfigError(problems)
        rates = tuple(float(rate) for rate in lists.pop(_BASELINE_RATES, ()))
        return cls(lists, seeds, out, baseline or bool(rates), rates)

    @property
    def swept(self) -> tuple[str, ...]:
        """Settings of which there are several values."""
        several = [key for key, values in self.lists.items() if len(values) > 1]
        return tuple(dict.fromkeys([*several, *["learning-rate"] * bool(self.baseline_rates)]))

    @cached_property
    def combinations(self) -> tuple[Combination, ...]:
        """All combinations in the order of the lists, the last list fastest; baselines at the end."""
        lists = {key: values for key, values in self.lists.items() if len(values) > 1}
        private = self._product(lists)
        if not self.baseline:
            return private
        others = {key: values for key, values in lists.items() if key not in _OF_PRIVACY}
        if self.baseline_rates:
            others["learning-rate"] = self.baseline_rates
        return (*private, *self._product({**others, "privacy": [False]}))

    @cached_property
    def runs(self) -> tuple[SweptRun, ...]:
        return tuple(
            SweptRun(
                self.out / folder_of(combination, seed),
                combination,
                seed,
                self.settings_of(combination) | {"seed": seed},
            )
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
                plans.append(plan := TrainingPlan.of(run.given, self.task))
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

    def _product(self, lists: Mapping[str, Sequence[Value]]) -> tuple[Combination, ...]:
        """Combine lists, each combination once, without what its algorithm or strategy does not take."""
        found: list[Combination] = []
        for chosen in itertools.product(*lists.values()):
            combination = dict(zip(lists, chosen, strict=True))
            left_open = _not_taken(combination)
            kept = {key: value for key, value in combination.items() if key not in left_open}
            if kept not in found:
                found.append(kept)
        return tuple(found)

    def settings_of(self, combination: Combination) -> dict[str, Value]:
        """Return all settings of a combination's runs but the seed, by hyphenated key."""
        left_open = _not_taken(combination) | (set(_OF_PRIVACY) if "privacy" in combination else set())
        fixed = {key: v[0] for key, v in self.lists.items() if len(v) == 1 and key not in left_open}
        return fixed | dict(combination)


def _not_taken(combination: Combination) -> set[str]:
    """Return the settings that a swept algorithm or strategy does not take, by hyphenated key."""
    names: set[str] = set()
    if algorithm := combination.get("algorithm"):
        names |= set(ALGORITHM_SETTINGS) - set(arguments_of(str(algorithm)) if algorithm in ALGORITHMS else ())
    if (strategy := combination.get("strategy")) in STRATEGIES:
        names |= set(SERVER_SETTINGS) - STRATEGIES[str(strategy)].defaults.keys()
    return {key_of(name) for name in names}


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
    other = [key for key in differing_settings([wanted, recorded], ignored=(*NAMING, *PLACES)) if key in wanted]
    if not other and not has_terms_of(run.folder, plan):
        other = ["table of client-terms"]
    if not other:
        return []
    return [f"'{run.folder}' holds a run with another {', '.join(other)}; name a new folder (--out)."]


@dataclass(frozen=True)
class SweepResults:
    """Results of the finished runs of a sweep.

    Attributes:
        grid: its runs.
        wanted: name of the metric that table and figure show; None: the task's, or the nearest that was measured.

    Raises:
        ConfigError: no finished run has measured the metric that is wanted.
    """

    grid: SweepGrid
    wanted: str | None = None

    def __post_init__(self) -> None:
        if self.wanted and self._histories and self.wanted not in self.metrics:
            remedy = f"choose from {', '.join(self.metrics)}; " if self.metrics else "leave it open; "
            raise ConfigError(
                f"metric is '{self.wanted}', which no run has measured; {remedy}finished runs are not run again."
            )

    @cached_property
    def _histories(self) -> dict[Path, RunHistory]:
        return {run.folder: read_history(run.folder) for run in self.grid.runs if run.finished}

    @cached_property
    def metrics(self) -> list[str]:
        """Names of everything that a finished run has measured."""
        return measured_names(history.newest_metrics for history in self._histories.values())

    @property
    def metric(self) -> str:
        """Name of the metric that table and figure show."""
        declared = next((history.task_metric for history in self._histories.values()), "")
        return self.wanted or shown_metric(declared, self.metrics)

    @cached_property
    def runs(self) -> Rows:
        """A row for each finished run.

        Its combination, `privacy`, `seed`, every metric under its own name, `epsilon_spent`, `rounds` and `folder`.
        """
        return Rows(self._run(run) for run in self.grid.runs if run.folder in self._histories)

    @cached_property
    def combinations(self) -> Rows:
        """A row for each combination with a finished run.

        Its settings, `privacy`, `runs`, `epsilon_spent`, the largest of a client in any of the runs, or None; and for
        every metric its mean over seeds under its own name and `..._deviation`, None where it was not measured.
        """
        return Rows(row for combination in self.grid.combinations if (row := self._combination(combination)))

    def spread(self, combination: Combination, metric: str | None = None) -> SeedSpread | None:
        """Return a metric of a combination over its seeds, by default the one that is shown; None: not measured."""
        metric = metric or self.metric
        values = [row[metric] for row in self._of(combination) if row.get(metric) is not None]
        return spread_of(values) if values else None

    def lines(self) -> list[EpsilonLine]:
        """Return a line for each choice of the settings other than epsilon: the metric at each epsilon, ascending."""
        choices: dict[str, tuple[Combination, list[tuple[float, SeedSpread]]]] = {}
        for combination in self.grid.combinations:
            found = self.spread(combination) if "privacy" not in combination else None
            if found and math.isfinite(epsilon := float(combination.get("epsilon", math.inf))):
                choice = {key: value for key, value in combination.items() if key != "epsilon"}
                choices.setdefault(words_of(choice), (choice, []))[1].append((epsilon, found))
        return [
            EpsilonLine(name, sorted(points, key=lambda point: point[0]), self._baseline_of(choice))
            for name, (choice, points) in choices.items()
        ]

    def figure(self) -> Figure:
        """Draw the metric at each epsilon, a line for each choice of the other settings, with their baselines.

        Raises:
            ValueError: epsilon is not swept, or no run has measured the metric.
        """
        return Figure(sweep_figure(self.lines(), self.metric))

    def save(self) -> list[Path]:
        """Write the tables, and the figure where epsilon is swept; what was written."""
        out = self.grid.out
        _write(self.combinations, out / TABLE)
        _write(self.runs, out / RUNS)
        if "epsilon" not in self.grid.swept or not self.lines():
            return [out / TABLE, out / RUNS]
        save_png(self.figure().chart, out / FIGURE)
        return [out / TABLE, out / RUNS, out / FIGURE]

    def _of(self, combination: Combination) -> list[dict[str, Any]]:
        finished = [run for run in self.grid.runs if run.folder in self._histories]
        return [row for run, row in zip(finished, self.runs, strict=True) if run.combination == combination]

    def _baseline_of(self, choice: Combination) -> SeedSpread | None:
        """Return the best of the runs without privacy that share these settings, but for a learning rate of theirs."""
        own = (*_OF_PRIVACY, *["learning-rate"] * bool(self.grid.baseline_rates))
        shared = {key: value for key, value in choice.items() if key not in own}
        found = [
            spread
            for combination in self.grid.combinations
            if "privacy" in combination and shared.items() <= combination.items()
            if (spread := self.spread(combination))
        ]
        best = min if less_is_better(self.metric) else max
        return best(found, key=lambda spread: spread.mean, default=None)

    def _run(self, run: SweptRun) -> dict[str, Any]:
        history = self._histories[run.folder]
        return {
            **_swept_values(self.grid, run.combination),
            "seed": run.seed,
            **{metric: final_of(history, metric) for metric in self.metrics},
            "epsilon_spent": finite_or_none(history.last.max_epsilon),
            "rounds": history.finished,
            "folder": str(run.folder),
        }

    def _combination(self, combination: Combination) -> dict[str, Any] | None:
        rows = self._of(combination)
        if not rows:
            return None
        spent = [row["epsilon_spent"] for row in rows]
        spreads = {metric: self.spread(combination, metric) for metric in main_metrics(self.metrics)}
        return {
            **_swept_values(self.grid, combination),
            "runs": len(rows),
            "epsilon_spent": None if None in spent else max(spent),
            **{
                name: value
                for metric, spread in spreads.items()
                for name, value in (
                    (metric, spread.mean if spread else None),
                    (f"{metric}{DEVIATION}", spread.deviation if spread else None),
                )
            },
        }

    def __repr__(self) -> str:
        return f"<{len(self.runs)} of {len(self.grid.runs)} runs in {str(self.grid.out)!r}: {', '.join(self.metrics)}>"


def _swept_values(grid: SweepGrid, combination: Combination) -> dict[str, Value | None]:
    """The swept settings of a combination, None where it does without, and whether it is private."""
    given = grid.settings_of(combination)
    return {key: given.get(key) for key in grid.swept} | {"privacy": "privacy" not in combination}


def _write(rows: Rows, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0] if rows else [])
        table.writeheader()
        table.writerows(rows)
