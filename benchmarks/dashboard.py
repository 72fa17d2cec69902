"""How quickly the dashboard shows a large run, and what watching costs the training.

    python -m benchmarks.dashboard [--json] [--save] [--clients 10000] [--rounds 1000] [--pairs 9]

- store: a run of 10,000 clients x 1,000 rounds. From a new browser until its page is drawn, headline, charts near the
  top and table (first_page_s; needs Chromium, else null); a page of clients, sorted and searched (client_page_ms); from
  the moment a round is stored until a listener has its event (event_ms); the most memory that the process took
  (rss_mb). Medians; for the page of clients and the event, the slowest are printed beside them.
- training: the main job, with the run store, TensorBoard, a dashboard and a browser that shows the run. What its own
  process spends on that, in CPU time, by what the rounds take (training_slowdown); and the time that the rounds take,
  watched by alone, in turns (training_wall_ratio). Training has the machine's first core, dashboard and browser have
  the others, as they would be another machine's. The second figure is as noisy as the machine. Medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
from flwr.app import Context, RecordDict

from fedprivacy.dashboard.service import Address, dashboard_beside
from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.ledger import Ledger
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.runs.records.store import RunRecording
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.server.app import build_strategy, server_app
from fedprivacy.server.recorder import Recorder
from fedprivacy.tasks.loader import open_task
from fedprivacy.values.runs import Observer, RoundResult
from fedprivacy.values.series import RunFacts
from fedprivacy.values.spent import ClientSpent

RUN = "benchmark"
BUDGET, DELTA = 3.0, 1e-5
PAGES, EVENTS, LOADS = 100, 20, 5

_CORES = sorted(os.sched_getaffinity(0))
FIRST, OTHERS = set(_CORES[:1]), set(_CORES[1:] or _CORES)

Figures = dict[str, float | None]


def _facts(rounds: int) -> RunFacts:
    settings = {"task": "digits", "rounds": rounds, "local-steps": 1, "delta": DELTA, "epsilon": BUDGET, "seed": None}
    return RunFacts(RUN, RUN, settings | {"strategy": "fedavg"}, 1.5, "zero-out", "accuracy")


def _rounds(clients: int, rounds: int) -> Iterator[RoundResult]:
    """Clients that all join every round, each at a pace of its own."""
    names = [f"client-{number:05d}" for number in range(clients)]
    pace = np.random.default_rng(0).uniform(0.3, 1.2, clients)
    for number in range(rounds + 2 * EVENTS):
        epsilons = BUDGET * np.sqrt(np.minimum(1.0, pace * number / rounds))
        spent = {
            name: ClientSpent(name, epsilon, DELTA, BUDGET, number, number, max(rounds - number, 0), 0.01, 1.5)
            for name, epsilon in zip(names, epsilons.tolist(), strict=True)
        }
        yield RoundResult(number, {"accuracy": number / (number + 9)}, spent, tuple(names if number else ()), {})


def store(folder: Path, clients: int, rounds: int) -> Figures:
    """A large run, looked at."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    Ledger(url).close()
    recording, made = RunRecording(url, _facts(rounds)), _rounds(clients, rounds)
    for number in range(rounds + 1):
        recording.add(next(made))
        if number % 50 == 0 or number == rounds:
            recording.flush()
    with dashboard_beside([url], Address(port=0)) as page:
        process = _listener(page)
        first_page = _first_page(page)
        pages = _client_pages(page, clients)
        events = _events(page, recording, made)
        peak = _peak_mb(process)
    recording.close()
    print(f"client pages: slowest {max(pages):.0f} ms; events: slowest {max(events):.0f} ms", file=sys.stderr)
    return {
        "first_page_s": first_page,
        "client_page_ms": statistics.median(pages),
        "event_ms": statistics.median(events),
        "rss_mb": peak,
    }


def _listener(page: str) -> int:
    """The process that listens at an address: the child of this one."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    named = [int(child) for child in children if b"dashboard" in Path(f"/proc/{child}/cmdline").read_bytes()]
    if len(named) != 1:
        raise RuntimeError(f"{len(named)} processes might serve {page}")
    return named[0]


def _peak_mb(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _first_page(page: str) -> float | None:
    """Seconds until a new browser has drawn the page."""
    with _browser() as browser:
        if browser is None:
            return None
        times = []
        for _ in range(LOADS):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            tab = context.new_page()
            start = time.perf_counter()
            tab.goto(page)
            tab.locator("#charts .marks").nth(1).wait_for()
            times.append(time.perf_counter() - start)
            context.close()
        return statistics.median(times)


@contextlib.contextmanager
def _browser() -> Iterator[Any]:
    """The system's Chromium, warm; None: there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        yield browser
        browser.close()


def _client_pages(page: str, clients: int) -> list[float]:
    """Milliseconds for pages of clients, in every order and with searches."""
    draw, times = random.Random(0), []
    with httpx.Client(base_url=page) as ask:
        for _ in range(PAGES):
            query = {
                "sort": draw.choice(("epsilon", "client_id", "share", "rounds_left", "averaged", "state")),
                "order": draw.choice(("asc", "desc")),
                "search": draw.choice(("", "", "7", "client-01")),
                "offset": draw.randrange(0, clients, 50),
            }
            start = time.perf_counter()
            ask.get(f"api/v1/runs/{RUN}/clients", params=query).raise_for_status()
            times.append(1e3 * (time.perf_counter() - start))
    return times


