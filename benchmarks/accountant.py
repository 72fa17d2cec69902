"""What a round costs the central accountant, and what one client's epsilon costs ours and the peers'.

    python -m benchmarks.accountant [--json] [--only MEASURE ...] [--scale 1.0] [--peer-settings 20]

- grid: a million clients, sampling rates on a 1 % grid (348 of them), steps by participation; a round in which a tenth
  of them takes part. Cold: a new process's first round. Warm: the median of the next five.
- different: 10,000 clients, all with their own sampling rate, noise multiplier and delta; nothing rounded; every client
  takes part in every round. First: the round in which all events are new. Warm: the median of rounds 20 to 25.
- mixed: a million different histories of two mechanisms each, of 875 mechanisms. Cold: tables included.
- calibration: noise for 10,000 budgets, all with their own epsilon, delta, sampling rate and steps, all at once.
- one client: the same random settings by our batch (cold, tables included) and by the peers, one after another.

Times are processor time on one thread. Bytes are what the process holds more, names of datasets included (Linux only).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from fedprivacy.accounting import pld, privacy_loss
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.accounting.calibration import Calibration, noise_multipliers
from fedprivacy.accounting.population import PopulationAccountant
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

GRID = 1.01
DELTA = 1e-5
MEASURES = ("grid", "different", "mixed", "calibration", "one-client")


class Clock:
    """Processor seconds of what ran last."""

    seconds: float

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure what runs inside."""
        start = time.process_time()
        yield
        self.seconds = time.process_time() - start


def grid(clients: int) -> dict[str, float]:
    """A population on the grid: cold and warm rounds, bytes a client."""
    rng, clock = np.random.default_rng(0), Clock()
    before = _resident_bytes()
    population = PopulationAccountant()
    rows = population.enrol([f"digits/client-{number:07d}" for number in range(clients)], DELTA)
    exponents = rng.integers(231, 579, clients)  # of 1.01: rates from 0.1 down to 0.0032
    distinct, place = np.unique(exponents, return_inverse=True)
    mechanisms = population.mechanisms([PoissonSampledGaussian(GRID ** -int(e), 1.0) for e in distinct])[place]
    population.record(rows, mechanisms, 10 * rng.binomial(100, 0.3, clients))
    with clock.running():
        population.epsilons()
    cold, warm = clock.seconds, []
    for _ in range(5):
        joined = rng.random(clients) < 0.1
        with clock.running():
            population.record(rows[joined], mechanisms[joined], 10)
            population.epsilons()
        warm.append(clock.seconds)
    with clock.running():
        population.record(rows, mechanisms, 10)
        population.epsilons()
    del joined, exponents, place, mechanisms, rows
    held = (_resident_bytes() - before) / clients
    return {
        "grid_1m_cold_s": cold,
        "grid_1m_warm_s": statistics.median(warm),
        "grid_1m_all_join_s": clock.seconds,
        "bytes_per_client": held,
    }


def different(clients: int) -> dict[str, float]:
    """A population without two alike."""
    rng, clock, warm = np.random.default_rng(1), Clock(), []
    population = PopulationAccountant()
    rows = population.enrol([f"client-{number}" for number in range(clients)], 10.0 ** -rng.uniform(4.0, 6.0, clients))
    rates, noises = 10.0 ** rng.uniform(-2.5, -1.0, clients), rng.uniform(0.8, 2.0, clients)
    mechanisms = population.mechanisms([PoissonSampledGaussian(q, s) for q, s in zip(rates, noises, strict=True)])
    steps = rng.integers(5, 15, clients)
    for _ in range(25):
        with clock.running():
            population.record(rows, mechanisms, steps)
            population.epsilons()
        warm.append(clock.seconds)
    return {"different_10k_warm_s": statistics.median(warm[-6:]), "different_10k_first_s": warm[0]}


def mixed(clients: int) -> dict[str, float]:
    """Histories of two mechanisms, all different."""
    rng, clock, composer = np.random.default_rng(2), Clock(), BatchComposer()
    rates, noises = 10.0**-2.5 * 1.02 ** np.arange(175), (0.8, 1.0, 1.2, 1.5, 2.0)
    composer.columns([PoissonSampledGaussian(float(q), s) for q in rates for s in noises])
    rate, first = rng.integers(0, 175, clients), rng.integers(0, 5, clients)
    second = (first + rng.integers(1, 5, clients)) % 5
    columns = np.stack([5 * rate + first, 5 * rate + second], axis=1).ravel()
    steps = rng.integers(50, 2_000, 2 * clients).astype(np.float64)
    counts = csr_array((steps, columns, 2 * np.arange(clients + 1)), shape=(clients, len(composer.events)))
    deltas = np.full(clients, DELTA)
    with clock.running():
        composer.epsilons(counts, deltas)
    cold = clock.seconds
    with clock.running():
        composer.epsilons(counts, deltas)
    return {"mixed_1m_s": clock.seconds, "mixed_1m_cold_s": cold}


