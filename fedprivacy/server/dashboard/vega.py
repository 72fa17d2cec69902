"""Vega, Vega-Lite and vega-embed as one script, from the installed vl-convert: nothing is loaded from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
from dataclasses import dataclass

_PRINT = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"


@dataclass(frozen=True, slots=True)
class Script:
    """A script as it is served.

    Attributes:
        compressed: by gzip.
        etag: names its contents.
    """

    compressed: bytes
    etag: str


def bundled() -> Script:
    """The script. Takes a second, in a process of its own: the bundler needs more memory than all of the dashboard.

    Raises:
        subprocess.CalledProcessError: vl-convert could not make it.
    """
    made = subprocess.run([sys.executable, "-c", _PRINT], check=True, capture_output=True)
    return Script(gzip.compress(made.stdout, mtime=0), f'"{hashlib.sha256(made.stdout).hexdigest()[:16]}"')
