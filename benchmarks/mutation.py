"""Every small bug that can be made in the modules that carry the guarantee: does a test notice?

    python -m benchmarks.mutation accountant release --out runs/mutation

changes one operator, number, condition, statement or argument at a time (`benchmarks.mutation_operators`), in memory,
and runs the tests that reach the changed line, the quickest first. Changes that nobody notices are printed as
differences. `docs/explanation/testing.md` says what became of each. One takes about two seconds;
`tests.privacy.bugs` is the short version that runs with every change.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.mutation_operators import Mutant, lines_of_bodies, mutants_of
from tests.privacy.bugs.planting import ROOT, plant
from tests.privacy.bugs.trials import PASSED, Trial, import_heavy, run_tests, tried

ENOUGH = 20.0  # seconds of tests for one mutant: of a hundred that run a line, the slowest rarely see most
LIMIT = 120  # seconds after which they hang: an endless loop is noticed, too

MODULES: dict[str, tuple[str, ...]] = {
    "fedprivacy/mechanisms/gaussian_sum.py": (
        "tests/training/test_sampling.py",
        "tests/mechanisms/test_gaussian_sum.py",
        "tests/mechanisms/test_keystream.py",
        "tests/training/test_dpsgd.py",
        "tests/mechanisms/test_lattice_noise.py",
        "tests/training/test_adaptive.py",
        "tests/privacy/test_sampled.py",
        "tests/privacy/test_noise_added.py",
    ),
    "fedprivacy/mechanisms/lattice_noise.py": (
        "tests/mechanisms/test_lattice_noise.py",
        "tests/mechanisms/test_noise_on_device.py",
        "tests/privacy/test_sampled.py",
        "tests/privacy/test_noise_added.py",
    ),
    "fedprivacy/training/dpsgd.py": (
        "tests/training/test_dpsgd.py",
        "tests/training/test_adaptive.py",
        "tests/training/test_optimizers.py",
        "tests/privacy/test_sampled.py",
        "tests/privacy/test_noise_added.py",
    ),
    "fedprivacy/training/adaptive.py": (
        "tests/training/test_adaptive.py",
        "tests/flower/test_clipping.py",
        "tests/privacy/test_sampled.py",
        "tests/privacy/test_noise_added.py",
    ),
    "fedprivacy/gradients/clipping.py": (
        "tests/gradients/test_clipping.py",
        "tests/gradients/test_clipped_sum.py",
        "tests/gradients/test_attacks.py",
        "tests/gradients/test_layouts.py",
        "tests/flower/test_clipping.py",
    ),
    "fedprivacy/gradients/engine.py": (
        "tests/privacy/test_survivors.py",
        "tests/gradients/test_clipped_sum.py",
        "tests/gradients/test_attacks.py",
        "tests/gradients/test_layouts.py",
        "tests/gradients/test_parameters.py",
        "tests/gradients/test_views.py",
        "tests/gradients/test_program.py",
        "tests/gradients/test_summing.py",
        "tests/gradients/test_invariance.py",
        "tests/training/test_adaptive.py",
    ),
    "fedprivacy/gradients/pieces.py": (
        "tests/privacy/test_survivors.py",
        "tests/gradients/test_pieces.py",
        "tests/gradients/test_attacks.py",
        "tests/gradients/test_clipped_sum.py",
        "tests/gradients/test_summing.py",
        "tests/gradients/test_invariance.py",
    ),
    "fedprivacy/gradients/layout.py": (
        "tests/privacy/test_survivors.py",
        "tests/gradients/test_attacks.py",
        "tests/gradients/test_clipped_sum.py",
        "tests/gradients/test_summing.py",
        "tests/gradients/test_invariance.py",
    ),
    "fedprivacy/gradients/invariance.py": (
        "tests/gradients/test_attacks.py",
        "tests/gradients/test_clipped_sum.py",
        "tests/gradients/test_summing.py",
        "tests/gradients/test_invariance.py",
    ),
    "fedprivacy/runs/accountant.py": (
        "tests/runs/test_accountant.py",
        "tests/ledger/test_store.py",
        "tests/flower/test_rounds.py",
        "tests/flower/test_deployed_rounds.py",
    ),
    "fedprivacy/ledger/charges.py": (
        "tests/ledger/test_store.py",
        "tests/ledger/test_changes.py",
        "tests/ledger/test_journal.py",
        "tests/ledger/test_verify.py",
        "tests/ledger/test_export.py",
        "tests/runs/test_accountant.py",
    ),
    "fedprivacy/guard/guard.py": ("tests/guard", "tests/flower/test_deployed_client.py"),
    "fedprivacy/guard/tally.py": ("tests/guard", "tests/flower/test_deployed_client.py"),
    "fedprivacy/guard/seals.py": ("tests/guard", "tests/flower/test_deployed_client.py"),
    "fedprivacy/guard/log.py": ("tests/guard",),
    "fedprivacy/flower/client/local.py": (
        "tests/flower/test_local.py",
        "tests/flower/test_node.py",
        "tests/flower/test_deployed_client.py",
        "tests/flower/test_deployed_rounds.py",
        "tests/flower/test_rounds.py",
        "tests/flower/test_clipping.py",
    ),
    "fedprivacy/flower/client/node.py": (
        "tests/flower/test_node.py",
        "tests/flower/test_deployed_client.py",
        "tests/privacy/test_server_fields.py",
    ),
    "fedprivacy/flower/client/release.py": (
        "tests/flower/test_release.py",
        "tests/flower/test_deployed_client.py",
        "tests/flower/test_deployed_rounds.py",
        "tests/flower/test_messages.py",
        "tests/flower/test_rounds.py",
    ),
}
"""The modules, and the tests that are meant to notice what goes wrong in them."""


WITHOUT = ("-k", "not postgresql and not more_datasets_than_sqlite")
"""Options that leave out what is slow and shows the same as its neighbour: SQLite runs the ledger's tests as well."""


