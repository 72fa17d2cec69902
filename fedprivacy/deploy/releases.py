"""Releases whose guarantee can be broken, as SECURITY.md names them."""

from __future__ import annotations

import re

SOUND_SINCE = (0, 2)
"""First series of releases that may be deployed: what is earlier can be broken, see SECURITY.md."""


def is_sound(version: str) -> bool:
    """Return whether a release may be deployed, by its first two numbers; what is no version may not."""
    series = re.match(r"(\d+)\.(\d+)", version)
    return series is not None and (int(series[1]), int(series[2])) >= SOUND_SINCE
