"""Releases that a deployment may have: of fedprivacy, less those that SECURITY.md names, and of Flower."""

from __future__ import annotations

import re
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

SOUND_SINCE = (0, 2)
"""First series of releases that may be deployed: what is earlier can be broken, see SECURITY.md."""


def is_sound(version: str) -> bool:
    """Return whether a release may be deployed, by its first two numbers; what is no version may not."""
    series = re.match(r"(\d+)\.(\d+)", version)
    return series is not None and (int(series[1]), int(series[2])) >= SOUND_SINCE


def flower_window() -> str:
    """Return the releases of Flower that this fedprivacy works with, as its package requires them: ">=1.41,<1.43"."""
    return ",".join(sorted(map(str, _flower()), reverse=True))


def works_with_flower(version: str) -> bool:
    """Return whether this fedprivacy works with a release of Flower; what is no version it does not."""
    try:
        return _flower().contains(version)
    except InvalidVersion:
        return False


def _flower() -> SpecifierSet:
    required = map(Requirement, requires("fedprivacy") or ())
    return next(one.specifier for one in required if one.name == "flwr" and one.marker is None)
