"""Judge a device in nine minutes: does the guarantee hold on it, and what does privacy cost there?

    python -m benchmarks.gpu [--device cuda] [--out runs/gpu] [--minutes 9] [--only tests,gradients] [--json]

Runs the tests of `tests/device` (sums against an oracle, a record's bits in any company, one record's reach in 10,000
hostile trials, records that cannot be computed, memory that is short, noise, trainings, the audit's gates), then
`benchmarks.launches`, `benchmarks.gradients` in float32 and in bfloat16 and `benchmarks.simulation`. Each has its share
of the time. It needs no network.

`gpu.json` and `gpu.html` are written anew after each test, model and setting, so a run that is cut leaves all that it
has measured. Ratios stand beside those of an earlier run (--beside), and beside the marks that a GPU is to reach. What
does not come to its end in time is named. The exit code is 1 if a test fails, or a part is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.lines import joined, told
from fedprivacy._support.durable import write_durably

MODELS = "lr-256,mlp-256,mlp-1024,cnn-256,resnet-64,wrn-32,transformer-64,transformer-256"

EARLIER = Path(__file__).parent / "results" / "2026-11-26-gpu-nvidia-h200.json"
"""The first run on a GPU, an H200."""

MOST_OF_OPACUS, MOST_OF_GHOST = 0.8, 1.2
"""Marks of a step on a GPU: time over that of Opacus' best mode, memory over that of its ghost mode."""

MOST_OF_NONPRIVATE = {"lr": 1.0, "mlp": 1.0, "cnn": 1.0, "resnet": 1.4, "wrn": 1.4, "transformer": 1.4}
"""Marks of a step on a GPU: time over that of the step without privacy."""

MOST_OF_FLOAT32 = {"transformer": 0.9}
"""Marks of a step in bfloat16 on a GPU: time over that in float32."""

LEAST_OF_BARE = {"lr": 5.0, "mlp": 5.0, "cnn": 1.0}
"""Marks of a simulation on a GPU: clients a second over those of the bare loop."""

LEAST_TRIALS = 10_000
"""Mark of the tests on a GPU: hostile trials that pass."""

SHARES = {"tests": 0.4, "launches": 0.1, "gradients": 0.2, "bfloat16": 0.1, "simulation": 0.2}
"""The parts in their order, each with its share of the time."""

_PROCESSES = 8
"""Most processes of tests that share the device."""

Found = Mapping[str, Any]


def parts(device: str, models: str, settings: str) -> dict[str, list[str]]:
    """Name each part, with its command."""
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/device", "--device", device]
    several = ["--numprocesses", str(min(_PROCESSES, os.cpu_count() or 1)), "--dist", "worksteal"]
    launches = ["-m", "benchmarks.launches", "--device", device, "--models", models]
    gradients = ["-m", "benchmarks.gradients", "--device", device, "--rounds", "3", "--models", models]
    simulation = ["-m", "benchmarks.simulation", "--device", device, "--turns", "1", "--settings", settings]
    return {
        "tests": [*tests, *several],
        "launches": launches,
        "gradients": gradients,
        "bfloat16": [*gradients, "--autocast", "bfloat16"],
        "simulation": [*simulation, "--contenders", "fedprivacy,bare_nonprivate"],
    }


