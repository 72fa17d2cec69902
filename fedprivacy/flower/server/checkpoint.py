"""The state of a run between two rounds, and its checkpoint: everything that the next round depends on, in one file.

`GlobalModel` is the model that the next round sends, with its moving average; `ServerControl` the control vector that
an algorithm's server half sends with it. A `Checkpoint` has both, and the state of strategy, callbacks and randomness.

The file is written whole or not at all, so a run that is killed at any moment finds the last finished round. It holds
only facts that the server knows anyway: updates that went through a mechanism, and public facts. There is no pickle:
the format is safetensors with JSON in its header.

Flower's strategies have no interface for their state: they keep momentum and moments in plain attributes. So the
attributes of the kinds of `StateValue` are the state, and callables and everything else are left alone. A strategy that
keeps its state in another way defines `state_dict()` and `load_state_dict()`, which give and take a dictionary of the
same kinds. The same holds for callbacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from fedprivacy._support.durable import name_durably, write_unnamed
from fedprivacy._support.failpoints import reach
from fedprivacy._support.random_state import RandomState
from fedprivacy.runs.records.folder import RunFolderError, begun_only, writing
from fedprivacy.training.algorithms import RoundTurnout
from fedprivacy.training.algorithms.algorithm import ServerHalf
from fedprivacy.training.local_round import CONTROL
from fedprivacy.training.optimizers import MovingAverage

CHECKPOINT = "checkpoint.safetensors"

_VERSION = 1
_FACTS = "fedprivacy-checkpoint"
_AS_THEY_ARE = (
    *("run_id", "round", "earlier_runs", "iterates"),
    *("clipping_norms", "clock", "user_level_clipping_norm", "keeps"),
)
"""Fields of a checkpoint that JSON has as they are."""

Arrays = Mapping[str, NDArray[Any]]

StateValue = (
    bool | int | float | str | np.generic | NDArray[Any] | list[NDArray[Any]] | dict[str, NDArray[Any]] | ArrayRecord
) | None
State = Mapping[str, StateValue]
"""State of a strategy or a callback, by attribute name."""

Layout = dict[str, tuple[str, Any]]
"""Kind and JSON part of each value of a state, by attribute name; its arrays are kept apart."""


@dataclass(slots=True)
class ServerControl:
    """The control of a run, which every averaged round moves.

    Attributes:
        value: the control that the next round sends, shape [d]; None: nothing yet.
        weights: public weights of all clients whose updates were averaged in any round, by client_id.
    """

    value: Tensor | None = None
    weights: dict[str, float] = field(default_factory=dict)

    def advance(  # noqa: PLR0917 - what a round is made of
        self,
        half: ServerHalf,
        start: Tensor,
        mean: Tensor,
        weights: Mapping[str, float],
        steps: int,
        learning_rate: float,
    ) -> None:
        """Advance the control by one round.

        Args:
            half: the server half of the round's algorithm.
            start: the round's model, shape [d].
            mean: the average of the updates, shape [d].
            weights: weights of the clients in the average, by client_id.
            steps: local steps of each client.
            learning_rate: learning rate of these steps.
        """
        self.weights |= weights
        share = sum(weights.values()) / sum(self.weights.values())
        turnout = RoundTurnout(share, steps, learning_rate)
        before = None if self.value is None else self.value.double()
        self.value = half.advance(before, start.double(), mean.double(), turnout).float()

    @property
    def record(self) -> dict[str, ArrayRecord]:
        return {} if self.value is None else {CONTROL: ArrayRecord({CONTROL: Array(self.value.numpy())})}

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The array part of the state; JSON can hold the weights."""
        return {} if self.value is None else {CONTROL: self.value.numpy()}

    @classmethod
    def of(cls, weights: Mapping[str, float], arrays: Arrays) -> Self:
        """Restore the state from its `weights` and `arrays`."""
        return cls(torch.from_numpy(arrays[CONTROL]) if arrays else None, dict(weights))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run after a finished round.

    Attributes:
        run_id: the run's name in its ledger.
        round: the last finished round; 0: none yet.
        earlier_runs: runs that the ledger held before this one.
        arrays: the global model that the next round sends.
        average, iterates: the moving average of the global models, and how many of them it has seen.
        clipping_norms: the current norms of adaptive clipping, by client_id.
        left_out: clients that are not asked any more.
        clock: simulated seconds since the run began; 0 if the run has no such clock.
        strategy, random: the state of the wrapped strategy and of the global random generators.
        user_level_clipping_norm: the current norm for clipping whole updates; None: there is none.
        control: the state of the algorithm's server half.
        kept, keeps: the vectors that simulated clients keep, by client_id, and the algorithm that they belong to.
        callbacks: the class name and the state of each callback.
    """

    run_id: str
    round: int
    earlier_runs: int
    arrays: Arrays
    average: Arrays
    iterates: int
    clipping_norms: Mapping[str, float]
    left_out: frozenset[str]
    clock: float
    strategy: State
    random: RandomState
    user_level_clipping_norm: float | None = None
    control: ServerControl = field(default_factory=ServerControl)
    kept: Arrays = field(default_factory=dict)
    keeps: str = ""
    callbacks: Sequence[tuple[str, State]] = ()

    @property
    def callback_names(self) -> list[str]:
        return [name for name, _ in self.callbacks]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the folder's checkpoint, whole or not at all; it is on the disk when this returns.

    Raises:
        RunFolderError: the checkpoint cannot be written; the previous one is still there.
    """
    layout, kept = pack(checkpoint.strategy)
    callbacks = [(name, *pack(state)) for name, state in checkpoint.callbacks]
    facts: dict[str, Any] = {"version": _VERSION} | {name: getattr(checkpoint, name) for name in _AS_THEY_ARE}
    facts |= {
        "arrays": list(checkpoint.arrays),  # the order counts, and safetensors has its own
        "average": list(checkpoint.average),
        "left_out": sorted(checkpoint.left_out),
        "strategy": layout,
        "random": asdict(checkpoint.random),
        "control": checkpoint.control.weights,
        "callbacks": [(name, layout) for name, layout, _ in callbacks],
    }
    groups = {"arrays": checkpoint.arrays, "average": checkpoint.average, "strategy": kept}
    groups |= {"control": checkpoint.control.arrays, "kept": checkpoint.kept}
    groups |= {f"callbacks/{number}": arrays for number, (_, _, arrays) in enumerate(callbacks)}
    content = save(
        {
            f"{group}/{name}": np.asarray(array, order="C")
            for group, arrays in groups.items()
            for name, array in arrays.items()
        },
        {_FACTS: json.dumps(facts)},
    )
    with writing(folder):
        written = write_unnamed(folder / CHECKPOINT, content)
        reach("server.checkpoint-written")
        name_durably(written, folder / CHECKPOINT)


