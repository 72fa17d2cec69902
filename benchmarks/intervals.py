"""Coverage of stated 95 % intervals, by kind of figure, on smooth, heaped, tied, few and many records.

    python -m benchmarks.intervals [--seeds 300]

Every question is asked of every case of `tests.questions.coverage`, once per seed. Figures whose interval misses the
exact value in more than 8 of 100 releases that state it, or that err over 1.2 times as much as stated, are named on
standard error.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict

from tests.questions.coverage import CASES, Measured, asked, measured


def main() -> None:
    """Measure, and print a table by kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300)
    seeds = parser.parse_args().seeds
    by_kind: dict[str, list[Measured]] = defaultdict(list)
    for case in (make() for make in CASES.values()):
        for question in asked(**case.clauses):  # type: ignore[no-untyped-call]
            for (name, group), found in measured(question, case, seeds).items():  # type: ignore[no-untyped-call]
                by_kind[found.kind].append(found)
                if found.held < 0.92 * found.told or found.off > 1.2:
                    figure = f"{question.kind}, {case.name}, {name} {group}:"
                    print(figure, f"told {found.told}, right {found.held}, error {found.off:.2f}", file=sys.stderr)
    print("| figures | intervals | that hold the exact value | true error, in stated ones |")
    print("|---|---|---|---|")
    for kind, figures in by_kind.items():
        told, held = (sum(getattr(each, count) for each in figures) for count in ("told", "held"))
        off = statistics.median(each.off for each in figures if each.told == seeds)
        print(f"| {kind} | {told:,d} | {100 * held / told:.1f} % | {off:.2f} |")


if __name__ == "__main__":
    main()
