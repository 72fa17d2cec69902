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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, launches
from benchmarks.lines import joined
from benchmarks.measure import Mark, Step, tensor_peak
from tests.house import ROOT

GPU_PARTS = "launches,gradients,bfloat16,simulation"  # the tests have a lane of their own
ARGUMENTS = {
    "ledger": ["--charges", "20000", "--seconds", "0.1"],
    "noise": ["--rounds", "1", "--draws", "1"],
    "questions": ["--clients", "3", "--records", "500", "--turns", "1"],
    "audit": ["--seeds", "1", "--runs", "2"],
    "audit_power": ["--seeds", "1", "--only", "batches have a fixed size"],
    "accounting_share": ["--clients", "3", "--rounds", "1"],
    "gradients": ["--models", "lr-64", "--rounds", "1"],
    "gradients --where": ["--models", "lr-32", "--rounds", "1"],
    "gpu": ["--device", "cpu", "--only", GPU_PARTS, "--models", "lr-64", "--settings", "lr", "--out", "OUT"],
    "launches": ["--models", "lr-64", "--parts"],
    "launches --memory": ["--models", "lr-64"],
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


H200 = json.loads(gpu.EARLIER.read_text())
LR = H200["gradients"]["models"]["lr-256"]


def telling(*findings: object, then: str) -> list[str]:
    """Return the command of a part that tells findings, half of another one, and does something then."""
    text = "\n".join([*map(json.dumps, findings), '{"models": {"half'])
    return ["-c", f"import sys, time; open(sys.argv[-1], 'w').write({text!r}); {then}"]


def test_a_cut_run_on_a_gpu_leaves_what_it_has_measured(tmp_path: Path) -> None:
    """Whichever way a part ends, and when the whole run is killed: each finding is on the disk before the next."""
    lr, mlp = ({"models": {name: LR}} for name in ("lr-256", "mlp-256"))
    commands = {
        "launches": ["-c", "import time; time.sleep(600)"],
        "gradients": telling(lr, mlp, then="sys.exit(3)"),
        "simulation": telling({"settings": {"lr": H200["simulation"]["settings"]["lr"]}}, then="time.sleep(20)"),
    }
    kept: list[Any] = []

    def keep(found: gpu.Found) -> None:
        gpu.save(tmp_path, H200, found)
        kept.append(json.loads((tmp_path / "gpu.json").read_text()))
        if "simulation" in found:
            raise KeyboardInterrupt

    out_of_time = gpu.judge("made up", tmp_path, 0.0, {"launches": commands.pop("launches")}, keep)
    assert out_of_time["missing"]["launches"].startswith("TimeoutExpired")
    with pytest.raises(KeyboardInterrupt):
        gpu.judge("made up", tmp_path, 60.0, commands, keep)
    first, found = next(each for each in kept if "gradients" in each), kept[-1]
    assert set(first["gradients"]["models"]) == {"lr-256"}
    assert set(found["gradients"]["models"]) == {"lr-256", "mlp-256"} and "lr" in found["simulation"]["settings"]
    assert found["missing"]["gradients"].startswith("exit code 3") and "mlp-256" in (tmp_path / "gpu.html").read_text()


def test_ratios_stand_beside_those_of_the_h200_and_their_marks() -> None:
    def met(what: str, of: str, found: Mapping[str, Any]) -> tuple[str, ...]:
        (ratio,) = [ratio for ratio in gpu.ratios(found, H200) if (ratio.what, ratio.of) == (what, of)]
        return ratio.cells[2:]

    def lr(**changed: Any) -> dict[str, Any]:
        return {"gradients": {"models": {"lr-256": LR | changed}}}

    opacus, ghost = "time / Opacus' best", "memory / Opacus' ghost mode"
    assert met(opacus, "lr-256", lr(time_vs_opacus_best=0.79)) == ("0.79", "1.38", "at most 0.8", "yes")
    assert met(opacus, "lr-256", lr(time_vs_opacus_best=0.81))[3] == "no"
    assert met(opacus, "lr-256", lr(time_vs_opacus_best=None)) == ("-", "1.38", "at most 0.8", "")
    assert met(ghost, "lr-256", lr(memory_mb={"ours": 1.1, "ghost": 1.0})) == ("1.10", "5.74", "at most 1.2", "yes")
    rates = {"simulation": {"settings": {"mlp": {"clients_per_s": {"fedprivacy": 1_000.0, "bare_nonprivate": 212.0}}}}}
    bare = "clients a second / bare loop"
    assert met(bare, "mlp", rates) == ("4.72", "0.25", "at least 5", "no")
    hostile = {"passed": True, "noted": {"method": "program", "trials": 6_000}}
    tests = {"tests": [hostile, hostile, hostile | {"passed": False}]}
    assert met("hostile trials", "all methods", tests) == ("12,000", "-", "at least 10,000", "yes")
    assert met("time in bfloat16 / float32", "transformer-256", H200)[3] == "no"


def test_findings_are_joined_by_name_and_calls_of_one_step_counted() -> None:
    found = joined({"tests": [1], "models": {"a": 1}}, {"tests": [2], "models": {"b": {}}, "noise": 3})
    assert found == {"tests": [1, 2], "models": {"a": 1, "b": {}}, "noise": 3}
    names = [
        "cudaLaunchKernel",
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "cudaGraphLaunch",
        "cudaMemcpyAsync",
        "aten::mm",
    ]
    names += ["cudaStreamSynchronize", "cudaMemcpy", "cudaEventSynchronize"]
    calls = [(name, float(place), place + 0.5) for place, name in enumerate(names)]
    step = ("benchmarks.launches.step", 1.0, 8.0)
    assert launches.of_calls([*calls, step]) == launches.Seen(kernels=2, graphs=1, waits=3)


def test_a_step_s_peak_counts_what_is_kept_from_before_and_what_a_kernel_takes_for_itself() -> None:
    def build() -> Step:
        kept = torch.zeros(2**18)

        def step(_: Mark) -> None:
            del [torch.zeros(2**19)][0]  # given back before the worst moment
            rows = torch.ones(2**8, 2**10)
            norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)  # of a copy in float64
            assert len(norms) < len(kept)

        return step

    assert tensor_peak(build) == 4 * 2**18 + (4 + 8) * 2**18 + 8 * 2**8


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
