"""A reproduction, from its name to the results of all seeds: what is finished is kept, and not measured again."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from simulations.reproduce.experiment import Reproduction, ReproductionError, Workplace, lacking
from simulations.reproduce.results import SeedResult, Timed, settings_of

REPRODUCTIONS: dict[str, str] = {
    "school": "simulations.reproduce.school:SCHOOL",
    "logistic": "simulations.reproduce.logistic:LOGISTIC",
    "mnist": "simulations.reproduce.mnist:MNIST",
    "tcga-brca": "simulations.reproduce.tcga_brca:TCGA_BRCA",
    "readmission": "simulations.reproduce.readmission:READMISSION",
    "digits": "simulations.reproduce.digits:DIGITS",
}
"""Place of each reproduction, "module:attribute", by the name that is typed. It is imported on first use."""


def reproduction_of(name: str) -> Reproduction:
    """The reproduction of a name, or the one that `path/to/file.py:name` or `package.module:name` defines.

    What a source names may also be a class, or another callable without arguments, that makes the reproduction.

    Raises:
        ReproductionError: there is none, or what there is lacks a part of one.
    """
    if name not in REPRODUCTIONS and not all(name.rpartition(":")):
        raise ReproductionError(
            f"reproduction is '{name}'; choose one of {', '.join(REPRODUCTIONS)}, or write path/to/file.py:name."
        )
    found = _loaded(REPRODUCTIONS.get(name, name))
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


def _loaded(source: str) -> Any:
    """Load what `path/to/file.py:name` or `package.module:name` defines; whoever names it chooses what is run."""
    place, _, attribute = source.rpartition(":")
    kind = "file" if place.endswith(".py") else "module"
    if kind == "file" and not Path(place).is_file():
        raise ReproductionError(f"reproduction names file '{place}', which does not exist; give its path from here.")
    try:
        module = _run(Path(place)) if kind == "file" else importlib.import_module(place)
    except Exception as error:
        raise ReproductionError(f"reproduction names {kind} '{place}', which cannot be run: {_told(error)}.") from error
    if not hasattr(module, attribute):
        raise ReproductionError(
            f"reproduction is '{source}', but {place} defines no '{attribute}'; name what it defines."
        )
    return getattr(module, attribute)


def _run(path: Path) -> ModuleType:
    name = f"reproduction_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # true for every .py path
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _told(error: BaseException) -> str:
    """Describe an error in one line: its kind, its text, and where it came from."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"


def _made(maker: Callable[[], Reproduction], name: str) -> Reproduction:
    try:
        return maker()
    except Exception as error:
        raise ReproductionError(f"reproduction is '{name}', which cannot be made: {_told(error)}.") from error


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
