"""What noise on a lattice costs, and how far into the tails it is Gaussian, next to `torch.normal_`.

    python -m benchmarks.noise [--json] [--rounds 15] [--draws 1e9] [--device cuda]

Cost is processor time on one thread, by turns: ours rounds a float64 sum to the lattice, draws, adds and returns a new
float32 vector, as in training; `torch.normal_` draws float32 into memory that it has already. Ours is measured with
numpy, and again after so many draws that numba has taken over, where that is installed. With --device cuda both run on
the GPU, and cost is time on the clock.

With --draws, so many draws of each are counted beyond thresholds and in cells of 1/32 sigma within 4 sigma. p-values:
two-sided Poisson for a threshold, chi-square for the cells.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from benchmarks.measure import Mark, Step, Times, interleaved, median, time_ratio
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import add_lattice_noise, lattice_step, library

SIZES = (62, 1_000, 200_000, 1_000_000)
THRESHOLDS = (4.0, 5.0, 5.8, 6.0, 6.5)

_BLOCK = 2**20
_CELLS = 256  # from -4 to 4 sigma
_MOST_BLOCKS = 512  # twice as many draws as numba waits for

Block = Callable[[int], np.ndarray]
"""Number of a block -> its draws in units of their standard deviation, shape [_BLOCK]."""


def noise_times(parameters: int, rounds: int, device: torch.device) -> Times:
    """Time both by turns on one thread, seconds for each round."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    total, drawn = torch.randn(parameters, dtype=torch.float64, device=device), torch.empty(parameters, device=device)
    step, keystream, local_steps = lattice_step(1.0, parameters), Keystream.secret(), itertools.count(1)

    def ours(_mark: Mark) -> None:
        read = keystream.reader(Purpose.NOISE, Position(1, next(local_steps)))
        add_lattice_noise(total, 1.0, step, read, torch.float32)

    def torch_own(_mark: Mark) -> None:
        drawn.normal_()

    steps: dict[str, Step] = {"ours": ours, "torch": torch_own}
    times = interleaved(steps, rounds, (), device)
    torch.set_num_threads(threads)
    return times


def noise_ratio(device: torch.device, parameters: int = 1_000_000, rounds: int = 15) -> float:
    """Our time over that of `torch.normal_`: median over rounds."""
    return time_ratio(noise_times(parameters, rounds, device), "ours", "torch")


def costs(rounds: int, device: torch.device) -> Iterator[dict[str, float | str]]:
    """Yield the cost of each of `SIZES`: on a CPU with numpy and then with numba, where it is installed."""
    on_cpu = device.type == "cpu"
    yield from (_cost(size, rounds, device, library() if on_cpu else device.type) for size in SIZES)
    block = lattice_blocks(0)
    for number in range(_MOST_BLOCKS if on_cpu else 0):
        if library() == "numba":
            yield from (_cost(size, rounds, device, library()) for size in SIZES)
            return
        block(number)


@dataclass(frozen=True, slots=True)
class Fit:
    """How well draws fit a Gaussian.

    Attributes:
        draws: how many.
        beyond: how many exceed each of `THRESHOLDS` in absolute value.
        p_beyond: the p-value of each.
        p_bulk: of the cells.
    """

    draws: int
    beyond: list[int]
    p_beyond: list[float]
    p_bulk: float


def fit(block: Block, blocks: int) -> Fit:
    """Count draws, block by block."""
    beyond, cells = np.zeros(len(THRESHOLDS), dtype=np.int64), np.zeros(_CELLS, dtype=np.int64)
    for number in range(blocks):
        draws = block(number)
        size = np.abs(draws)
        within = size < 4.0
        cells += np.bincount(((draws[within] + 4.0) * (_CELLS / 8)).astype(np.int16), minlength=_CELLS)
        beyond += [int((size[~within] > threshold).sum()) for threshold in THRESHOLDS]
    total = blocks * _BLOCK
    expected = np.append(total * np.diff(stats.norm.cdf(np.linspace(-4.0, 4.0, _CELLS + 1))), expected_beyond(total)[0])
    observed = np.append(cells, total - cells.sum())
    p_bulk = stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), _CELLS)
    p_beyond = [_poisson_p(*pair) for pair in zip(beyond.tolist(), expected_beyond(total).tolist(), strict=True)]
    return Fit(total, beyond.tolist(), p_beyond, float(p_bulk))


def expected_beyond(draws: int) -> NDArray[np.float64]:
    """How many draws should exceed each of `THRESHOLDS`."""
    return np.asarray(2.0 * draws * stats.norm.sf(THRESHOLDS))


def _poisson_p(count: int, expected: float) -> float:
    return float(min(1.0, 2.0 * min(stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected))))


def lattice_blocks(seed: int) -> Block:
    """Blocks of our noise on the lattice of a sum of 2^20 parameters, clipping norm 1, noise multiplier 1."""
    keystream, step = Keystream.from_seed(seed, "benchmark"), lattice_step(1.0, _BLOCK)
    nothing = torch.zeros(_BLOCK, dtype=torch.float64)

    def block(number: int) -> np.ndarray:
        read = keystream.reader(Purpose.NOISE, Position(1, number + 1))
        return add_lattice_noise(nothing, 1.0, step, read, torch.float32).numpy()

    return block


def torch_blocks(seed: int) -> Block:
    """Blocks of `torch.normal_`."""
    generator, drawn = torch.Generator().manual_seed(seed), torch.empty(_BLOCK)
    return lambda number: drawn.normal_(generator=generator).numpy()


def main() -> None:
    """Measure, count, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--draws", type=lambda text: int(float(text)), default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu or cuda")
    options = parser.parse_args()
    found = list(costs(options.rounds, options.device))
    blocks = -(-options.draws // _BLOCK)
    makers = {"ours": lattice_blocks, "torch.normal_": torch_blocks}
    fits = {name: fit(make(options.seed), blocks) for name, make in makers.items()} if blocks else {}
    if options.json:
        print(json.dumps({"costs": found, "fits": _plain(fits)}))
        return
    print(f"{'processor time on one thread' if options.device.type == 'cpu' else 'time on the clock'}, medians:")
    print("parameters   with    ours, us   ns a draw   torch.normal_, ns a draw   ratio")
    for cost in found:
        print(_ROW.format(**cost))
    for name, fitted in fits.items():
        print(f"{name}: {fitted.draws:,d} draws, bulk p = {fitted.p_bulk:.2g}")
        for row in zip(THRESHOLDS, fitted.beyond, expected_beyond(fitted.draws), fitted.p_beyond, strict=True):
            print("  beyond {:.1f} sigma {:9,d}  expected {:12.2f}  p = {:.2g}".format(*row))


_ROW = "{parameters:10,.0f} {library:>6} {ours_us:10.1f} {ours_ns:11.2f} {torch_ns:26.2f} {ratio:7.2f}"


def _cost(parameters: int, rounds: int, device: torch.device, by: str) -> dict[str, float | str]:
    times = noise_times(parameters, rounds, device)
    ours, theirs = (1e9 * median(times[name]) / parameters for name in ("ours", "torch"))
    ratio = time_ratio(times, "ours", "torch")
    return {
        "parameters": parameters,
        "library": by,
        "ours_us": ours * parameters / 1e3,
        "ours_ns": ours,
        "torch_ns": theirs,
        "ratio": ratio,
    }


def _plain(fits: dict[str, Fit]) -> dict[str, object]:
    return {name: asdict(found) for name, found in fits.items()} | {"thresholds": THRESHOLDS}


if __name__ == "__main__":
    main()
