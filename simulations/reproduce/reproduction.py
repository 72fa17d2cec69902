"""A reproduction from its name to its results over seeds: for scripts and for the command."""

from __future__ import annotations

from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulations.reproduce.bench import REPRODUCTIONS, check_complete, data_folder, finished, reproduction_of
from simulations.reproduce.experiment import Reproduction, ReproductionError
from simulations.reproduce.results import ReproductionResults
from simulations.reproduce.seeds import SeedsLeft


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

    >>> from simulations.reproduce import Measured, Row, reproduce
    >>> class Coin:
    ...     name, title, source, delta, seeds = "coin", "A coin", "nobody", 1e-3, 2
    ...     data, settings = {}, {"sides": 2}
    ...     rows = (Row("heads", "share of heads", goal=0.5),)
    ...     def measure(self, seed, place):
    ...         yield "heads", Measured(0.5 + seed / 2)
    >>> results = reproduce(Coin(), progress=False)
    >>> results.table[0]["mean"], results.table[0]["standard_error"], results.met
    (0.75, 0.25, True)

    Args:
        reproduction: a name, as `python -m simulations.reproduce` takes it, "path/to/file.py:name", or an object of
            your own (`Reproduction`).
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
            an object, which other processes do not have, is to be run in several, no row measured the metric, or `out`
            cannot be written.
        KeyboardInterrupt: somebody ended it; finished seeds are kept.
    """
    chosen = _chosen(reproduction, jobs)
    for name, value in {"seeds": seeds, "jobs": jobs}.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ReproductionError(f"{name} is {value!r}; give a whole number, 1 or more.")
    numbers = range(chosen.seeds if seeds is None else seeds)
    folder = Path(out or Path("runs") / f"reproduce-{chosen.name}")
    found = finished(chosen, numbers, folder)
    shown = partial(ReproductionResults, chosen, out=folder, metric=metric or "")
    if found:
        shown(found)  # refuses an unknown metric before the others are measured
    if left := [seed for seed in numbers if seed not in {result.seed for result in found}]:
        files = data_folder(chosen, None if data is None else Path(data))
        _make(folder)
        several = min(jobs, len(left))
        with _bar(shown=progress) as bar:
            measured = SeedsLeft(chosen, left, files, folder, bar)
            found += measured.one_by_one() if several == 1 else measured.together(_source(reproduction), several)
    results = shown(sorted(found, key=lambda result: result.seed))
    results.save()
    return results


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ReproductionError(
            f"out is '{folder}', which cannot be written ({error.strerror}); name another folder."
        ) from None


def _bar(*, shown: bool) -> Progress:
    return Progress(
        TextColumn("[bold]figure"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True, emoji=False, quiet=not shown),
    )


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
