"""The benchmarks run: each at a size that measures nothing. Types are checked by `make lint`."""

from __future__ import annotations

import argparse
import json
import math
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house import ROOT

ARGUMENTS = {
    "ledger": ["--charges", "20000", "--seconds", "0.1"],
    "noise": ["--rounds", "1", "--draws", "1"],
    "questions": ["--clients", "3", "--records", "500", "--turns", "1"],
    "audit": ["--seeds", "1", "--runs", "2"],
    "audit_power": ["--seeds", "1", "--only", "batches have a fixed size"],
    "accounting_share": ["--clients", "3", "--rounds", "1"],
    "gradients": ["--models", "lr-64", "--rounds", "1"],
    "gradients --where": ["--models", "lr-32", "--rounds", "1"],
    "gpu": ["--device", "cpu", "--only", "gradients,bfloat16", "--models", "lr-64", "--out", "OUT"],
    "families": ["--library", "transformers", "--only", "bert", "--batch", "4", "--rounds", "1"],
    "processors": ["--kinds", "native,avx2-not-strict", "--models", "lr-64", "--rounds", "1"],
    "messages": ["--settings", "lr"],
    "simulation": ["--settings", "lr", "--turns", "1", "--contenders", "fedprivacy,bare_nonprivate"],
    "simulation --scale": ["--populations", "30", "--cohort", "10", "--plot", "/dev/null"],
}
"""Arguments of each benchmark; the accountant's, the engines', the dashboard's and simulation's peers take minutes.
OUT is a folder of the test's own."""


PAGE = (ROOT / "docs/explanation/benchmarks.md").read_text()
COMMAND = re.compile(r"python -m (benchmarks\.\w+)([^`\n]*)")
COMMANDS = sorted({(module, arguments.strip()) for module, arguments in COMMAND.findall(PAGE)})


class Parsed(Exception):  # ends a command where it would begin to measure
    """Raised where a benchmark has read its arguments and found nothing wrong with them."""


@pytest.mark.parametrize(("module", "arguments"), COMMANDS)
def test_a_command_of_the_page_exists_with_its_arguments(
    module: str, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_alone(parser: argparse.ArgumentParser) -> None:
        raise Parsed(parse(parser))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_alone)
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(arguments)])
    with pytest.raises(Parsed):
        runpy.run_module(module, run_name="__main__")


def test_every_section_of_the_page_has_its_command_and_every_saved_result_its_place() -> None:
    _, *sections = re.split("^##+ ", PAGE, flags=re.MULTILINE)
    assert [
        section for section in sections if not re.search("(?:`|^)(?:python -m|fedprivacy) ", section, re.MULTILINE)
    ] == []
    saved = {path.name for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert saved - set(re.findall(r"results/([\w.-]+)", PAGE)) == {"2026-11-22-attacks-x86-64-cpu.json"}  # a page's own


@pytest.mark.soak
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_benchmark_prints_its_figures(name: str, tmp_path: Path) -> None:
    figures = list(numbers(measured(name, tmp_path)))
    assert figures
    assert all(math.isfinite(figure) and figure >= 0.0 for figure in figures)


def measured(name: str, out: Path) -> Any:
    """Run a benchmark with its arguments; return its JSON."""
    module, *mode = name.split()
    arguments = [str(out) if argument == "OUT" else argument for argument in ARGUMENTS[name]]
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json", *mode, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def numbers(found: object) -> Iterator[float]:
    """All figures of a benchmark's JSON."""
    if isinstance(found, dict | list):
        for part in found.values() if isinstance(found, dict) else found:
            yield from numbers(part)
    elif isinstance(found, int | float):
        yield float(found)
