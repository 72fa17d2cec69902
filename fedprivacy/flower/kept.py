"""What a client keeps from round to round: a model of its own, or a part of one, or its control.

All of it came out of the client's own mechanism and was charged there. It is not sent, all the same: a deployed client
has it in a folder beside its guard (`KeptInFolder`), and gives it to no round but those of the run and of the algorithm
that it was trained in, so that no other algorithm can be asked for that would send it. What simulated clients keep is
with the simulation (`KeptModels`), which writes it into the run's checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedprivacy._support.durable import PRIVATE, name_durably, sync_folder, write_unnamed
from fedprivacy.tasks import Task

_FACTS = "fedprivacy-kept"
_IN_STATE, _STATE_FACTS = "fedprivacy.kept", "fedprivacy.kept-for"
_ROUNDS_KEPT = 2
_SUFFIX = ".safetensors"

MOST_RUNS = 64
"""Maximum number of runs whose models are kept; otherwise a server could fill the disk."""

MOST_OF_A_RUN = 4
"""Maximum number of files of one run, one for each algorithm; the oldest gives way."""


class KeptFor(NamedTuple):
    """What a kept vector belongs to."""

    run_id: str
    algorithm: str  # with its settings, see `fedprivacy.training.algorithms.text_of`
    round: int  # that trains
    task: str = ""  # dataset and name; a simulation has one alone


class KeptError(RuntimeError):
    """What a client kept is damaged, or fills its place."""


class _KeptFile(NamedTuple):
    """One file, and what it says of itself; of one that cannot be read, its name stands for the run."""

    path: Path
    run_id: str
    written: int  # its place in the order of writing: a clock may be set back


@dataclass(frozen=True, slots=True)
class KeptInFolder:
    """On a data owner's disk: one file for a run, a task and an algorithm, with the last two rounds.

    Two, because a server that was stopped may ask for its last round again: that begins where it began before. No file
    gives way to another run's: what a finished run has left is the data owner's, until the data owner deletes it.
    """

    folder: Path

    def load(self, whose: KeptFor) -> Tensor | None:
        """What was kept last before a round, shape [d]; None: nothing.

        Raises:
            KeptError: it cannot be read, or there will be no room to keep what the round trains.
        """
        if not self._file(whose).exists():
            self._check_room(whose)
            return None
        earlier = {number: kept for number, kept in self._rounds(whose).items() if number < whose.round}
        return earlier[max(earlier)] if earlier else None

    def keep(self, whose: KeptFor, own: Tensor) -> None:
        """Write it durably, whole or not at all. Raises OSError, `KeptError`."""
        rounds = {number: kept for number, kept in self._rounds(whose).items() if number < whose.round}
        rounds[whose.round] = own.detach().cpu()
        newest = {str(number): rounds[number].contiguous() for number in sorted(rounds)[-_ROUNDS_KEPT:]}
        self.folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self.folder.parent)
        file, others = self._file(whose), self._files()
        written = 1 + max((kept.written for kept in others), default=0)
        facts = {"run_id": whose.run_id, "algorithm": whose.algorithm, "task": whose.task, "written": written}
        name_durably(write_unnamed(file, save(newest, {_FACTS: json.dumps(facts)}), PRIVATE), file)
        of_run = [kept.path for kept in others if kept.run_id == whose.run_id and kept.path != file]
        for first in of_run[: -MOST_OF_A_RUN + 1]:
            first.unlink()

    def held(self) -> list[KeptFor]:
        """What there is, each by its last round, the latest written first.

        Raises:
            KeptError: a file cannot be read.
        """
        return [_told(kept.path) for kept in reversed(self._files())]

    def _check_room(self, whose: KeptFor) -> None:
        runs = {kept.run_id for kept in self._files()}
        if whose.run_id not in runs and len(runs) >= MOST_RUNS:
            raise KeptError(
                f"'{self.folder}' holds models of {len(runs)} runs, and this client keeps no more. Move those that are "
                "needed elsewhere ('fedprivacy guard model' writes them), and delete the files."
            )

    def _files(self) -> list[_KeptFile]:
        """All files, in the order in which they were written."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            try:
                facts = _facts(path)
                found.append(_KeptFile(path, facts["run_id"], facts.get("written", 0)))
            except KeptError:
                found.append(_KeptFile(path, path.name, 0))
        return sorted(found, key=lambda kept: (kept.written, kept.path))

    def _rounds(self, whose: KeptFor) -> dict[int, Tensor]:
        """What is kept, by round."""
        file = self._file(whose)
        if not file.exists():
            return {}
        try:
            with safe_open(file, framework="pt") as opened:
                return {int(number): opened.get_tensor(number) for number in opened.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError, ValueError) as error:
            raise KeptError(
                f"'{file}', this client's own part of run '{whose.run_id}', cannot be read ({error}). Put back an "
                "undamaged copy; or delete it, and the client begins again from the global model."
            ) from error

    def _file(self, whose: KeptFor) -> Path:
        """Its name is a hash: a server chooses no part of it."""
        named = json.dumps([whose.run_id, whose.algorithm, whose.task]).encode()
        return self.folder / f"{sha256(named).hexdigest()}{_SUFFIX}"


