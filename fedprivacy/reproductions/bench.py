"""A reproduction, from its name to the results of all seeds: what is finished is kept, and not measured again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from fedprivacy.reproductions import REPRODUCTIONS
from fedprivacy.reproductions.protocol import Reproduction, ReproductionError, Workplace
from fedprivacy.reproductions.results import SeedResult, Timed


def reproduction_of(name: str) -> Reproduction:
    """The reproduction of a name.

    Raises:
        ReproductionError: there is none.
    """
    if name not in REPRODUCTIONS:
        raise ReproductionError(f"reproduction is '{name}'; choose one of {', '.join(REPRODUCTIONS)}.")
    return loaded(REPRODUCTIONS[name])


def loaded(source: str) -> Reproduction:
    """The reproduction at "module:attribute"."""
    module, attribute = source.split(":")
    found: Reproduction = getattr(import_module(module), attribute)
    return found


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
        rows[name] = Timed(float(measured.value), measured.epsilon, now - began)
        began = now
        advance(len(rows))
    if list(rows) != (announced := [row.name for row in reproduction.rows]):
        raise RuntimeError(f"'{reproduction.name}' measured the rows {list(rows)}, and announced {announced}.")
    result = SeedResult(seed, rows)
    result.save(reproduction, out)
    return result
