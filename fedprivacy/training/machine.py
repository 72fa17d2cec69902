"""Facts about the machine and the code paths it chose, for doctor, run folder and terminal.

All of it is public: it was chosen on made-up records.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fedprivacy._support.durable import write_durably
from fedprivacy._support.native import matrix_library
from fedprivacy.gradients.engine import GradientEngine
from fedprivacy.mechanisms import lattice_noise
from fedprivacy.values.wording import count_text

MACHINE = "machine.json"
"""Name of the file in a run's folder."""

STACKS = "stacks of clients"
"""Name of the method by which many clients with small models train together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine, as one run used it.

    Attributes:
        processor: the widest vector instructions that torch uses, such as "AVX2".
        cores: number of cores that this process may use.
        torch: version of torch.
        products: library that multiplies matrices, with its mode.
        gradients: method that computes gradients; "": not decided here.
        records: maximum number of records computed at a time; 0: not decided here.
        threads: number of torch's threads, and of those that compute gradients at most.
        refused: faster ways to compute gradients that this machine or the model rules out, with the reason.
        remedy: advice that makes gradients faster; "": none is needed.
        noise: library that draws the noise.
    """

    processor: str
    cores: int
    torch: str
    products: str
    gradients: str
    records: int
    threads: int
    refused: tuple[str, ...]
    remedy: str
    noise: str

    @classmethod
    def here(cls, engine: GradientEngine | None = None, *, stacked: bool = False) -> Machine:
        """Describe this machine, with a prepared engine's choices; `stacked`: clients train together, in stacks."""
        chosen = None if stacked else engine
        return cls(
            processor=torch.backends.cpu.get_cpu_capability(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            torch=torch.__version__,
            products=str(matrix_library()),
            gradients=STACKS if stacked else engine.method if engine else "",
            records=chosen.sizes[0] if chosen else 0,
            threads=torch.get_num_threads(),
            refused=chosen.refused if chosen else (),
            remedy=chosen.obstacle.remedy if chosen and chosen.obstacle else "",
            noise=lattice_noise.library(),
        )

    @property
    def line(self) -> str:
        """The facts in one line for people."""
        at_a_time = f", {self.records} records at a time" if self.records else ""
        how = f"gradients by {self.gradients}{at_a_time}; " if self.gradients else ""
        threads, cores = count_text(self.threads, "thread"), count_text(self.cores, "core")
        return (
            f"{how}{threads} on {cores}; {self.products}; {self.processor}; torch {self.torch}; noise by {self.noise}"
        )

    def keep(self, folder: Path) -> None:
        """Write the facts into a run's folder, as JSON."""
        write_durably(folder / MACHINE, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def kept_in(cls, folder: Path) -> Machine | None:
        """Read the machine that a run's folder names; None: it names none."""
        file = folder / MACHINE
        if not file.exists():
            return None
        facts = json.loads(file.read_text())
        return cls(**facts | {"refused": tuple(facts["refused"])})