def calibration(budgets: int, checked: int = 200) -> dict[str, float]:
    """Noise for budgets that all differ; the least and the largest share of epsilon that some of them spend."""
    rng, clock = np.random.default_rng(3), Clock()
    rates, steps = 10.0 ** rng.uniform(-2.5, -1.0, budgets), rng.integers(200, 3_000, budgets)
    epsilons, deltas = rng.uniform(0.5, 8.0, budgets), 10.0 ** -rng.uniform(4.0, 7.0, budgets)
    settings = [
        Calibration(PrivacyBudget(epsilon, delta), rate, count)
        for epsilon, delta, rate, count in zip(*(x.tolist() for x in (epsilons, deltas, rates, steps)), strict=True)
    ]
    with clock.running():
        noises = noise_multipliers(settings)
    used = [
        pld.epsilon(setting.history(noise), setting.budget.delta) / setting.budget.epsilon
        for setting, noise in zip(settings[:checked], noises[:checked], strict=True)
        if isinstance(noise, float)
    ]
    return {"calibrate_10k_s": clock.seconds, "calibration_used": min(used), "calibration_used_most": max(used)}


def one_client(settings: int) -> dict[str, float]:
    """Milliseconds for one client's epsilon: ours in a batch of 10,000, and the peers'."""
    rng = np.random.default_rng(4)

    def drawn(count: int) -> list[tuple[float, float, int]]:
        rates, noises = 10.0 ** rng.uniform(-2.5, -1.0, count), rng.uniform(0.8, 2.0, count)
        return list(zip(rates.tolist(), noises.tolist(), rng.integers(100, 3_000, count).tolist(), strict=True))

    many, few = drawn(10_000), drawn(settings)
    composer, clock = BatchComposer(), Clock()
    with clock.running():
        counts = composer.counts([{PoissonSampledGaussian(q, s): n} for q, s, n in many])
        composer.epsilons(counts, np.full(len(many), DELTA))
    cold = clock.seconds / len(many)
    with clock.running():
        composer.epsilons(counts, np.full(len(many), DELTA))
    warm = clock.seconds / len(many)
    costs = {name: _median_seconds(peer, few) for name, peer in _peers().items()}
    ratios = {f"speedup_vs_{name}": cost / warm for name, cost in costs.items()}
    ratios |= {f"speedup_vs_{name}_cold": cost / cold for name, cost in costs.items()}
    milliseconds = {f"{name}_ms": 1e3 * cost for name, cost in costs.items()}
    return ratios | milliseconds | {"ours_warm_ms": 1e3 * warm, "ours_cold_ms": 1e3 * cold}


def _peers() -> dict[str, Callable[[float, float, int], float]]:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant
    from opacus.accountants import PRVAccountant
    from opacus.accountants import RDPAccountant as OpacusRdp

    def google(kind: type) -> Callable[[float, float, int], float]:
        def epsilon(rate: float, noise: float, steps: int) -> float:
            sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
            return kind().compose(sampled, steps).get_epsilon(DELTA)

        return epsilon

    def opacus(kind: type) -> Callable[[float, float, int], float]:
        def epsilon(rate: float, noise: float, steps: int) -> float:
            accountant = kind()
            accountant.history = [(noise, rate, steps)]
            return accountant.get_epsilon(DELTA)

        return epsilon

    return {
        "dp_accounting_pld": google(PLDAccountant),
        "dp_accounting_rdp": google(RdpAccountant),
        "opacus_prv": opacus(PRVAccountant),
        "opacus_rdp": opacus(OpacusRdp),
    }


def _median_seconds(peer: Callable[[float, float, int], float], settings: list[tuple[float, float, int]]) -> float:
    clock, seconds = Clock(), []
    for setting in settings:
        with clock.running():
            peer(*setting)
        seconds.append(clock.seconds)
    return statistics.median(seconds)


def _resident_bytes() -> int:
    """The memory that this process holds now, caches of fixed size and freed memory excepted."""
    privacy_loss.discretise.cache_clear()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=MEASURES, help="measures to take; all when omitted")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the clients, for a quick look")
    parser.add_argument("--peer-settings", type=int, default=20)
    options = parser.parse_args()
    measures: dict[str, Callable[[], dict[str, float]]] = {
        "grid": lambda: grid(int(1_000_000 * options.scale)),
        "different": lambda: different(int(10_000 * options.scale)),
        "mixed": lambda: mixed(int(1_000_000 * options.scale)),
        "calibration": lambda: calibration(int(10_000 * options.scale)),
        "one-client": lambda: one_client(options.peer_settings),
    }
    found: dict[str, float] = {}
    for name in options.only or measures:
        found |= measures[name]()
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:32s} {value:12.4g}")


if __name__ == "__main__":
    main()