class Reached:
    """A plugin of pytest that notes which lines of one file each test reaches, and how long it takes."""

    def __init__(self, source: Path, found: Path) -> None:
        self._source, self._found = str(source), found
        self._tests: dict[str, tuple[float, list[int]]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        """Trace a test with its fixtures."""
        lines: set[int] = set()

        def of_frame(frame, event, _):
            lines.add(frame.f_lineno)
            return of_frame

        def called(frame, event, _):
            return of_frame(frame, event, _) if frame.f_code.co_filename == self._source else None

        start = time.monotonic()
        threading.settrace(called)
        sys.settrace(called)
        yield
        sys.settrace(None)
        threading.settrace(None)
        self._tests[item.nodeid] = (time.monotonic() - start, sorted(lines))

    def pytest_sessionfinish(self):
        """Write down what was reached."""
        self._found.write_text(json.dumps(self._tests))


def main() -> int:
    """Run the mutants of some modules; 0, for survivors are for people to judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="parts of their paths; none: all")
    parser.add_argument("--out", type=Path, required=True, help="folder for survivors and figures")
    parser.add_argument("--count", action="store_true", help="say how many mutants there are, and stop")
    asked = parser.parse_args()
    modules = [module for part in asked.modules or [""] for module in MODULES if part in module]
    if asked.count:
        for module in modules:
            print(module, sum(1 for _ in mutants_of(Path(module).read_text())))
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    import_heavy()
    for module in modules:
        _run_module(module, asked.out)
    return 0


def _run_module(module: str, out: Path) -> None:
    """Run a module's mutants; write the survivors, and print how many there were."""
    original, reached = (ROOT / module).read_text(), _reached(module, out)
    mutants, survivors, start = list(mutants_of(original)), [], time.monotonic()
    chosen = [(mutant, _tests_for(reached, mutant, original)) for mutant in mutants]
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


def _reached(module: str, out: Path) -> dict[str, tuple[float, frozenset[int]]]:
    """Seconds and lines of each test of a module, quickest first; without any bug they must pass."""
    found = out.absolute() / "reached.json"

    def trial(folder: Path) -> int:
        return run_tests([*MODULES[module], *WITHOUT], folder, [Reached(ROOT / module, found)])

    (outcome,) = tried([(module, trial)], limit=1200)
    if outcome.code != PASSED:
        raise SystemExit(f"{module}: its tests fail without any bug:\n{outcome.output}")
    tests = sorted(json.loads(found.read_text()).items(), key=lambda test: test[1][0])
    return {name: (seconds, frozenset(lines)) for name, (seconds, lines) in tests}


def _tests_for(reached: dict[str, tuple[float, frozenset[int]]], mutant: Mutant, original: str) -> list[str]:
    """The tests that run a mutant's lines, quickest first, `ENOUGH` of them.

    Any, where lines are run by importing, or by no test in its own process: some tests fork.
    """
    first, last = mutant.lines
    touched = set(range(first, last + 1))
    imported = touched.isdisjoint(lines_of_bodies(original))
    reaching = [name for name, (_, lines) in reached.items() if imported or not touched.isdisjoint(lines)]
    names = reaching or list(reached)
    taken = itertools.accumulate(reached[name][0] for name in names)
    return [name for name, seconds in zip(names, taken, strict=True) if seconds <= ENOUGH] or names[:1]


def _difference(module: str, original: str, mutant: Mutant, tests: int) -> str:
    lines = difflib.unified_diff(original.splitlines(), mutant.text.splitlines(), module, module, lineterm="", n=2)
    return "\n".join([f"# {mutant.operator}, line {mutant.lines[0]}, {tests} tests", *list(lines)[2:], ""])


if __name__ == "__main__":
    sys.exit(main())
