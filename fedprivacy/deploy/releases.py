"""Releases that a deployment may have: of fedprivacy, less those that SECURITY.md names, and of Flower."""

from __future__ import annotations

import re
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

SOUND_SINCE = (0, 2)
"""First series of releases that may be deployed: what is earlier can be broken, see SECURITY.md."""


def is_sound(version: str) -> bool:
    """Return whether a release may be deployed, by its first two numbers; what is no version may not."""
    series = re.match(r"(\d+)\.(\d+)", version)
    return series is not None and (int(series[1]), int(series[2])) >= SOUND_SINCE


def flower_window() -> SpecifierSet:
    """Return the releases of Flower that this fedprivacy works with, as its package requires them."""
    required = map(Requirement, requires("fedprivacy") or ())
    return next(one.specifier for one in required if one.name == "flwr" and one.marker is None)
