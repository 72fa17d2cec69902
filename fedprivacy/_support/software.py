"""The program that runs: its version, and a digest of its files that anybody can compute again."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from fedprivacy import __version__

_WRITTEN = re.compile(r"fedprivacy [0-9A-Za-z.+]{1,64} [0-9a-f]{64}")


class Software(NamedTuple):
    """A program: name and version, and the SHA-256 of its files, in hexadecimal."""

    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.digest}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Read what `str` wrote. Raises ValueError: it is something else."""
        if not _WRITTEN.fullmatch(text):
            raise ValueError("names no version of fedprivacy with the digest of its files.")
        name, _, digest = text.rpartition(" ")
        return cls(name, digest)


@cache
def software() -> Software:
    """Return this program, as its files are when it is first asked for.

    The digest is that of a list of the package's files, each with its own. In the folder that holds the package, a
    shell computes it, too:

        find fedprivacy -type f ! -name '*.pyc*' | LC_ALL=C sort | xargs sha256sum | sha256sum
    """
    package = Path(__file__).parents[1]
    files = {path.relative_to(package.parent).as_posix(): path for path in package.rglob("*") if path.is_file()}
    listed = (
        f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}\n"
        for name in sorted(files)
        if ".pyc" not in name  # while Python writes bytecode, its name goes on with a number
    )
    return Software(f"fedprivacy {__version__}", hashlib.sha256("".join(listed).encode()).hexdigest())