def judge(
    device: str, out: Path, minutes: float, asked: Mapping[str, list[str]], keep: Callable[[Found], None]
) -> Found:
    """Run the parts that are asked for; one that needs less than its share leaves the rest to those after it.

    Args:
        device: its name.
        out: folder of the parts' logs.
        minutes: time for all of them.
        asked: each part's command, the first one first.
        keep: called with all findings so far whenever there is another.
    """
    found: Found = {"device": device, "torch": torch.__version__, "missing": {}, "seconds": {}}
    end, left = time.monotonic() + 60.0 * minutes, sum(SHARES[name] for name in asked)
    for name, command in asked.items():
        began = time.monotonic()
        limit = (end - began) * SHARES[name] / left
        left -= SHARES[name]
        print(f"{name}: at most {limit:.0f} s", file=sys.stderr, flush=True)
        lines, problem = out / f"{name}.jsonl", ""
        lines.unlink(missing_ok=True)
        with _running([sys.executable, *command, "--lines", str(lines)], out / f"{name}.log") as process:
            try:
                for finding in told(process, lines, limit):
                    found = joined(found, finding if name == "tests" else {name: finding})
                    keep(found)
            except (subprocess.TimeoutExpired, ValueError) as error:
                problem = type(error).__name__
        seconds = time.monotonic() - began
        whole = process.returncode in ((0, 1) if name == "tests" else (0,))  # pytest's 1: some failed
        if problem or not whole or name not in found:
            why = f"{problem or f'exit code {process.returncode}'} after {seconds:.0f} s; see {name}.log"
            found = joined(found, {"missing": {name: why}})
        found = joined(found, {"seconds": {name: seconds}})
        keep(found)
    return found


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command with one thread a process; what it says goes to a log, and with it end all that it has started."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as says:
        process = subprocess.Popen(
            command, stdout=says, stderr=says, text=True, env=environment, process_group=0, stdin=subprocess.DEVNULL
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True, slots=True)
class Ratio:
    """One ratio, beside the earlier run's and its mark.

    Attributes:
        of: model or setting.
        what: what is divided by what.
        value: as measured now; None: not measured, or there is nothing to divide by.
        earlier: as measured then.
        mark: the value to reach; None: there is none.
        at_least: whether larger values are better.
    """

    of: str
    what: str
    value: float | None
    earlier: float | None
    mark: float | None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """True if the mark is reached; None: that cannot be said."""
        if self.value is None or self.mark is None:
            return None
        return self.value >= self.mark if self.at_least else self.value <= self.mark

    @property
    def cells(self) -> tuple[str, str, str, str, str, str]:
        """The ratio in words: of, what, now, earlier, mark, met."""
        mark = "" if self.mark is None else f"{'at least' if self.at_least else 'at most'} {self.mark:,g}"
        met = {None: "", True: "yes", False: "no"}[self.met]
        return self.of, self.what, _number(self.value), _number(self.earlier), mark, met


def ratios(found: Found, earlier: Found) -> list[Ratio]:
    """List the ratios of all that was measured, and before them how many hostile trials there were."""
    number = float(sum(trials(found.get("tests", [])).values()))
    hostile = [Ratio("all methods", "hostile trials", number, None, LEAST_TRIALS, at_least=True)] if number else []
    return [*hostile, *_of_steps(found, earlier), *_of_simulations(found, earlier)]


def _of_steps(found: Found, earlier: Found) -> Iterator[Ratio]:
    for name, row in _of(found, "gradients", "models").items():
        then, most = _of(earlier, "gradients", "models").get(name, {}), MOST_OF_NONPRIVATE.get(name.rpartition("-")[0])
        opacus, nonprivate = row["time_vs_opacus_best"], row["time_vs_nonprivate"]
        yield Ratio(name, "time / Opacus' best", opacus, then.get("time_vs_opacus_best"), MOST_OF_OPACUS)
        yield Ratio(name, "time / without privacy", nonprivate, then.get("time_vs_nonprivate"), most)
        yield Ratio(name, "memory / Opacus' ghost mode", _of_ghost(row), _of_ghost(then), MOST_OF_GHOST)
    for name in _of(found, "bfloat16", "models"):
        most = MOST_OF_FLOAT32.get(name.rpartition("-")[0])
        yield Ratio(name, "time in bfloat16 / float32", _of_float32(found, name), _of_float32(earlier, name), most)


def _of_float32(found: Found, name: str) -> float | None:
    half, full = (_of(found, part, "models").get(name) for part in ("bfloat16", "gradients"))
    return half["ms"] / full["ms"] if half and full else None


def _of_ghost(row: Found) -> float | None:
    memory = row.get("memory_mb", {})
    return memory["ours"] / memory["ghost"] if memory.get("ours") and memory.get("ghost") else None


def _of_simulations(found: Found, earlier: Found) -> Iterator[Ratio]:
    for name, row in _of(found, "simulation", "settings").items():
        now, then = _of_bare(row), _of_bare(_of(earlier, "simulation", "settings").get(name, {}))
        yield Ratio(name, "clients a second / bare loop", now, then, LEAST_OF_BARE.get(name), at_least=True)


