"""The results of a reproduction: figures of each seed, kept as soon as it is finished, and the verdict over seeds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from fedprivacy.figures.named import Figure
from fedprivacy.figures.style import for_both_themes, to_svg
from simulations.reproduce.experiment import Reproduction, ReproductionError, Row
from simulations.reproduce.figures import DrawnRow, budgets_figure, has_lines, reproduction_figure

RESULTS, FIGURE, BUDGETS = "results.json", "figure.svg", "budgets.svg"


class GoalVerdict(StrEnum):
    """The comparison of the mean over seeds with the goal."""

    MET = "met"
    NOT_MET = "not met"
    RECORDED = "recorded"  # there is no goal


@dataclass(frozen=True, slots=True)
class Timed:
    """The figure of a row with one seed, and how long it took.

    Attributes:
        value: the figure.
        epsilon: the largest privacy loss that it cost, in nats; None: without privacy.
        seconds: since the row before it.
        metrics: everything that its run measured, where that is finite; of results of older versions, nothing.
    """

    value: float
    epsilon: float | None
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def of(self, row: Row, metric: str) -> float | None:
        """Return a metric of the row; "": the row's own; None: it was not measured."""
        return self.value if metric in ("", row.metric) else self.metrics.get(metric)


@dataclass(frozen=True)
class SeedResult:
    """The figures of one seed.

    Attributes:
        seed: the seed.
        rows: by the row's name.
    """

    seed: int
    rows: dict[str, Timed]

    def save(self, reproduction: Reproduction, out: Path) -> None:
        """Write the figures, with the settings that they were measured with."""
        rows = {name: asdict(timed) for name, timed in self.rows.items()}
        kept = {"name": reproduction.name, "seed": self.seed, "settings": settings_of(reproduction), "rows": rows}
        _write(_file(out, self.seed), json.dumps(kept, indent=2) + "\n")

    @classmethod
    def read(cls, reproduction: Reproduction, out: Path, seed: int) -> SeedResult | None:
        """Read the kept figures of a seed; None: it is not finished.

        Raises:
            ReproductionError: it is of another reproduction, of other settings or rows, or cannot be read.
        """
        file = _file(out, seed)
        if not file.exists():
            return None
        try:
            kept = json.loads(file.read_text())
            rows = {name: Timed(**timed) for name, timed in kept["rows"].items()}
            known = (kept["name"], kept["settings"], set(rows))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReproductionError(f"'{file}' cannot be read ({error}); delete it to measure again.") from None
        if known != (reproduction.name, settings_of(reproduction), {row.name for row in reproduction.rows}):
            raise ReproductionError(
                f"'{file}' was measured with other settings than those of '{reproduction.name}' today; name a new "
                "folder (--out)."
            )
        return cls(seed, rows)


