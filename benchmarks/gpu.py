"""Judge a device in ten minutes: does the guarantee hold on it, and what does privacy cost there?

    python -m benchmarks.gpu [--device cuda] [--out runs/gpu] [--minutes 9] [--only tests,gradients] [--json]

Runs the tests of `tests/device` (sums against an oracle, a record's bits in any company, one record's reach, records
that cannot be computed, memory that is short, noise, trainings, the audit's gates), then `benchmarks.gradients` in
float32 and in bfloat16 and `benchmarks.simulation`, each with its share of the time, and writes `gpu.json` and
`gpu.html`. It needs no network. What does not come to its end in time is missing and named. The exit code is 1 if a
test fails, or a part is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from jinja2 import Environment

MODELS = "lr-256,mlp-256,mlp-1024,cnn-256,resnet-64,wrn-32,transformer-64,transformer-256"

_PROCESSES = 8
"""Most processes of tests that share the device."""


def parts(device: str, out: Path, models: str) -> dict[str, tuple[float, list[str]]]:
    """Name each part, with its share of the time and its command."""
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/device", "--device", device]
    several = ["--numprocesses", str(min(_PROCESSES, os.cpu_count() or 1)), "--dist", "worksteal"]
    gradients = ["-m", "benchmarks.gradients", "--json", "--device", device, "--rounds", "3", "--models"]
    simulation = ["-m", "benchmarks.simulation", "--json", "--device", device, "--turns", "1"]
    return {
        "tests": (0.5, [*tests, *several, f"--junitxml={out / 'tests.xml'}"]),
        "gradients": (0.2, [*gradients, models]),
        "bfloat16": (0.15, [*gradients, models, "--autocast", "bfloat16"]),
        "simulation": (0.15, [*simulation, "--settings", "lr,mlp,cnn", "--contenders", "fedprivacy,bare_nonprivate"]),
    }


def judge(device: str, out: Path, minutes: float, asked: Mapping[str, tuple[float, list[str]]]) -> dict[str, Any]:
    """Run the parts that are asked for; one that needs less than its share leaves the rest to those after it."""
    found: dict[str, Any] = {"device": _name(device), "torch": torch.__version__, "missing": {}, "seconds": {}}
    end, left = time.monotonic() + 60.0 * minutes, sum(share for share, _ in asked.values())
    for name, (share, command) in asked.items():
        began = time.monotonic()
        limit = (end - began) * share / left
        left -= share
        print(f"{name}: at most {limit:.0f} s", file=sys.stderr, flush=True)
        try:
            text = _answer([sys.executable, *command], out / f"{name}.log", limit)
            found[name] = read_tests(out / "tests.xml") if name == "tests" else json.loads(text.splitlines()[-1])
        except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as error:
            found["missing"][name] = f"{type(error).__name__}; see {name}.log"
        found["seconds"][name] = time.monotonic() - began
    return found


def _answer(command: Sequence[str], log: Path, limit: float) -> str:
    """Run a command with one thread a process, its errors in a log; return what it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as errors:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=limit, check=False, env=environment
        )
        errors.write(done.stdout)
    return done.stdout


def read_tests(report: Path) -> list[dict[str, Any]]:
    """Read pytest's report: each test's name, whether it passed, seconds, and what it noted (a method, an error)."""
    return [
        {
            "name": f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}",
            "passed": case.find("failure") is None and case.find("error") is None,
            "seconds": float(case.get("time", "0")),
            "noted": {noted.get("name"): noted.get("value") for noted in case.iter("property")},
        }
        for case in ElementTree.parse(report).getroot().iter("testcase")
    ]


