"""Settings of the native libraries under torch on a CPU, made before it is imported.

**Matrix products** are to treat all rows alike. Torch's wheels for x86 carry Intel's MKL. By default MKL chooses the
order of a sum by the number of rows and by a row's place: on processors with AVX2 alone it takes rows in blocks of six,
and what is left over goes through another kernel. In its mode of strict conditional numerical reproducibility, the
`STRICT` of `MKL_CBWR`, matrix products give the same bits whatever the number of threads, on Intel's processors with
AVX2 or AVX-512 (Intel oneMKL Developer Guide, "Reproducibility Conditions"). That rows come out alike wherever they
stand is observed, not promised by Intel; `fedprivacy.gradients.invariance` tests it on the machine that computes. MKL
reads the mode at its first call in a process and keeps it.

**Threads that wait** for one another are to be briefly awake, then asleep. By default a waiting thread of GNU's OpenMP
counts to 300,000, some milliseconds, before it sleeps. On a machine that others use, too, the thread that it waits for
may have lost its core meanwhile, so that all others burn theirs, for each of a model's many short operations: ten times
the processor time of one thread. A thread that slept at once would be woken too late on an idle machine, where two
would be slower than one. To count to COUNT, some tenths of a millisecond, takes a tenth more time on an idle machine,
and on a busy one a quarter of what the default burns. No bit of a result depends on it.
OpenMP reads the variable when torch is imported, and keeps it.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PRODUCTS, STRICT = "MKL_CBWR", "AUTO,STRICT"
"""Variable of MKL, and its strict mode."""

WAITS, COUNT = "GOMP_SPINCOUNT", 10_000
"""Variable of GNU's OpenMP, and what a waiting thread counts to."""

POLICY = "OMP_WAIT_POLICY"
"""Variable of every OpenMP by which users choose; COUNT would overrule it."""

_STRICT_FLAG, _EVERYTHING = 0x10000, -1
"""Constants of `mkl_cbwr_get`: the flag of a strict mode, and the argument that asks for mode and flag together."""


def ask_for_strict_products() -> None:
    """Ask MKL for its strict mode, unless the environment asks for another; processes started from here inherit it."""
    os.environ.setdefault(PRODUCTS, STRICT)


def ask_for_short_waits() -> None:
    """Let OpenMP's threads sleep after a short wait, unless the user has chosen; child processes inherit it."""
    if POLICY not in os.environ:
        os.environ.setdefault(WAITS, str(COUNT))


@dataclass(frozen=True, slots=True)
class MatrixLibrary:
    """The library of this process's torch.

    Attributes:
        name: with its version, for people.
        strict: whether it computes in its strict mode; None: it has none, or does not say.
    """

    name: str
    strict: bool | None

    def __str__(self) -> str:
        mode = {True: ", strict", False: ", not strict", None: ""}[self.strict]
        return self.name + mode

    @property
    def remedy(self) -> str:
        """The step that gives products in which all rows are treated alike."""
        if self.strict is False:
            return (
                f"torch had computed before fedprivacy was imported, or {PRODUCTS} was set: restart, and import "
                f"fedprivacy first or set {PRODUCTS}={STRICT}"
            )
        if self.strict:
            return "nothing is wrong; a processor with newer vector instructions is faster"
        return "a build of torch with Intel's MKL is faster on this machine's processor, if there is one for it"


@cache
def matrix_library() -> MatrixLibrary:
    """The library that multiplies matrices here; to ask fixes its mode for the rest of the process."""
    import torch

    shown = torch.__config__.show()
    if not torch.backends.mkl.is_available():
        found = re.search(r"BLAS_INFO=(\w+)", shown)
        return MatrixLibrary(found[1] if found else "a library without a name", None)
    torch.ones(2, 2) @ torch.ones(2, 2)  # MKL's first call, if there was none
    version = re.search(r"Math Kernel Library Version (\S+?)-Product", shown)
    return MatrixLibrary(f"MKL {version[1]}" if version else "MKL", _is_strict(Path(torch.__file__).parent))


def _is_strict(torch_folder: Path) -> bool | None:
    """True if MKL is in a strict mode; None if it cannot be asked."""
    try:
        library = ctypes.CDLL(str(torch_folder / "lib" / "libtorch_cpu.so"))
        return bool(library.mkl_serv_cbwr_get(_EVERYTHING) & _STRICT_FLAG)
    except (OSError, AttributeError):  # another system's file, or a build that hides MKL's functions
        return None