def checkpoint_to_go_on(folder: Path) -> Checkpoint | None:
    """Return the folder's checkpoint; None if the run was stopped before any checkpoint or grant, and begins again.

    Raises what `load_checkpoint` does.
    """
    return None if begun_only(folder) and not (folder / CHECKPOINT).exists() else load_checkpoint(folder)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read the folder's checkpoint. Raises RunFolderError: there is none, or it is not what `save_checkpoint` wrote."""
    file = folder / CHECKPOINT
    if not file.exists():
        raise RunFolderError(
            f"'{folder}' holds no {CHECKPOINT}: no run was started there, or it was stopped before its first round. "
            "Start anew in a new folder; what a stopped run has reserved stays in its ledger."
        )
    try:
        with safe_open(file, framework="np") as opened:
            facts = json.loads((opened.metadata() or {})[_FACTS])
            arrays = {name: np.array(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118 - no mapping
        return _checkpoint(facts, arrays)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"'{file}' is not a checkpoint of this version of fedprivacy, or it is damaged ({error}). Put back an "
            "undamaged copy, or start anew in a new folder; what the run has spent stays in its ledger."
        ) from error


def _checkpoint(facts: Mapping[str, Any], arrays: Arrays) -> Checkpoint:
    if facts["version"] != _VERSION:
        raise ValueError(f"its version is {facts['version']}, and this is version {_VERSION}")
    kept, control, own = (_group_arrays(group, arrays) for group in ("strategy", "control", "kept"))
    return Checkpoint(
        **{name: facts[name] for name in _AS_THEY_ARE},
        arrays={name: arrays[f"arrays/{name}"] for name in facts["arrays"]},
        average={name: arrays[f"average/{name}"] for name in facts["average"]},
        left_out=frozenset(facts["left_out"]),
        strategy=unpack(facts["strategy"], kept),
        random=RandomState(**facts["random"]),
        control=ServerControl.of(facts["control"], control),
        kept=own,
        callbacks=tuple(
            (name, unpack(layout, _group_arrays(f"callbacks/{number}", arrays)))
            for number, (name, layout) in enumerate(facts["callbacks"])
        ),
    )


def _group_arrays(group: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of a group, by their own names."""
    prefix = f"{group}/"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def read_state(keeper: object) -> State:
    """Return the current state of a strategy or a callback."""
    if _speaks_for_itself(keeper):
        return dict(keeper.state_dict())  # type: ignore[attr-defined]
    return {name: value for name, value in vars(keeper).items() if _can_be_kept(value)}


def write_state(keeper: object, state: State) -> None:
    """Restore the state of a strategy or a callback."""
    if _speaks_for_itself(keeper):
        keeper.load_state_dict(dict(state))  # type: ignore[attr-defined]
        return
    for name, value in state.items():
        setattr(keeper, name, value)


def pack(state: State) -> tuple[Layout, dict[str, NDArray[Any]]]:
    """Separate a state into its layout, which JSON can hold, and its arrays."""
    layout: Layout = {}
    arrays: dict[str, NDArray[Any]] = {}
    for number, (name, value) in enumerate(state.items()):
        kind, held, members = _taken_apart(value)
        layout[name] = (kind, held)
        arrays |= {f"{number}.{index}": member for index, member in enumerate(members)}
    return layout, arrays


def unpack(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> State:
    """Put together a state that `pack` has separated.

    Raises:
        KeyError: the layout names an unknown kind or a missing array.
    """
    state: dict[str, StateValue] = {}
    for number, (name, (kind, held)) in enumerate(layout.items()):
        members = takewhile(arrays.__contains__, (f"{number}.{index}" for index in count()))
        state[name] = _put_together(kind, held, [arrays[member] for member in members])
    return state


def unkept_attributes(keeper: object) -> list[str]:
    """Names of attributes that no checkpoint keeps, though they may be state: not of a kept kind, and not callable."""
    if _speaks_for_itself(keeper):
        return []
    return sorted(name for name, value in vars(keeper).items() if not _can_be_kept(value) and not callable(value))


def _speaks_for_itself(keeper: object) -> bool:
    return hasattr(keeper, "state_dict") and hasattr(keeper, "load_state_dict")


def _can_be_kept(value: object) -> bool:
    match value:
        case None | bool() | int() | float() | str() | ArrayRecord():
            return True
        case np.generic() | np.ndarray():
            return value.dtype.kind in "biuf"
        case list():
            return all(isinstance(member, np.ndarray) and _can_be_kept(member) for member in value)
        case dict():
            return all(
                isinstance(name, str) and isinstance(v, np.ndarray) and _can_be_kept(v) for name, v in value.items()
            )
    return False


def _taken_apart(value: StateValue) -> tuple[str, Any, list[NDArray[Any]]]:
    """The kind of a value, its JSON part, and its arrays in order."""
    match value:
        case np.generic():  # before float: numpy's float64 is one, and counts with other types in its own way
            return "scalar", None, [np.asarray(value)]
        case np.ndarray():
            return "array", None, [value]
        case list():
            return "list", None, value
        case ArrayRecord():
            return "record", list(value), value.to_numpy_ndarrays()
        case dict():
            return "dict", list(value), list(value.values())
    return "plain", value, []


def _put_together(kind: str, held: Any, members: list[NDArray[Any]]) -> StateValue:
    match kind:
        case "plain":
            return held  # type: ignore[no-any-return]
        case "scalar":
            return members[0][()]
        case "array":
            return members[0]
        case "list":
            return members
        case "record":
            return ArrayRecord({name: Array(member) for name, member in zip(held, members, strict=True)})
        case "dict":
            return dict(zip(held, members, strict=True))
    raise KeyError(kind)


@dataclass
class GlobalModel:
    """The model that the next round sends, and the moving average of the models so far, which is evaluated and kept."""

    arrays: ArrayRecord
    average: MovingAverage

    @classmethod
    def new(cls, arrays: ArrayRecord, decay: float) -> Self:
        """The model of a run that begins, at these arrays."""
        average = MovingAverage(decay)
        average.begin(arrays.to_torch_state_dict())
        return cls(arrays, average)

    @classmethod
    def restored(cls, checkpoint: Checkpoint, decay: float) -> Self:
        """The model of a resumed run, as it was when the checkpoint was taken."""
        kept = {name: torch.tensor(value) for name, value in checkpoint.average.items()}
        average = MovingAverage(decay, kept, checkpoint.iterates)
        return cls(ArrayRecord({name: Array(value) for name, value in checkpoint.arrays.items()}), average)

    @property
    def kept(self) -> ArrayRecord:
        """The average as it is now."""
        return as_arrays(self.average.average)

    def advance(self, arrays: ArrayRecord) -> None:
        """Replace the model by the next iterate, and add that to the average."""
        self.arrays = arrays
        self.average.add(arrays.to_torch_state_dict())


def as_arrays(parameters: Mapping[str, Tensor]) -> ArrayRecord:
    """Parameters as a Flower record."""
    return ArrayRecord({name: Array(parameter.numpy()) for name, parameter in parameters.items()})


def flat(arrays: Mapping[str, Array], names: tuple[str, ...]) -> Tensor:
    """A model's named parameters as one vector of float64, shape [d]."""
    return torch.from_numpy(np.concatenate([arrays[name].numpy().ravel().astype(np.float64) for name in names]))


def shaped_as(model: Mapping[str, Array], vector: NDArray[np.float64], names: Sequence[str]) -> ArrayRecord:
    """A vector of the named parameters, in the shapes and types of the model's, which may stand in any order."""
    own = {name: model[name].numpy() for name in names}
    parts = np.split(vector, np.cumsum([values.size for values in own.values()])[:-1])
    shaped = {n: Array(part.reshape(own[n].shape).astype(own[n].dtype)) for n, part in zip(own, parts, strict=True)}
    return ArrayRecord({name: shaped[name] for name in model})
