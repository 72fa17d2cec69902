"""A reproduction, from its name to the results of all seeds: what is finished is kept, and not measured again."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedprivacy._support import sources
from fedprivacy.reproductions import REPRODUCTIONS
from fedprivacy.reproductions.experiment import Reproduction, ReproductionError, Workplace, lacking
from fedprivacy.reproductions.results import SeedResult, Timed, settings_of


def reproduction_of(name: str) -> Reproduction:
    """The reproduction of a name, or the one that `path/to/file.py:name` or `package.module:name` defines.

    What a source names may also be a class, or another callable without arguments, that makes the reproduction.

    Raises:
        ReproductionError: there is none, or what there is lacks a part of one.
    """
    if name not in REPRODUCTIONS and not sources.is_source(name):
        raise ReproductionError(
            f"reproduction is '{name}'; choose one of {', '.join(REPRODUCTIONS)}, or write path/to/file.py:name."
        )
    try:
        found = sources.load("reproduction", REPRODUCTIONS.get(name, name))
    except sources.SourceError as error:
        raise ReproductionError(str(error)) from error
    made = _made(found, name) if isinstance(found, type) or (callable(found) and lacking(found)) else found
    check_complete(made, f"reproduction is '{name}'")
    return made


def check_complete(reproduction: object, named: str) -> None:
    """Check that an object has all that a reproduction needs: before a seed is measured that could not be kept.

    Raises:
        ReproductionError: it lacks a part; or its name is none for a folder; or two rows have one name; or its settings
            are none of JSON's.
    """
    if missing := lacking(reproduction):
        raise ReproductionError(f"{named}, which lacks {', '.join(missing)}; see docs/how-to/reproduce.md.")
    complete: Any = reproduction
    name, rows = complete.name, [row.name for row in complete.rows]
    if not (isinstance(name, str) and re.fullmatch(r"[\w-]+", name)):
        raise ReproductionError(f"{named}, and its name is {name!r}; take letters, digits, - and _ alone.")
    if len(set(rows)) < len(rows):
        raise ReproductionError(f"{named}, and its rows are called {', '.join(rows)}; give each a name of its own.")
    try:
        settings_of(complete)
    except (TypeError, ValueError) as error:
        raise ReproductionError(f"{named}, and its settings cannot be kept ({error}); take what JSON has.") from None


def _made(maker: Callable[[], Reproduction], name: str) -> Reproduction:
    try:
        return maker()
    except Exception as error:
        raise ReproductionError(f"reproduction is '{name}', which cannot be made: {sources.told(error)}.") from error


def data_folder(reproduction: Reproduction, data: Path | None) -> Path:
    """The folder in which the reproduction's files are; the present one, where it needs none.

    Raises:
        ReproductionError: files are missing; it names them, and says where each is to be had.
    """
    missing = [file for file in reproduction.data if data is None or not (data / file).exists()]
    if not missing:
        return data or Path()
    files = "\n".join(f"  {file}: {reproduction.data[file]}" for file in missing)
    where = f"data is '{data}', where these are missing" if data else "data is not given, and these files are needed"
    raise ReproductionError(
        f"{where}:\n{files}\nPut them into one folder, and name it: --data DIR. Nothing is downloaded for you."
    )


def finished(reproduction: Reproduction, seeds: Sequence[int], out: Path) -> list[SeedResult]:
    """The results of those seeds that are kept in `out`.

    Raises:
        ReproductionError: one is of other settings, or cannot be read.
    """
    return [kept for seed in seeds if (kept := SeedResult.read(reproduction, out, seed)) is not None]


def measure(
    reproduction: Reproduction,
    seed: int,
    data: Path,
    out: Path,
    *,
    tell: Callable[[str], None],
    advance: Callable[[int], None],
) -> SeedResult:
    """Measure every row with one seed, and keep the result in `out`.

    Args:
        reproduction: what is measured.
        seed: of everything random.
        data: the folder of its files.
        out: the folder of results, which exists. The runs are in a folder of the seed, made anew.
        tell: is told in words what is under way.
        advance: is told after every row how many there are by then.

    Raises:
        RuntimeError: the reproduction measures other rows than it announces.
        KeyboardInterrupt: somebody ended it; nothing is kept of this seed.
    """
    runs = out / f"seed-{seed}"
    if runs.exists():
        shutil.rmtree(runs)  # of a seed that was stopped: its runs cannot be told from whole ones
    runs.mkdir()
    rows: dict[str, Timed] = {}
    began = time.monotonic()
    for name, measured in reproduction.measure(seed, Workplace(data, runs, tell)):
        now = time.monotonic()
        metrics = {metric: value for metric, value in measured.metrics.items() if math.isfinite(value)}
        rows[name] = Timed(float(measured.value), measured.epsilon, now - began, metrics)
        began = now
        advance(len(rows))
    if list(rows) != (announced := [row.name for row in reproduction.rows]):
        raise RuntimeError(f"'{reproduction.name}' measured the rows {list(rows)}, and announced {announced}.")
    result = SeedResult(seed, rows)
    result.save(reproduction, out)
    return result
