"""Seeds that are to be measured, one by one or several at a time, with a bar that shows how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.progress import Progress, TaskID

from fedprivacy.reproductions.bench import measure
from fedprivacy.reproductions.experiment import Reproduction
from fedprivacy.reproductions.jobs import News, SeedProcesses
from fedprivacy.reproductions.results import SeedResult


@dataclass(frozen=True)
class SeedsLeft:
    """The seeds to be measured, and the bar on which they are shown.

    Attributes:
        reproduction: of which seeds are measured.
        seeds: their numbers.
        data: the folder of its files.
        out: the folder of results.
        bar: shows how many rows there are.
    """

    reproduction: Reproduction
    seeds: Sequence[int]
    data: Path
    out: Path
    bar: Progress

    def one_by_one(self) -> list[SeedResult]:
        """Measure the seeds one after another, in this process."""
        found: list[SeedResult] = []
        task, rows = self._task()

        def tell(words: str) -> None:
            self.bar.update(task, description=f"seed {self.seeds[len(found)]}: {escape(words)}")

        def advance(done: int) -> None:
            self.bar.update(task, completed=len(found) * rows + done)

        for seed in self.seeds:
            found.append(measure(self.reproduction, seed, self.data, self.out, tell=tell, advance=advance))
        return found

    def together(self, source: str, jobs: int) -> list[SeedResult]:
        """Measure several seeds at a time, in processes that load the reproduction from its source."""
        found: list[SeedResult] = []
        task, rows = self._task()
        done = dict.fromkeys(self.seeds, 0)
        with SeedProcesses(source, self.data, self.out, jobs) as processes:
            for told in processes.measured(self.seeds):
                if isinstance(told, News):
                    done[told.seed] = told.rows
                    self.bar.update(task, description=f"seed {told.seed}: {escape(told.words)}")
                else:
                    done[told.seed] = rows
                    found.append(told)
                self.bar.update(task, completed=sum(done.values()))
        return found

    def _task(self) -> tuple[TaskID, int]:
        """The bar's task, and how many rows a seed has."""
        rows = len(self.reproduction.rows)
        return self.bar.add_task("", total=len(self.seeds) * rows), rows
