"""Native settings of this process: those of the libraries under torch on a CPU, and its memory.

Those of libraries are made before torch is imported.

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

**Memory**: how much the process may hold before Linux ends it, which errors say that it ran out, and freed memory that
glibc is to keep.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
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

_SAID = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED", "bad_alloc")
"""Texts in torch's `RuntimeError` about memory: its allocators on a CPU, CUDA, cuBLAS, cuDNN, C++."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

_LARGEST_KEPT = 2**25
"""Bytes of the largest block that is kept; more is more than older versions of glibc allow."""

_MOST_KEPT = 2**28
"""Free bytes beyond which memory goes back to the system after all."""


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


def attainable_bytes(root: Path = Path("/")) -> int | None:
    """Return how many bytes this process may hold in all before Linux ends it; None where that cannot be read.

    Those that it holds, and the least of what the machine has available and of what is left in each control group (a
    service's `MemoryMax`, a container's limit) of this process, version 1 or 2. Cached files count as available: Linux
    drops them.

    Args:
        root: folder that holds `proc` and `sys`.
    """
    try:
        known = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
        machine = int(known["MemAvailable"].split()[0]) * 1024
        held = int((root / "proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, KeyError, ValueError):
        return None
    return held + min([machine, *_left_in_groups(root)])


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield the bytes that are left in each control group that has a limit."""
    for folder, limit, usage, cached in _groups(root):
        try:
            counted = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used = int((folder / usage).read_text()) - int(counted.get(cached, 0))
            yield max(int((folder / limit).read_text()) - used, 0)
        except (OSError, ValueError):  # "max", or the root of version 2, which has no limit
            continue


def _groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield this process's control groups and those around them: folder, and names of limit, usage and cached bytes."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            names = ("", "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            names = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        mounted = root / "sys/fs/cgroup" / names[0]
        inner = mounted / path.lstrip("/")
        for folder in (inner, *inner.parents):  # a container sees its own group as the mounted folder itself
            if folder.is_relative_to(mounted):
                yield folder, *names[1:]


def out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error says that memory ran out: Python's, an accelerator's, or torch's on a CPU.

    No single record is at fault then, and none may be left out for it. A part of a batch takes more memory the more
    records are in it: if all its records were dropped when it does not fit, one more record would take the others out
    of the sum.
    """
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    )


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory, up to 256 MiB, in this process; for processes that train, and only on Linux with glibc.

    glibc gives large blocks back to the system as soon as they are freed, and the system hands them out again page by
    page, each filled with zeros. On a CPU a step of a residual net spends a tenth to a quarter of its time on that.
    The process then holds on to the most that it ever needed, as it does at the height of every step anyway.

    Returns:
        Whether the allocator can be told so.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return all(mallopt(*setting) for setting in ((_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, _MOST_KEPT)))
