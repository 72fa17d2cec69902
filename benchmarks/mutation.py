"""Every small bug that can be made in the modules that carry the guarantee: does a test notice?

    python -m benchmarks.mutation accountant release --out runs/mutation

changes one operator, number, condition, statement or argument at a time (`benchmarks.mutation_operators`), in memory,
and runs the tests that reach the changed line, the cheapest first; `make test-value` has measured which they are.
Changes that nobody notices are written as differences. `docs/explanation/testing.md` says what became of each. One
takes about a second; `tests.privacy.bugs` is the short version that runs with every change. Of all the product, a
random share will do: `fedprivacy --share 0.02`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.mutation_operators import Mutant, lines_of_bodies, mutants_of
from tests.privacy.bugs.planting import ROOT, plant
from tests.privacy.bugs.swapped import swapped
from tests.privacy.bugs.trials import PASSED, import_heavy, import_tests, run_tests, tried
from tests.reached import Suite, collected

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
    parser.add_argument("modules", nargs="*", help="parts of paths in fedprivacy; none: what carries the guarantee")
    parser.add_argument("--out", type=Path, required=True, help="folder for survivors and figures")
    parser.add_argument("--value", type=Path, default=ROOT / "build/value", help="what `make test-value` has measured")
    parser.add_argument("--share", type=float, default=1.0, help="of all mutants, drawn at random")
    parser.add_argument("--count", action="store_true", help="say how many mutants there are, and stop")
    asked = parser.parse_args()
    known = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "fedprivacy").rglob("*.py"))
    modules = [each for each in known if any(part in each for part in asked.modules)] if asked.modules else MODULES
    if asked.count:
        for module in modules:
            print(module, sum(1 for _ in mutants_of((ROOT / module).read_text(), asked.share)))
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    import_heavy()
    suite = Suite(asked.value, collected())
    _run([planted for module in modules for planted in _plantings(module, suite, asked.share)], asked.out)
    return 0


@dataclass(frozen=True, slots=True)
class _Planting:
    """A mutant, the outermost function whose body it changes (None: no body), and the tests that run its lines."""

    module: str
    mutant: Mutant
    function: str | None
    tests: Sequence[str]

    def __call__(self, folder: Path) -> int:
        """Plant the mutant, and run the tests; pytest's exit code. Where no test goes, nobody notices."""
        if not self.tests:
            return PASSED
        name = self.module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if self.function is None:
            plant({name: self.mutant.text})
            return run_tests(self.tests, folder)
        with swapped(name, self.function, self.mutant.text):
            return run_tests(self.tests, folder)

    def difference(self) -> str:
        """The change as a difference."""
        lines = (ROOT / self.module).read_text().splitlines(), self.mutant.text.splitlines()
        shown = list(difflib.unified_diff(*lines, self.module, self.module, lineterm="", n=2))[2:]
        place = f"{self.module}:{self.mutant.lines[0]}"
        return "\n".join([f"# {place}, {self.mutant.operator}, {len(self.tests)} tests", *shown, ""])


def _plantings(module: str, suite: Suite, share: float) -> Iterator[_Planting]:
    """Choose the tests of a module's mutants: where lines are run by importing, those that run any of its functions."""
    source = (ROOT / module).read_text()
    tree, bodies = ast.parse(source), lines_of_bodies(source)
    for mutant in mutants_of(source, share):
        first, last = mutant.lines
        lines = set(range(first, last + 1))
        tests = suite.reaching([(module, bodies if lines.isdisjoint(bodies) else lines)], ENOUGH)
        yield _Planting(module, mutant, _function_around(tree, first), tests)


def _function_around(tree: ast.Module, line: int) -> str | None:
    """The qualified name of the outermost function whose body holds a line; None: no body does."""
    holder, names = cast(Any, tree), list[str]()
    while True:
        holder = next((node for node in holder.body if node.lineno <= line <= (node.end_lineno or 0)), None)
        if not isinstance(holder, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        names.append(holder.name)
        if not isinstance(holder, ast.ClassDef):
            return ".".join(names) if holder.body[0].lineno <= line else None


def _run(plantings: Sequence[_Planting], out: Path) -> None:
    """Run mutants; write the survivors, and print how many there were in each module."""
    survivors, start = Counter[str](), time.monotonic()
    by_import = [each for each in plantings if each.function is None]  # first, before tests import the modules
    in_place = [each for each in plantings if each.function is not None]
    with (out / "survivors.diff").open("w") as file:
        for some in (by_import, in_place):
            if some is in_place:
                import_tests(test for each in some for test in each.tests)
            for outcome in tried(((each, each) for each in some), limit=LIMIT):
                if outcome.code == PASSED:
                    survivors[outcome.named.module] += 1
                    print(outcome.named.difference(), file=file, flush=True)
    for module, count in Counter(each.module for each in plantings).items():
        print(f"{module}: {count} mutants, {count - survivors[module]} noticed, {survivors[module]} not")
    minutes = (time.monotonic() - start) / 60.0
    print(f"{len(plantings)} mutants in {minutes:.1f} min; {survivors.total()} not noticed: {out / 'survivors.diff'}")


if __name__ == "__main__":
    sys.exit(main())