def _of_bare(row: Found) -> float | None:
    rates = row.get("clients_per_s", {})
    ours, bare = rates.get("fedprivacy"), rates.get("bare_nonprivate")
    return ours / bare if ours and bare else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 1_000.0 else f"{value:,.0f}"


def _name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def methods(tests: Sequence[Found]) -> list[dict[str, str]]:
    """List, for each model and type, the method that was admitted and those that were refused."""
    return [
        {"model": test["name"].partition("[")[2].rstrip("]"), **test["noted"]}
        for test in tests
        if "place_company" in test["name"] and test["noted"]
    ]


def trials(tests: Sequence[Found]) -> Counter[str]:
    """Count the hostile trials that passed, by method."""
    found = Counter[str]()
    for test in tests:
        if test["passed"] and "trials" in test["noted"]:
            found[test["noted"].get("method", "")] += int(test["noted"]["trials"])
    return found


def page(found: Found, earlier: Found) -> str:
    """Draw the findings as one HTML page without scripts."""
    tests = found.get("tests", [])
    return (
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            found=found,
            earlier=earlier,
            tests=tests,
            failed=_failed(found),
            methods=methods(tests),
            trials=trials(tests),
            ratios=ratios(found, earlier),
            now=time.strftime("%Y-%m-%d %H:%M"),
        )
    )


def _failed(found: Found) -> list[str]:
    """Name the tests that failed, and the models of which a part could not be measured."""
    models = [f"{part}, {name}: {why}" for part in found for name, why in _of(found, part, "failed").items()]
    return [*(test["name"] for test in found.get("tests", []) if not test["passed"]), *models]


