"""The lock files of what a node and a server install, as tests read them."""

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house import ROOT

LOCKS = ROOT / "fedprivacy" / "deploy" / "requirements"


def locked(file):
    """The pinned requirements of a lock file, each with its hashes."""
    logical = file.read_text().replace("\\\n", " ")
    lines = [line for line in logical.splitlines() if line and not line.lstrip().startswith("#")]
    return [(Requirement(line.partition(" --hash=")[0]), re.findall(r" --hash=(\S+)", line)) for line in lines]


def applying(pins, environment):
    """Map the name of each package that is installed in an environment to its version."""
    chosen = [pin for pin, _ in pins if not pin.marker or pin.marker.evaluate(environment)]
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in chosen}
    assert len(versions) == len(chosen)  # else two versions of one package
    return versions
