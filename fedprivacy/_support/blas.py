"""The library that multiplies torch's matrices on a CPU, and the mode in which it treats all rows of a product alike.

Torch's wheels for x86 carry Intel's MKL. By default MKL chooses the order of a sum by the number of rows and by a row's
place: on processors with AVX2 alone it takes rows in blocks of six, and what is left over goes through another kernel.
In its mode of strict conditional numerical reproducibility, the `STRICT` of `MKL_CBWR`, matrix products give the same
bits whatever the number of threads, on Intel's processors with AVX2 or AVX-512 (Intel oneMKL Developer Guide,
"Reproducibility Conditions"). That rows come out alike wherever they stand is observed, not promised by Intel;
`fedprivacy.gradients.invariance` tests it on the machine that computes. MKL reads the mode at its first call in a
process and keeps it.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

VARIABLE, STRICT = "MKL_CBWR", "AUTO,STRICT"

_STRICT_FLAG, _EVERYTHING = 0x10000, -1
"""Constants of `mkl_cbwr_get`: the flag of a strict mode, and the argument that asks for mode and flag together."""


def ask_for_strict_products() -> None:
    """Ask MKL for its strict mode, unless the environment asks for another; processes started from here inherit it."""
    os.environ.setdefault(VARIABLE, STRICT)


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
                f"torch had computed before fedprivacy was imported, or {VARIABLE} was set: restart, and import "
                f"fedprivacy first or set {VARIABLE}={STRICT}"
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
