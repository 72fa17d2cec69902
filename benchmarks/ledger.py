"""How fast a ledger is charged, settled and proved.

    python -m benchmarks.ledger [--json] [--save] [--charges 1000000] [--seconds 10]

- sqlite: one process charges the same 100 clients again and again, 100 at a time; then the receipts come.
- postgres: eight processes do so at once, on a private server on this machine with `fsync` on; null without PostgreSQL.
- rounds: a million charges, in rounds of 10,000 clients, all with receipts. Then what it takes to verify, to export,
  to verify the export, to begin another run, and to read all accounts.
- guard: a client's own charge, one after another.

Every charge is a durable transaction's: rates depend on how long this machine's disk takes to flush, which is measured
beside them. Times are wall time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedprivacy.guard import Guard
from fedprivacy.ledger import Allowance, ChargeState, Ledger
from fedprivacy.ledger.export import verify_export, write_export
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.01, 1.0)
ALLOWANCE = Allowance(PrivacyBudget(8.0, 1e-5), "fixed-mechanism")
CLIENTS = [f"digits/client-{number:05d}" for number in range(10_000)]
BATCH = 100
PROCESSES = 8
STEPS = 5

Figures = dict[str, float | None]


def _within(_: str, history: Any, __: Allowance) -> int:
    """As many steps as an enforced budget of a million would leave."""
    return 1_000_000 - sum(history.values())


def _opened(url: str) -> Ledger:
    ledger = Ledger(url)
    ledger.open_budgets(dict.fromkeys(CLIENTS, ALLOWANCE))
    return ledger


def _reserve(ledger: Ledger, run: str, round: int, count: int) -> None:
    granted = ledger.reserve(Attempt(run, round), EVENT, dict.fromkeys(CLIENTS[:count], STEPS), _within)
    if len(granted) != count:
        raise RuntimeError(f"{count} clients asked, and {len(granted)} were charged")


def _charge_for(url: str, run: str, seconds: float) -> int:
    """Charge the same clients for some seconds; how many batches."""
    ledger, batches, end = Ledger(url), 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        batches += 1
        _reserve(ledger, run, batches, BATCH)
    ledger.close()
    return batches


def sqlite(folder: Path, seconds: float) -> Figures:
    """One process on a file."""
    url = f"sqlite:///{folder / 'charged.db'}"
    ledger = _opened(url)
    start = time.perf_counter()
    batches = _charge_for(url, "run", seconds)
    charged = time.perf_counter()
    for round in range(1, batches + 1):
        ledger.settle(Attempt("run", round), CLIENTS[:BATCH], ChargeState.COMMITTED)
    settled = time.perf_counter()
    ledger.close()
    count = BATCH * batches
    return {
        "sqlite_charges_per_s": count / (charged - start),
        "sqlite_receipts_per_s": count / (settled - charged),
        "sqlite_batch": BATCH,
    }


def postgres(seconds: float) -> Figures:
    """Eight processes on one server."""
    with _server() as url:
        if url is None:
            print("PostgreSQL is not installed; its figures are null.", file=sys.stderr)
            return {"postgres_charges_per_s": None}
        _opened(url).close()
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            pool.starmap(_charge_for, [(url, f"warm-{n}", 0.0) for n in range(PROCESSES)], chunksize=1)  # imports
            start = time.perf_counter()
            batches = pool.starmap(_charge_for, [(url, f"run-{n}", seconds) for n in range(PROCESSES)], chunksize=1)
            took = time.perf_counter() - start
        ledger = Ledger(url)
        charged = sum(account.rounds for account in ledger.accounts(CLIENTS[:BATCH]).values())
        ledger.close()
    if charged != BATCH * sum(batches):
        raise RuntimeError(f"{BATCH * sum(batches)} charges were acknowledged, and the ledger holds {charged}")
    return {"postgres_charges_per_s": charged / took}


@contextmanager
def _server() -> Iterator[str | None]:
    try:
        from tests.postgres import PostgresCluster, find_programs
    except ModuleNotFoundError:  # no driver
        yield None
        return
    if (programs := find_programs()) is None:
        yield None
        return
    with PostgresCluster(programs) as cluster:
        yield cluster.new_database()


def rounds(folder: Path, charges: int) -> Figures:
    """A large ledger: what a round costs, and what it takes to prove all of them."""
    ledger = _opened(f"sqlite:///{folder / 'rounds.db'}")
    reserving, settling = [], []
    for round in range(1, charges // len(CLIENTS) + 1):
        reserving.append(_seconds(_reserve, ledger, "run", round, len(CLIENTS)))
        settling.append(_seconds(ledger.settle, Attempt("run", round), CLIENTS, ChargeState.COMMITTED))
    export = folder / "export.jsonl"

    def write() -> None:
        with export.open("w") as out, ledger.database.reading() as connection:
            write_export(connection, out)

    found: Figures = {
        "round_10k_reserve_s": statistics.median(reserving),
        "round_10k_settle_s": statistics.median(settling),
        "round_10k_last_over_first": statistics.median(reserving[-5:]) / statistics.median(reserving[:5]),
        "verify_1m_s": _seconds(verify_ledger, ledger),
        "export_1m_s": _seconds(write),
        "verify_export_1m_s": _seconds(verify_export, export),
        "open_run_1m_s": _seconds(ledger.open_run, "another", "digits", "10000 parts"),
        "accounts_10k_s": _seconds(ledger.accounts, CLIENTS),
    }
    ledger.close()
    return found


def guard(folder: Path, charges: int = 500) -> Figures:
    """One client's charges, and what a flush to this disk takes alone."""
    client = Guard(folder / "guard.log", PrivacyBudget(100.0, 1e-5), "adaptive")
    costs = [_seconds(client.charge, Attempt("run", round, 1), EVENT, 1) for round in range(1, charges + 1)]
    with (folder / "flushed").open("wb", buffering=0) as file:

        def flush() -> None:
            file.write(b"x" * 4096)
            os.fsync(file)

        flushes = [_seconds(flush) for _ in range(charges)]
    return {
        "guard_charge_ms": 1e3 * statistics.median(costs),
        "disk_flush_ms": 1e3 * statistics.median(flushes),
    }


def _seconds(act: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    act(*arguments)
    return time.perf_counter() - start


def main() -> None:
    """Measure, print, and save if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--charges", type=int, default=1_000_000, help="of the large ledger; fewer for a quick look")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which the same clients are charged")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<date>-ledger-<device>.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = (
            sqlite(folder, options.seconds)
            | postgres(options.seconds)
            | rounds(folder, options.charges)
            | guard(folder)
        )
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:28s} {'-' if value is None else f'{value:12.4g}'}")
    if options.save:
        from benchmarks.gradients import save

        print(f"saved {save(found, f'ledger {os.uname().machine} CPU')}", file=sys.stderr)


if __name__ == "__main__":
    main()
