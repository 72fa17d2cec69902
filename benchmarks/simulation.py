"""What a simulation costs: client updates per second and peak memory, against two peers and a bare loop.

    python -m benchmarks.simulation [--json] [--settings lr,mlp] [--contenders fedprivacy,pfl_central] [--turns 2]
                                    [--device cuda] [--save] [--lines FILE]
    python -m benchmarks.simulation --scale [--json] [--populations 1000,10000,100000] [--cohort 1000] [--plot FILE.svg]

The same work for all: users with 50 records each, five local steps on (expected) batches of ten, noise multiplier 1,
clipping norm 1; 1,000 users of whom 50 train in a round, and in lr-10k 10,000 and 1,000.

- fedprivacy, fedprivacy_2: `fp.simulate` in one process, and with two workers where it has that setting (else null).
  Each record is protected; accounting, budgets, ledger and recorder are on.
- flower_opacus: Flower's simulation on Ray, clients that train with Opacus, no epsilon asked for.
- pfl_central: pfl-research with central Gaussian privacy, since it has none for records. `benchmarks.peers_pfl` says
  how to install it; null where it is missing.
- bare_nonprivate: the same steps in plain torch, without privacy, messages or books.

Contenders take turns, each turn in a process of its own, with one thread in each process; Ray starts a worker for each
core. A rate is the cohort over the median duration of a round, of all turns; the first round of a turn warms up, and
set-up does not count. Memory is what a contender's process and all its descendants hold at the worst moment beyond what
the process held after its imports, median of all turns; see `benchmarks.resident`. That moment may lie outside the
rounds: ours draws figures for its report at the end, which takes 60 MB. Needs Linux and the `bench` extra. With
--device, ours and the bare loop compute there; the peers' loops know a CPU alone.

--scale measures ours alone, on populations of lr of whom a fixed number train in each round.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.contenders import BARE, NAMES, OURS, OURS_ON_TWO, SLOW, ContenderFailed, Turn, take_turn
from benchmarks.gradients import save
from benchmarks.lines import tell
from benchmarks.populations import SETTINGS, Setting
from benchmarks.scale import draw, measure_scale, report_scale
from benchmarks.simulators import WORKERS, has_workers

Figures = dict[str, dict[str, float | None]]
"""By figure, then by contender; None of one that takes no part."""


def measure(setting: Setting, contenders: Iterable[str], turns: int) -> Figures:
    """Rates and memory of contenders, by turns."""
    taken: dict[str, list[Turn]] = defaultdict(list)
    left = list(contenders)
    for number in range(min(turns, setting.turns)):
        for name in tuple(left):
            slow = name in SLOW
            if slow and number >= setting.slow_turns:
                continue
            print(f"{setting.name}: turn {number + 1} of {name}", file=sys.stderr)
            try:
                taken[name].append(take_turn(name, setting, setting.slow_rounds if slow else setting.rounds))
            except ContenderFailed as failed:
                left.remove(name)
                print(f"{setting.name}: {name} takes no part: {failed}", file=sys.stderr)
    return {
        "clients_per_s": {name: _rate(setting, taken[name]) for name in NAMES},
        "peak_mb": {name: _memory(taken[name]) for name in NAMES},
    }


def _rate(setting: Setting, turns: Sequence[Turn]) -> float | None:
    rounds = [seconds for turn in turns for seconds in turn.rounds_s]
    return setting.cohort / statistics.median(rounds) if rounds else None


def _memory(turns: Sequence[Turn]) -> float | None:
    return statistics.median(turn.peak_mb for turn in turns) if turns else None


def report(settings: Mapping[str, Figures]) -> None:
    """Print rates and memory, each beside what ours is of it."""
    print("setting  contender        clients/s   ours is   peak, MB   ours is")
    for setting, figures in settings.items():
        for name in NAMES:
            cells = [_beside(figures[figure], name) for figure in ("clients_per_s", "peak_mb")]
            print(f"{setting:8s} {name:16s} {cells[0]}  {cells[1]}")


def _beside(figure: Mapping[str, float | None], name: str) -> str:
    value, ours = figure[name], figure[OURS]
    number = "-" if value is None else f"{value:.1f}"
    ratio = "-" if not value or ours is None else f"{ours / value:.2f} x"
    return f"{number:>9s} {ratio:>9s}"


def main() -> None:
    """Measure one of the two, print it, and save it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="what is simulated")
    parser.add_argument("--contenders", default=",".join(NAMES), help="who takes part")
    parser.add_argument("--turns", type=int, default=2, help="of each contender, at most")
    parser.add_argument("--device", default="cpu", help="of ours and the bare loop: cpu or cuda")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<date>-simulation-<device>.json")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="append each setting's figures at once, as JSON")
    parser.add_argument("--scale", action="store_true", help="measure ours on ever larger populations instead")
    parser.add_argument("--populations", default="1000,3000,10000,30000,100000", help="of --scale")
    parser.add_argument("--cohort", type=int, default=1_000, help="of --scale: users in each round")
    parser.add_argument("--plot", metavar="FILE.svg", type=Path, help="of --scale: draw it")
    options = parser.parse_args()
    for given, known in ((options.settings, SETTINGS), (options.contenders, NAMES)):
        if unknown := set(given.split(",")) - set(known):
            parser.error(f"{', '.join(sorted(unknown))} is unknown; choose from {', '.join(known)}.")
    _scale(options) if options.scale else _compare(options)


def _compare(options: argparse.Namespace) -> None:
    contenders = [name for name in NAMES if name in options.contenders.split(",")]
    if options.device != "cpu":
        contenders = [name for name in contenders if name in (OURS, BARE)]
    if OURS_ON_TWO in contenders and not has_workers():
        print(f"{OURS_ON_TWO} takes no part: fp.simulate has no setting '{WORKERS}'", file=sys.stderr)
        contenders.remove(OURS_ON_TWO)
    settings: dict[str, Figures] = {}
    for name in options.settings.split(","):
        settings[name] = measure(replace(SETTINGS[name], device=options.device), contenders, options.turns)
        tell(options.lines, {"settings": {name: settings[name]}})
        if options.save:  # after each, so that a run that is ended leaves what it found
            print(
                f"saved {save({'settings': settings}, f'simulation {platform.machine()} {options.device}')}",
                file=sys.stderr,
            )
    if options.json:
        print(json.dumps({"settings": settings}))
    else:
        report(settings)


def _scale(options: argparse.Namespace) -> None:
    points = measure_scale([int(users) for users in options.populations.split(",")], options.cohort)
    if options.json:
        print(json.dumps({"cohort": options.cohort, "populations": points}))
    else:
        report_scale(points)
    if options.plot:
        options.plot.write_text(draw(points, options.cohort))


if __name__ == "__main__":
    main()
