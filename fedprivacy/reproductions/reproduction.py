"""A reproduction from its name to its results over seeds: for `fedprivacy.reproduce` and for the command."""

from __future__ import annotations

from functools import partial
from os import PathLike
from pathlib import Path

from fedprivacy._support.console import bar_on, console_of
from fedprivacy.reproductions import REPRODUCTIONS
from fedprivacy.reproductions.bench import check_complete, data_folder, finished, reproduction_of
from fedprivacy.reproductions.experiment import Reproduction, ReproductionError
from fedprivacy.reproductions.results import ReproductionResults
from fedprivacy.reproductions.seeds import SeedsLeft
from fedprivacy.runs.records.folder import check_writable
from fedprivacy.runs.settings.configuration import RUNS


def reproduce(
    reproduction: str | Reproduction,
    *,
    seeds: int | None = None,
    data: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    jobs: int = 1,
    metric: str | None = None,
    progress: bool = True,
) -> ReproductionResults:
    """Run a paper's experiment, or one of your own, over several seeds; what is finished is kept, and not run again.

    >>> import fedprivacy as fp
    >>> class Coin:
    ...     name, title, source, delta, seeds = "coin", "A coin", "nobody", 1e-3, 2
    ...     data, settings = {}, {"sides": 2}
    ...     rows = (fp.reproductions.Row("heads", "share of heads", goal=0.5),)
    ...     def measure(self, seed, place):
    ...         yield "heads", fp.reproductions.Measured(0.5 + seed / 2)
    >>> results = fp.reproduce(Coin(), progress=False)
    >>> results.table[0]["mean"], results.table[0]["standard_error"], results.met
    (0.75, 0.25, True)

    Args:
        reproduction: a name, as `fedprivacy reproduce` takes it, "path/to/file.py:name", or an object of your own
            (`fedprivacy.reproductions.Reproduction`).
        seeds: how many, from 0 on; None: the reproduction's own number.
        data: the folder of the files that it needs.
        out: the folder for results and figures; None: "runs/reproduce-NAME".
        jobs: how many seeds at a time. More than one are processes of their own, for which a script needs the guard
            `if __name__ == "__main__":`.
        metric: the name of a metric that the rows' runs measured, for table and figures; None: each row's own, of which
            alone goals and published figures are. Another one later runs nothing again.
        progress: whether a bar shows the rows, in the terminal or the notebook.

    Returns:
        The results of these seeds, with a row for each figure: `results.table`.

    Raises:
        ReproductionError: there is none of that name, files are missing, what is kept in `out` is of other settings,
            an object, which other processes do not have, is to be run in several, or no row measured the metric.
        RunFolderError: `out` cannot be written.
        KeyboardInterrupt: somebody ended it; finished seeds are kept.
    """
    chosen = _chosen(reproduction, jobs)
    for name, value in {"seeds": seeds, "jobs": jobs}.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ReproductionError(f"{name} is {value!r}; give a whole number, 1 or more.")
    numbers = range(chosen.seeds if seeds is None else seeds)
    folder = Path(out or Path(RUNS) / f"reproduce-{chosen.name}")
    found = finished(chosen, numbers, folder)
    shown = partial(ReproductionResults, chosen, out=folder, metric=metric or "")
    if found:
        shown(found)  # refuses an unknown metric before the others are measured
    if left := [seed for seed in numbers if seed not in {result.seed for result in found}]:
        files = data_folder(chosen, None if data is None else Path(data))
        check_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
        several = min(jobs, len(left))
        with bar_on(console_of(shown=progress), "figure") as bar:
            measured = SeedsLeft(chosen, left, files, folder, bar)
            found += measured.one_by_one() if several == 1 else measured.together(_source(reproduction), several)
    results = shown(sorted(found, key=lambda result: result.seed))
    results.save()
    return results


def _source(reproduction: str | Reproduction) -> str:
    """The source from which other processes load it: only its name, see `_chosen`."""
    name = str(reproduction)
    return REPRODUCTIONS.get(name, name)


def _chosen(reproduction: str | Reproduction, jobs: int) -> Reproduction:
    if isinstance(reproduction, str):
        return reproduction_of(reproduction)
    words = f"the reproduction is an object of class {type(reproduction).__name__}"
    check_complete(reproduction, words)
    if jobs > 1:
        raise ReproductionError(
            f"jobs is {jobs}, and {words}, which other processes do not have; name it, path/to/file.py:name, or leave "
            "jobs at 1."
        )
    return reproduction