@dataclass(frozen=True)
class RowResult:
    """One line of the table.

    Attributes:
        row: what was measured.
        values: of each seed, in the order of the seeds.
        epsilon: the largest privacy loss of any seed; None: without privacy.
        seconds: that one seed took, on average.
    """

    row: Row
    values: tuple[float, ...]
    epsilon: float | None
    seconds: float

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return math.fsum(self.values) / len(self.values)

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean; None: of one seed nothing is known.

        >>> RowResult(Row("a", ""), (1.0, 3.0), None, 0.0).standard_error
        1.0
        """
        if len(self.values) == 1:
            return None
        squares = math.fsum((value - self.mean) ** 2 for value in self.values)
        return math.sqrt(squares / (len(self.values) - 1) / len(self.values))

    @property
    def verdict(self) -> GoalVerdict:
        """Met if the mean is at least the goal, or at most; recorded if there is no goal.

        >>> error = Row("error", "", goal=0.025, at_least=False)
        >>> str(RowResult(error, (0.024, 0.026), None, 0.0).verdict)
        'met'
        """
        goal = self.row.goal
        if goal is None:
            return GoalVerdict.RECORDED
        return (
            GoalVerdict.MET if (self.mean >= goal if self.row.at_least else self.mean <= goal) else GoalVerdict.NOT_MET
        )

    @property
    def drawn(self) -> DrawnRow:
        """The row, as the figure takes it."""
        met = None if self.verdict is GoalVerdict.RECORDED else self.verdict is GoalVerdict.MET
        error = self.standard_error or 0.0
        row = self.row
        return DrawnRow(
            row.name, self.values, self.mean, error, row.goal, row.published, met, line=row.line, budget=row.budget
        )


@dataclass(frozen=True)
class ReproductionResults:
    """The results of all seeds.

    Attributes:
        reproduction: that was run.
        seeds: the result of each, at least one.
        out: the folder in which they are kept.
        metric: the metric that is shown; "": each row's own. Goals and published figures are of the rows' own.

    Raises:
        ReproductionError: no row has measured the metric with every seed.
    """

    reproduction: Reproduction
    seeds: Sequence[SeedResult]
    out: Path
    metric: str = ""

    def __post_init__(self) -> None:
        if not self.rows:
            known = ", ".join(self.metrics) or "none: its rows name no metric"
            raise ReproductionError(
                f"metric is '{self.metric}', which no row of '{self.reproduction.name}' has measured with every seed; "
                f"the metrics are {known}."
            )

    @cached_property
    def metrics(self) -> list[str]:
        """Names of everything that a row has measured, the rows' own first."""
        rows = self.reproduction.rows
        measured = (name for seed in self.seeds for timed in seed.rows.values() for name in timed.metrics)
        return list(dict.fromkeys((*(row.metric for row in rows if row.metric), *measured)))

    @cached_property
    def rows(self) -> tuple[RowResult, ...]:
        """The results of the rows that have measured the metric, in the reproduction's order."""
        return tuple(found for row in self.reproduction.rows if (found := self._row(row)))

    @property
    def left_out(self) -> list[str]:
        """Names of the rows that have not measured the metric with every seed."""
        shown = {found.row.name for found in self.rows}
        return [row.name for row in self.reproduction.rows if row.name not in shown]

    @property
    def met(self) -> bool:
        """True if every goal is reached."""
        return all(row.verdict is not GoalVerdict.NOT_MET for row in self.rows)

    @property
    def seconds(self) -> float:
        """Seconds that all seeds took, those of an earlier start of the command among them."""
        return math.fsum(timed.seconds for seed in self.seeds for timed in seed.rows.values())

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """A row for each figure.

        `name`, `what`, `goal`, `published`, `at_least`, `line`, `budget` and `metric` as in `Row`; `values` of the
        seeds, their `mean` and its `standard_error`, None of one seed; the largest `epsilon`, None without privacy; the
        `verdict`; `seconds` of one seed.
        """
        return [
            {
                **asdict(row.row),
                "values": list(row.values),
                "mean": row.mean,
                "standard_error": row.standard_error,
                "epsilon": row.epsilon,
                "verdict": str(row.verdict),
                "seconds": row.seconds,
            }
            for row in self.rows
        ]

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures by file name: every row, and where rows make lines over budgets, these."""
        about, drawn = self.reproduction, [row.drawn for row in self.rows]
        figures = {FIGURE: Figure(reproduction_figure(about.title, drawn))}
        if has_lines(drawn):
            quantity = self.rows[0].row.what.partition(",")[0]
            figures[BUDGETS] = Figure(budgets_figure(about.title, quantity, drawn))
        return figures

    def summary(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        about = self.reproduction
        return {
            "name": about.name,
            "title": about.title,
            "source": about.source,
            "delta": about.delta,
            "settings": settings_of(about),
            "metric": self.metric or None,
            "metrics": self.metrics,
            "left_out": self.left_out,
            "seeds": [seed.seed for seed in self.seeds],
            "rows": self.table,
            "met": self.met,
            "seconds": self.seconds,
        }

    @property
    def files(self) -> list[Path]:
        """The files that `save` wrote."""
        return [file for name in (RESULTS, FIGURE, BUDGETS) if (file := self.out / name).exists()]

    def save(self) -> None:
        """Write the summary and the figures into the folder."""
        _write(self.out / RESULTS, json.dumps(self.summary(), indent=2) + "\n")
        for name, figure in self.figures.items():
            _write(self.out / name, for_both_themes(to_svg(figure.chart)))

    def _row(self, row: Row) -> RowResult | None:
        found = [seed.rows[row.name] for seed in self.seeds]
        values = [value for timed in found if (value := timed.of(row, self.metric)) is not None]
        if len(values) < len(found):
            return None
        if self.metric not in ("", row.metric):
            row = replace(row, what=_words(self.metric), goal=None, published=None, metric=self.metric)
            row = replace(row, at_least=not _MISTAKE.search(self.metric.lower()))
        epsilons = [timed.epsilon for timed in found if timed.epsilon is not None]
        seconds = math.fsum(timed.seconds for timed in found) / len(found)
        return RowResult(row, tuple(values), max(epsilons, default=None), seconds)


def settings_of(reproduction: Reproduction) -> dict[str, Any]:
    """The settings, as JSON gives them back."""
    settings: dict[str, Any] = json.loads(json.dumps(dict(reproduction.settings)))
    return settings


_MISTAKE = re.compile(r"(loss|error)([_-]|$)|(^|[_-])(mse|rmse|mae|nll|perplexity|brier)([_-]|$)")
"""Pattern of the metrics of which less is better."""


def _words(metric: str) -> str:
    """Name a metric in words, with the model and the records that it is of: docs/how-to/metrics.md."""
    of = "global model on the server's public records"
    if metric.startswith("each_"):
        of = "each client's model on its held-out records"
    elif metric.startswith("clients_"):
        of = "global model on the clients' own records, with noise"
    return f"{metric.replace('_', ' ').replace('-', ' ')}, {of}"


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all, whenever the command is ended."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


def _file(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}.json"
