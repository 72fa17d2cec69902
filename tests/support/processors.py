"""Kinds of processors that this one can pretend to be.

    python -m tests.support.processors avx2 COMMAND ...     # runs a command on a kind

Environment variables that torch and its libraries read limit the instructions that they use.
"""

from __future__ import annotations

import os
import sys

import numpy as np

_NUMPY = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
"""The instructions beyond its least that numpy uses here; those of AVX-512 have these in their names."""

_AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in _NUMPY if "512" in name or name.endswith("V4")),
}

KINDS: dict[str, dict[str, str]] = {
    "native": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx2": _AVX2,
    "avx2-not-strict": _AVX2 | {"MKL_CBWR": "OFF"},
    "compatible": _AVX2 | {"MKL_CBWR": "COMPATIBLE"},
    "generic": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "NPY_DISABLE_CPU_FEATURES": " ".join(_NUMPY),
    },
}
"""Environment variables of each kind: this machine as it is; without AMX; with AVX2 at most, as most desktops and
laptops; the same where torch had computed before fedprivacy was imported, or where a library has no strict mode; about
what MKL does on other makers' processors; and with SSE 4 at most."""


def environment(kind: str) -> dict[str, str]:
    """This process's environment as that of a kind."""
    variables = {name for others in KINDS.values() for name in others}
    return {name: value for name, value in os.environ.items() if name not in variables} | KINDS[kind]


if __name__ == "__main__":
    _, kind, *command = sys.argv
    os.execvpe(command[0], command, environment(kind))
