"""What the gates find of the code with a bug that is planted, and of the code as it is."""

from __future__ import annotations

from collections.abc import Sequence

from fedprivacy.audit.auditor import GATES
from fedprivacy.audit.findings import Gate
from tests.privacy.planted import Plant, audited


def found(plant: Plant, gates: Sequence[str], seed: int) -> list[Gate]:
    """What some gates find while a bug is planted."""
    with plant.plant():
        subject = audited(seed, plant.task, **plant.settings)
        return [GATES[gate](subject) for gate in gates]