def _of(found: Found, part: str, kind: str) -> Found:
    """Return a part's findings of one kind, by model or setting; empty: it has none."""
    there = found.get(part)
    kinds: Found = there.get(kind, {}) if isinstance(there, Mapping) and part in SHARES else {}
    return kinds


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
<h2>Marks</h2>
<p>Ratios beside those of {{ earlier.device or "no earlier run" }}. The marks are those of a GPU.</p>
<div class="wide"><table>
<tr><th>model or setting</th><th>ratio</th><th class="n">now</th><th class="n">{{ earlier.device }}</th>
<th>mark</th><th>met</th></tr>
{% for ratio in ratios %}<tr>{% for cell in ratio.cells %}
<td{% if loop.index in (3, 4) %} class="n"{% elif cell == "no" %} class="bad"{% endif %}>{{ cell }}</td>
{%- endfor %}</tr>{% endfor %}</table></div>
{% if methods %}<h2>Methods</h2>
<p>How each model's gradients are computed. A faster method is refused where it treats a record by its place. Hostile
trials: {% for name, count in trials.items() %}{{ name }} {{ "{:,}".format(count) }}{{ ", " if not loop.last }}
{%- endfor %}.</p>
<div class="wide"><table>
<tr><th>model</th><th>method</th><th>rows at a time</th><th>refused</th></tr>
{% for row in methods %}<tr><td>{{ row.model }}</td><td>{{ row.method }}</td><td>{{ row.sizes }}</td>
<td>{{ row.refused or "nothing" }}</td></tr>{% endfor %}</table></div>{% endif %}
{% if found.launches %}<h2>Launches of a step</h2>
<p>Operations and reads that wait, as counted; in brackets kernels, graphs and waits that the profiler sees.</p>
<div class="wide"><table><tr><th>model</th><th>step</th><th class="n">operations</th><th class="n">waits</th>
<th class="n">rows</th><th class="n">seen</th></tr>
{% for model, steps in found.launches.models.items() %}{% for name, row in steps.items() %}<tr>
<td>{{ model if loop.first }}</td><td>{{ name }}</td><td class="n">{{ row.launches }}</td>
<td class="n">{{ row.waits }}</td><td class="n">{{ "%.2f" | format(row.rows) }}</td>
<td class="n">{% if row.seen %}({{ row.seen.kernels }}, {{ row.seen.graphs }}, {{ row.seen.waits }}){% endif %}</td>
</tr>{% endfor %}{% endfor %}</table></div>{% endif %}
{% for part, title in (("gradients", "A private step"), ("bfloat16", "A private step, activations in bfloat16")) %}
{% if found[part] %}<h2>{{ title }}</h2><div class="wide"><table>
<tr><th>model</th><th>method</th><th class="n">ms</th><th class="n">without privacy</th><th>Opacus' best</th>
<th class="n">MB</th></tr>
{% for model, row in found[part].models.items() %}<tr><td>{{ model }}</td><td>{{ row.engine }}</td>
<td class="n">{{ "%.2f" | format(row.ms) }}</td><td class="n">{{ "%.2f" | format(row.nonprivate_ms) }}</td>
<td>{{ "%.2f, %s" | format(row.opacus_ms[row.opacus_best], row.opacus_best) if row.opacus_best else "-" }}</td>
<td class="n">{{ "%.1f" | format(row.memory_mb.ours) }}</td>
</tr>{% endfor %}</table></div>
{% if found[part].noise_vs_torch_normal %}<p>Noise for a million parameters takes
{{ "%.1f" | format(found[part].noise_vs_torch_normal) }} times as long as <code>torch.normal_</code>.</p>{% endif %}
{% endif %}{% endfor %}
{% if found.simulation %}<h2>Simulations</h2><div class="wide"><table>
<tr><th>setting</th><th class="n">clients a second</th><th class="n">bare loop</th></tr>
{% for name, row in found.simulation.settings.items() %}<tr><td>{{ name }}</td>
{% for who in ("fedprivacy", "bare_nonprivate") %}<td class="n">
{{ "%.0f" | format(row.clients_per_s[who]) if row.clients_per_s[who] else "-" }}</td>{% endfor %}</tr>{% endfor %}
</table></div>{% endif %}
</body></html>
"""


def report(found: Found, earlier: Found, console: Console) -> None:
    """Print the ratios, and what failed or is missing."""
    tests, failed = found.get("tests", []), _failed(found)
    table = Table("", "ratio", "now", earlier.get("device", "earlier"), "mark", "met", box=box.SIMPLE_HEAD)
    for column in table.columns[2:4]:
        column.justify = "right"
    for ratio in ratios(found, earlier):
        table.add_row(*ratio.cells)
    console.print(table)
    met = [ratio.met for ratio in ratios(found, earlier) if ratio.met is not None]
    console.print(f"{found['device']}: {len(tests)} tests, {len(failed)} failed; {sum(met)} of {len(met)} marks met.")
    for name in (*failed, *(f"missing: {part} ({why})" for part, why in found["missing"].items())):
        console.print(f"  {name}", markup=False)


def save(out: Path, earlier: Found, found: Found) -> None:
    """Write gpu.json and gpu.html, each whole or not at all."""
    write_durably(out / "gpu.json", (json.dumps(found, indent=1) + "\n").encode())
    write_durably(out / "gpu.html", page(found, earlier).encode())


def main() -> int:
    """Judge, write both files, print what failed and is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--out", type=Path, default=Path("runs", "gpu"), help="folder of gpu.json and gpu.html")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for everything")
    parser.add_argument("--only", help=f"parts: {', '.join(SHARES)}")
    parser.add_argument("--models", default=MODELS, help="of launches, gradients and bfloat16")
    parser.add_argument("--settings", default="lr,mlp,cnn", help="of simulation")
    parser.add_argument("--beside", type=Path, default=EARLIER, help="gpu.json of an earlier run")
    parser.add_argument("--json", action="store_true", help="print JSON at the end")
    options = parser.parse_args()
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device is {options.device}, but torch sees no GPU here; give --device cpu.")
    only = options.only.split(",") if options.only else list(SHARES)
    if unknown := set(only) - set(SHARES):
        parser.error(f"{', '.join(sorted(unknown))} is no part; choose from {', '.join(SHARES)}.")
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what runs ends, too
    earlier = json.loads(options.beside.read_text())
    commands = parts(options.device, options.models, options.settings)
    asked = {name: commands[name] for name in SHARES if name in only}
    found = judge(_name(options.device), options.out, options.minutes, asked, partial(save, options.out, earlier))
    report(found, earlier, Console(width=max(Console().width, 110)))
    print(f"See {options.out / 'gpu.html'}.")
    if options.json:
        print(json.dumps(found))
    return bool(_failed(found) or found["missing"])


if __name__ == "__main__":
    sys.exit(main())