def _events(page: str, recording: RunRecording, made: Iterator[RoundResult]) -> list[float]:
    """Milliseconds from the end of the transaction that stores a round until a listener has its event."""
    heard: dict[int, float] = {}
    ready = threading.Event()

    def listen() -> None:
        stream = httpx.stream("GET", f"{page}api/v1/runs/{RUN}/events", timeout=None)
        with contextlib.suppress(httpx.RemoteProtocolError), stream as answer:  # the dashboard ends first
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    heard[int(line[4:])] = time.perf_counter()
                    ready.set()

    threading.Thread(target=listen, daemon=True).start()
    ready.wait()
    times = []
    for _ in range(EVENTS):
        record = next(made)
        recording.add(record)
        recording.flush()
        stored = time.perf_counter()
        while record.round not in heard:
            time.sleep(0.001)
        times.append(1e3 * (heard[record.round] - stored))
        time.sleep(random.random() / 3)
    return times


def training(folder: Path, pairs: int) -> Figures:
    """The main job alone and watched, by turns; and what the watched one spent on being watched."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    alone, watched, shares = [], [], []
    _train(folder / "warm")
    for number in range(pairs):
        with _on_cores(FIRST):
            alone.append(_train(folder / f"alone-{number}"))
        with _clocked() as clock:
            watched.append(_train_watched(folder / f"watched-{number}", clock))
        shares.append(clock.spent / watched[-1])
    ratios = sorted(w / a for w, a in zip(watched, alone, strict=True))
    print(
        f"training: alone {statistics.median(alone):.2f} s; watched / alone by pairs: median "
        f"{statistics.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}",
        file=sys.stderr,
    )
    return {"training_slowdown": statistics.median(shares), "training_wall_ratio": statistics.median(ratios)}


class _Clock:
    """CPU seconds that a run's own process spends on being watched: in the recorder, and in threads of its own."""

    def __init__(self) -> None:
        self.in_recorder = 0.0
        self._threads: dict[int, float] = {}
        self.spent = 0.0

    def start(self) -> None:
        """The first round is finished."""
        self.in_recorder, self._threads = 0.0, self._others()

    def stop(self) -> None:
        """The last round is finished."""
        self.spent = self.in_recorder + sum(t - self._threads.get(i, 0.0) for i, t in self._others().items())

    @staticmethod
    def _others() -> dict[int, float]:
        """CPU seconds of every thread of Python's but the one that trains."""
        others = [thread.ident for thread in threading.enumerate() if thread is not threading.current_thread()]
        return {ident: time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in others if ident}


@contextlib.contextmanager
def _clocked() -> Iterator[_Clock]:
    """Clock what recorders do beyond writing their folder."""
    clock = _Clock()
    originals = {(Recorder, "__call__"): 1, (Recorder, "on_phase"): 1, (RunWriter, "__call__"): -1}
    with contextlib.ExitStack() as patches:
        for (owner, name), sign in originals.items():
            patches.enter_context(mock.patch.object(owner, name, _timed(getattr(owner, name), clock, sign)))
        yield clock


def _timed(function: Callable[..., None], clock: _Clock, sign: int) -> Callable[..., None]:
    def timed(*arguments: object) -> None:
        start = time.thread_time()
        function(*arguments)
        clock.in_recorder += sign * (time.thread_time() - start)

    return timed


def _train_watched(folder: Path, clock: _Clock) -> float:
    Ledger(f"sqlite:///{folder / 'ledger.db'}").close()
    with _on_cores(OTHERS), dashboard_beside([str(folder)], Address(port=0)) as page, _browser() as browser:
        if browser is not None:
            browser.new_page().goto(page)
        with _on_cores(FIRST):
            return _train(folder, clock)


@contextlib.contextmanager
def _on_cores(cores: set[int]) -> Iterator[None]:
    """Run this thread on these cores, and what it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _train(folder: Path, clock: _Clock | None = None) -> float:
    """Seconds between the first round and the last; watched if there is a clock."""
    at: list[float] = []

    def note(record: RoundResult) -> None:
        at.append(time.perf_counter())
        if clock and record.round == 1:
            clock.start()
        elif clock and record.round == config.rounds:
            clock.stop()

    config = resolve({"task": "digits", "seed": 0, "out": str(folder), "trackers": "tensorboard" if clock else ""})
    grid = InProcessGrid(private_client(config=config), config.clients, run_config={})
    if clock:
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        server_app(note, config=config)(grid, context)
    else:
        plan = TrainingPlan(config, open_task(config.task))
        observers: list[Observer] = [RunWriter(folder, plan), note]
        PrivateStrategy(build_strategy(config), plan, observers=observers, checkpoints=folder).start(grid)
    return at[-1] - at[1]


def main() -> None:
    """Measure, print, and save if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--clients", type=int, default=10_000, help="of the large run")
    parser.add_argument("--rounds", type=int, default=1_000, help="of the large run")
    parser.add_argument("--pairs", type=int, default=9, help="of trainings, alone and watched")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<date>-dashboard-<device>.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = store(folder, options.clients, options.rounds) | training(folder, options.pairs)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:20s} {'-' if value is None else f'{value:10.4g}'}")
    if options.save:
        from benchmarks.gradients import save

        print(f"saved {save(found, f'dashboard {os.uname().machine} CPU')}", file=sys.stderr)


if __name__ == "__main__":
    main()