def _facts(file: Path) -> dict[str, Any]:
    """What a file says of itself, with its last `round`; raises `KeptError`."""
    try:
        with safe_open(file, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {})[_FACTS])
            named = {"run_id": facts["run_id"], "algorithm": facts["algorithm"], "task": facts.get("task", "")}
            return {**facts, **named, "round": max(map(int, opened.keys()))}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise KeptError(f"'{file}' cannot be read ({error}); put back an undamaged copy, or delete it.") from error


def _told(file: Path) -> KeptFor:
    """Whose a file says it is, and its last round."""
    facts = _facts(file)
    return KeptFor(facts["run_id"], facts["algorithm"], facts["round"], facts["task"])


def kept_beside(guard: Path) -> Path:
    """The folder that belongs to a guard."""
    return guard.with_name(f"{guard.name}.kept")


def kept_task(task: Task) -> str:
    """How a task is named in what is kept: by its dataset, and its own name."""
    return f"{task.dataset}/{task.name}"


@dataclass(frozen=True, slots=True)
class KeptInState:
    """In the state that Flower keeps for a simulated client, from which `KeptModels` takes it."""

    state: RecordDict

    def load(self, whose: KeptFor) -> Tensor | None:
        """What was kept last for the algorithm."""
        facts, arrays = self.state.get(_STATE_FACTS), self.state.get(_IN_STATE)
        if not isinstance(facts, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            return None
        return torch.from_numpy(arrays["own"].numpy()) if facts["algorithm"] == whose.algorithm else None

    def keep(self, whose: KeptFor, own: Tensor) -> None:
        """Keep it in the place of what was there."""
        self.state[_STATE_FACTS] = ConfigRecord({"algorithm": whose.algorithm})
        self.state[_IN_STATE] = ArrayRecord({"own": Array(own.cpu().numpy())})


KeptStore = KeptInFolder | KeptInState
"""Where a client keeps what is its own."""


@dataclass(slots=True)
class KeptModels:
    """What all clients of a simulation keep.

    Attributes:
        algorithm: in whose rounds, with its settings.
        own: vectors of shape [d], by client_id.
    """

    algorithm: str = ""
    own: dict[str, Tensor] = field(default_factory=dict)

    def of(self, algorithm: str) -> dict[str, Tensor]:
        """What is kept for an algorithm; where another one was at work before, nothing."""
        if algorithm != self.algorithm:
            self.algorithm, self.own = algorithm, {}
        return self.own

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, as a checkpoint holds it."""
        return {client_id: own.numpy() for client_id, own in self.own.items()}

    def restore(self, algorithm: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on with what a checkpoint holds."""
        self.algorithm = algorithm
        self.own = {client_id: torch.from_numpy(own) for client_id, own in arrays.items()}

    def lend(self, client_id: str, state: RecordDict) -> None:
        """Let a client that gets messages find what it kept."""
        if client_id in self.own:
            KeptInState(state).keep(KeptFor("", self.algorithm, 0), self.own[client_id])

    def take(self, client_id: str, state: RecordDict) -> None:
        """Take in what it has kept since."""
        facts = state.get(_STATE_FACTS)
        if isinstance(facts, ConfigRecord):
            algorithm = str(facts["algorithm"])
            own = KeptInState(state).load(KeptFor("", algorithm, 0))
            if own is not None:
                self.of(algorithm)[client_id] = own
