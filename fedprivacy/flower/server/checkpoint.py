"""Where a run stands after a finished round: everything that the next round depends on, in one file.

The file is written whole or not at all, so a run that is killed at any moment finds the last finished round. It holds
what the server knows anyway: updates that went through a mechanism, and public facts. No pickle: safetensors with JSON
in its header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedprivacy._support.durable import name_durably, write_unnamed
from fedprivacy._support.failpoints import reach
from fedprivacy._support.random_state import RandomState
from fedprivacy.flower.server.strategy_state import StrategyState, pack, unpack
from fedprivacy.runs.folder import RunFolderError

CHECKPOINT = "checkpoint.safetensors"

_VERSION = 1
_FACTS = "fedprivacy-checkpoint"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run after a finished round.

    Attributes:
        run_id: the run's name in its ledger.
        round: the last finished round; 0: none yet.
        earlier_runs: runs that the ledger held before this one.
        arrays: the global model that the next round sends.
        average: of the global models, by parameter name.
        iterates: how many models the average has seen.
        clipping_norms: where adaptive clipping has arrived, by client_id.
        left_out: clients that are not asked any more.
        strategy: what the wrapped strategy remembers.
        random: the states of the global random generators.
    """

    run_id: str
    round: int
    earlier_runs: int
    arrays: Arrays
    average: Arrays
    iterates: int
    clipping_norms: Mapping[str, float]
    left_out: frozenset[str]
    strategy: StrategyState
    random: RandomState


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the folder's checkpoint, whole or not at all; on the disk when this returns."""
    layout, kept = pack(checkpoint.strategy)
    facts = {
        "version": _VERSION,
        "run_id": checkpoint.run_id,
        "round": checkpoint.round,
        "earlier_runs": checkpoint.earlier_runs,
        "arrays": list(checkpoint.arrays),  # the order counts, and safetensors has its own
        "average": list(checkpoint.average),
        "iterates": checkpoint.iterates,
        "clipping_norms": dict(checkpoint.clipping_norms),
        "left_out": sorted(checkpoint.left_out),
        "strategy": layout,
        "random": asdict(checkpoint.random),
    }
    groups = {"arrays": checkpoint.arrays, "average": checkpoint.average, "strategy": kept}
    content = save(
        {
            f"{group}/{name}": array.copy(order="C")
            for group, arrays in groups.items()
            for name, array in arrays.items()
        },
        {_FACTS: json.dumps(facts)},
    )
    written = write_unnamed(folder / CHECKPOINT, content)
    reach("server.checkpoint-written")
    name_durably(written, folder / CHECKPOINT)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read the folder's checkpoint.

    Raises:
        RunFolderError: there is none, or it is not what `save_checkpoint` wrote.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        raise RunFolderError(
            f"'{folder}' holds no {CHECKPOINT}: no run was started there, or it was stopped before its first round. "
            "Start anew in a new folder; what a stopped run has reserved stays in its ledger."
        )
    try:
        facts, arrays = _read(file)
        return _checkpoint(facts, arrays)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"'{file}' is not a checkpoint of this version of fedprivacy, or it is damaged ({error}). Put back an "
            "undamaged copy, or start anew in a new folder; what the run has spent stays in its ledger."
        ) from error


def _read(file: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    with safe_open(file, framework="np") as opened:
        facts = json.loads((opened.metadata() or {})[_FACTS])
        return facts, {name: np.array(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118 - no mapping


def _checkpoint(facts: Mapping[str, Any], arrays: Arrays) -> Checkpoint:
    if facts["version"] != _VERSION:
        raise ValueError(f"its version is {facts['version']}, and this is version {_VERSION}")
    kept = {name.removeprefix("strategy/"): array for name, array in arrays.items() if name.startswith("strategy/")}
    return Checkpoint(
        run_id=facts["run_id"],
        round=facts["round"],
        earlier_runs=facts["earlier_runs"],
        arrays={name: arrays[f"arrays/{name}"] for name in facts["arrays"]},
        average={name: arrays[f"average/{name}"] for name in facts["average"]},
        iterates=facts["iterates"],
        clipping_norms=facts["clipping_norms"],
        left_out=frozenset(facts["left_out"]),
        strategy=unpack(facts["strategy"], kept),
        random=RandomState(**facts["random"]),
    )
