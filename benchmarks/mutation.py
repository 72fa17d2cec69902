"""Every small bug that can be made in the modules that carry the guarantee: does a test notice?

    python -m benchmarks.mutation accountant release --out runs/mutation

changes one operator, number, condition, statement or argument at a time (`benchmarks.mutation_operators`), in memory,
and runs the tests that reach the changed line, the cheapest first; `make test-value` has measured which they are.
Changes that nobody notices are printed as differences. `docs/explanation/testing.md` says what became of each. One
takes about two seconds; `tests.privacy.bugs` is the short version that runs with every change.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.mutation_operators import Mutant, lines_of_bodies, mutants_of
from tests.privacy.bugs.planting import ROOT, plant
from tests.privacy.bugs.trials import PASSED, Trial, import_heavy, run_tests, tried
from tests.reached import Suite

ENOUGH = 20.0  # seconds of tests for one mutant: of a hundred that run a line, the slowest rarely see most
LIMIT = 120  # seconds after which they hang: an endless loop is noticed, too

MODULES = (
    "fedprivacy/mechanisms/gaussian_sum.py",
    "fedprivacy/mechanisms/lattice_noise.py",
    "fedprivacy/training/dpsgd.py",
    "fedprivacy/training/adaptive.py",
    "fedprivacy/gradients/clipping.py",
    "fedprivacy/gradients/engine.py",
    "fedprivacy/gradients/pieces.py",
    "fedprivacy/gradients/layout.py",
    "fedprivacy/gradients/invariance.py",
    "fedprivacy/runs/accountant.py",
    "fedprivacy/ledger/charges.py",
    "fedprivacy/guard/guard.py",
    "fedprivacy/guard/tally.py",
    "fedprivacy/guard/seals.py",
    "fedprivacy/guard/log.py",
    "fedprivacy/flower/client/local.py",
    "fedprivacy/flower/client/node.py",
    "fedprivacy/flower/client/release.py",
)
"""The modules that carry the guarantee."""


def main() -> int:
    """Run the mutants of some modules; 0, for survivors are for people to judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="parts of their paths; none: all")
    parser.add_argument("--out", type=Path, required=True, help="folder for survivors and figures")
    parser.add_argument("--value", type=Path, default=ROOT / "build/value", help="what `make test-value` has measured")
    parser.add_argument("--count", action="store_true", help="say how many mutants there are, and stop")
    asked = parser.parse_args()
    modules = [module for part in asked.modules or [""] for module in MODULES if part in module]
    if asked.count:
        for module in modules:
            print(module, sum(1 for _ in mutants_of(Path(module).read_text())))
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    import_heavy()
    suite = Suite(asked.value)
    for module in modules:
        _run_module(module, suite, asked.out)
    return 0


def _run_module(module: str, suite: Suite, out: Path) -> None:
    """Run a module's mutants; write the survivors, and print how many there were."""
    original, survivors, start = (ROOT / module).read_text(), [], time.monotonic()
    mutants = list(mutants_of(original))
    chosen = [(mutant, _tests_for(suite, module, mutant, original)) for mutant in mutants]
    for outcome in tried(((each, _planting(module, *each)) for each in chosen), limit=LIMIT):
        mutant, tests = outcome.named
        if outcome.code == PASSED:
            survivors.append(_difference(module, original, mutant, len(tests)))
            print(survivors[-1], flush=True)
    name = module.replace("/", ".").removesuffix(".py")
    (out / f"{name}.diff").write_text("\n".join(survivors))
    minutes = (time.monotonic() - start) / 60.0
    noticed = len(mutants) - len(survivors)
    print(f"{module}: {len(mutants)} mutants, {noticed} noticed, {len(survivors)} not; {minutes:.1f} min", flush=True)


def _planting(module: str, mutant: Mutant, tests: Sequence[str]) -> Trial:
    def trial(folder: Path) -> int:
        plant({module.removesuffix(".py").replace("/", "."): mutant.text})
        return run_tests(tests, folder)

    return trial


def _tests_for(suite: Suite, module: str, mutant: Mutant, original: str) -> list[str]:
    """The tests that run a mutant's lines; where lines are run by importing, those that run anything of the module."""
    first, last = mutant.lines
    lines, bodies = set(range(first, last + 1)), lines_of_bodies(original)
    return suite.reaching([(module, bodies if lines.isdisjoint(bodies) else lines)], ENOUGH)


def _difference(module: str, original: str, mutant: Mutant, tests: int) -> str:
    lines = difflib.unified_diff(original.splitlines(), mutant.text.splitlines(), module, module, lineterm="", n=2)
    return "\n".join([f"# {mutant.operator}, line {mutant.lines[0]}, {tests} tests", *list(lines)[2:], ""])


if __name__ == "__main__":
    sys.exit(main())