def _name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def methods(tests: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """List, for each model and type, the method that was admitted and those that were refused."""
    return [
        {"model": test["name"].partition("[")[2].rstrip("]"), **test["noted"]}
        for test in tests
        if "place_company" in test["name"] and test["noted"]
    ]


def page(found: Mapping[str, Any]) -> str:
    """Draw the findings as one HTML page without scripts."""
    tests = found.get("tests", [])
    failed = [test["name"] for test in tests if not test["passed"]]
    return (
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(found=found, tests=tests, failed=failed, methods=methods(tests), now=time.strftime("%Y-%m-%d %H:%M"))
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>fedprivacy on {{ found.device }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
.wide { overflow-x: auto } table { border-collapse: collapse }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8886; vertical-align: top }
td.n, th.n { text-align: right } .bad { color: light-dark(#b00020, #ff8a80) }
</style></head><body>
<h1>{{ found.device }}</h1>
<p>torch {{ found.torch }}, {{ now }}. {{ tests | length }} tests of the guarantee,
{% if failed %}<strong class="bad">{{ failed | length }} failed</strong>{% else %}all passed{% endif %}.</p>
{% for name, why in found.missing.items() %}<p class="bad">Missing: {{ name }} ({{ why }}).</p>{% endfor %}
{% if failed %}<ul>{% for name in failed %}<li>{{ name }}</li>{% endfor %}</ul>{% endif %}
<h2>Methods</h2>
<p>How each model's gradients are computed. A faster method is refused where it treats a record by its place.</p>
<div class="wide"><table>
<tr><th>model</th><th>method</th><th>rows at a time</th><th>refused</th></tr>
{% for row in methods %}<tr><td>{{ row.model }}</td><td>{{ row.method }}</td><td>{{ row.sizes }}</td>
<td>{{ row.refused or "nothing" }}</td></tr>{% endfor %}</table></div>
{% for part, title in (("gradients", "A private step"), ("bfloat16", "A private step, activations in bfloat16")) %}
{% if part in found %}<h2>{{ title }}</h2><div class="wide"><table>
<tr><th>model</th><th>method</th><th class="n">ms</th><th class="n">time / Opacus' best</th>
<th class="n">time / no privacy</th><th class="n">memory / Opacus</th></tr>
{% for model, row in found[part].models.items() %}<tr><td>{{ model }}</td><td>{{ row.engine }}</td>
<td class="n">{{ "%.2f" | format(row.ms) }}</td>
<td class="n">{{ "%.2f" | format(row.time_vs_opacus_best) if row.time_vs_opacus_best else "-" }}</td>
<td class="n">{{ "%.2f" | format(row.time_vs_nonprivate) }}</td>
<td class="n">{{ "%.2f" | format(row.memory_vs_opacus_default) if row.memory_vs_opacus_default else "-" }}</td>
</tr>{% endfor %}</table></div>
<p>Noise for a million parameters takes {{ "%.1f" | format(found[part].noise_vs_torch_normal) }} times as long as
<code>torch.normal_</code>.</p>{% endif %}{% endfor %}
{% if found.simulation %}<h2>Simulations</h2><div class="wide"><table>
<tr><th>setting</th><th class="n">clients a second</th><th class="n">bare loop</th></tr>
{% for name, row in found.simulation.settings.items() %}<tr><td>{{ name }}</td>
{% for who in ("fedprivacy", "bare_nonprivate") %}<td class="n">
{{ "%.0f" | format(row.clients_per_s[who]) if row.clients_per_s[who] else "-" }}</td>{% endfor %}</tr>{% endfor %}
</table></div>{% endif %}
</body></html>
"""


def main() -> int:
    """Judge, write both files, print what failed and is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--out", type=Path, default=Path("runs", "gpu"), help="folder of gpu.json and gpu.html")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for everything")
    parser.add_argument("--only", help="parts: tests, gradients, bfloat16, simulation")
    parser.add_argument("--models", default=MODELS, help="of gradients and bfloat16")
    parser.add_argument("--json", action="store_true", help="print JSON at the end")
    options = parser.parse_args()
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device is {options.device}, but torch sees no GPU here; give --device cpu.")
    options.out.mkdir(parents=True, exist_ok=True)
    every = parts(options.device, options.out, options.models)
    only = options.only.split(",") if options.only else list(every)
    if unknown := set(only) - set(every):
        parser.error(f"{', '.join(sorted(unknown))} is no part; choose from {', '.join(every)}.")
    found = judge(options.device, options.out, options.minutes, {name: every[name] for name in every if name in only})
    (options.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "gpu.html").write_text(page(found))
    tests = found.get("tests", [])
    failed = [test["name"] for test in tests if not test["passed"]]
    print(f"{found['device']}: {len(tests)} tests, {len(failed)} failed. See {options.out / 'gpu.html'}.")
    for name in (*failed, *(f"missing: {part}" for part in found["missing"])):
        print(f"  {name}")
    if options.json:
        print(json.dumps(found))
    return bool(failed or found["missing"])


if __name__ == "__main__":
    sys.exit(main())
