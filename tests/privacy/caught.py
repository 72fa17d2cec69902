"""Whether the gates catch a planted bug, and leave the code as it is alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedprivacy.audit.findings import Gate
from fedprivacy.audit.gates import invariance, ledger, noise, release, replay, sampling
from fedprivacy.audit.gates.audited import Check
from tests.privacy.planted import PLANTS, Plant, audited

GATES: dict[str, Check] = {
    "replay": replay.check,
    "noise": noise.check,
    "sampling": sampling.check,
    "release": release.check,
    "invariance": invariance.check,
    "ledger": ledger.check,
}

STATISTICAL = ("noise", "sampling")
EXACT = tuple(gate for gate in GATES if gate not in STATISTICAL)

SEEDS = (0, 1, 2)
"""Of the quick tests."""


def caught_by(gate: str) -> list[Plant]:
    """The plants that this gate is the surest to catch."""
    return [plant for plant in PLANTS if plant.gates[0] == gate]


def found(plant: Plant, gates: Sequence[str], seed: int) -> list[Gate]:
    """What some gates find while a bug is planted."""
    with plant.plant():
        subject = audited(seed, plant.task, **plant.settings)
        return [GATES[gate](subject) for gate in gates]


def check_caught(plant: Plant, gate: str, seeds: Sequence[int]) -> None:
    """Assert that the gate fails, and says why, for every seed."""
    for seed in seeds:
        (judged,) = found(plant, [gate], seed)
        assert not judged.passed, f"{gate} does not notice, with seed {seed}: {plant.meaning}"
        assert all(reason.endswith(".") for reason in judged.reasons)


def check_quiet(plant: Plant, gates: Sequence[str], seeds: Sequence[int]) -> None:
    """Assert that no gate fails where nothing is wrong."""
    for seed in seeds:
        for judged in found(plant, gates, seed):
            assert judged.passed, f"{judged.name} fails with seed {seed}, {plant.meaning}: {judged.reasons}"
