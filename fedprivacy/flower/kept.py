"""The vectors that a client keeps from round to round: a model of its own, or a part of one, or its control.

All of them came out of the client's own mechanism and were charged there. Still they are not sent: a deployed client
stores them in a folder beside its guard (`KeptInFolder`), and uses them only in rounds of the run and the algorithm in
which they were trained, so that a server cannot get them by asking for another algorithm that would send them. In a
simulation they are in `KeptModels`, which goes into the run's checkpoints. Put into the global model that a run came
to, the client's last vector is the data owner's own model (`own_model`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedprivacy._support.durable import (
    NO_ROOM,
    Room,
    free_bytes,
    name_durably,
    room_in,
    size_text,
    sync_folder,
    write_into,
)
from fedprivacy.gradients import flat_parameters, trainable_parameters
from fedprivacy.tasks import Task
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.training.algorithms import algorithm_of
from fedprivacy.training.local_round import personal_mask

_FACTS = "fedprivacy-kept"
_IN_STATE, _STATE_FACTS = "fedprivacy.kept", "fedprivacy.kept-for"
_ROUNDS_KEPT = 2
_MOST_FACTS = 2**16  # bytes of a file besides its vectors
_SUFFIX = ".safetensors"

MOST_RUNS = 64
"""Maximum number of runs whose models are kept; otherwise a server could fill the disk."""

MOST_OF_A_RUN = 4
"""Maximum number of files of one run, one for each algorithm; the oldest gives way."""


class KeptFor(NamedTuple):
    """The run, algorithm, round and task that a kept vector belongs to."""

    run_id: str
    algorithm: str  # with its settings, see `fedprivacy.training.algorithms.text_of`
    round: int  # the round that trains it
    task: str = ""  # dataset and name; a simulation has one alone


class KeptError(RuntimeError):
    """A kept file is damaged, or there is no room for another run's."""


class _KeptFile(NamedTuple):
    """One file with the facts in its header; for an unreadable file, its name stands for the run."""

    path: Path
    run_id: str
    written: int  # its place in the order of writing: a clock may be set back


@dataclass(frozen=True, slots=True)
class KeptInFolder:
    """Storage on a data owner's disk: one file for a run, a task and an algorithm, with the last two rounds.

    Two, because a server that was stopped may ask for its last round again, which then begins where it began before.
    The file of a finished run is never deleted for another run: it belongs to the data owner, who may delete it.
    """

    folder: Path

    def load(self, kept_for: KeptFor) -> Tensor | None:
        """Return the vector kept last before a round, shape [d]; None: nothing.

        Raises:
            KeptError: the file cannot be read, or there will be no room for the round's new vector.
        """
        if not self._file(kept_for).exists():
            self._check_room(kept_for)
            return None
        earlier = {number: kept for number, kept in self._rounds(kept_for).items() if number < kept_for.round}
        return earlier[max(earlier)] if earlier else None

    @contextmanager
    def room(self, size: int) -> Iterator[Room]:
        """Hold room for a vector of `size` bytes, with the one before it, until `keep` has written it.

        Raises:
            KeptError: there is no room.
            OSError: the folder cannot be written.
        """
        self._make()
        needed = _ROUNDS_KEPT * size + _MOST_FACTS
        with ExitStack() as held:
            try:
                room = held.enter_context(room_in(self.folder, needed))
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise KeptError(
                    f"'{self.folder}' needs {size_text(needed)} for the vector that this client keeps of a round, and "
                    f"{size_text(free_bytes(self.folder))} are free. Nothing was charged. Make room on its disk."
                ) from error
            yield room

    def _make(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self.folder.parent)

    def keep(self, kept_for: KeptFor, own: Tensor, room: Room | None = None) -> None:
        """Write the vector durably, whole or not at all, into `room` if it is held. Raises OSError, `KeptError`."""
        rounds = {number: kept for number, kept in self._rounds(kept_for).items() if number < kept_for.round}
        rounds[kept_for.round] = own.detach().cpu()
        newest = {str(number): rounds[number].contiguous() for number in sorted(rounds)[-_ROUNDS_KEPT:]}
        self._make()
        file, others = self._file(kept_for), self._files()
        written = 1 + max((kept.written for kept in others), default=0)
        facts = {"run_id": kept_for.run_id, "algorithm": kept_for.algorithm, "task": kept_for.task, "written": written}
        name_durably(write_into(room, file, save(newest, {_FACTS: json.dumps(facts)})), file)
        of_run = [kept.path for kept in others if kept.run_id == kept_for.run_id and kept.path != file]
        for first in of_run[: -MOST_OF_A_RUN + 1]:
            first.unlink()

    def kept_vectors(self) -> list[KeptFor]:
        """List the kept vectors, one for each file with its last round, the latest written first.

        Raises:
            KeptError: a file cannot be read.
        """
        newest_first = (_facts(kept.path) for kept in reversed(self._files()))
        return [KeptFor(**{name: facts[name] for name in KeptFor._fields}) for facts in newest_first]

    def _check_room(self, kept_for: KeptFor) -> None:
        runs = {kept.run_id for kept in self._files()}
        if kept_for.run_id not in runs and len(runs) >= MOST_RUNS:
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
                found.append(_KeptFile(path, facts["run_id"], facts["written"]))
            except KeptError:
                found.append(_KeptFile(path, path.name, 0))
        return sorted(found, key=lambda kept: (kept.written, kept.path))

    def _rounds(self, kept_for: KeptFor) -> dict[int, Tensor]:
        """Read the kept vectors of a file, by round."""
        file = self._file(kept_for)
        if not file.exists():
            return {}
        try:
            with safe_open(file, framework="pt") as opened:
                return {int(number): opened.get_tensor(number) for number in opened.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError, ValueError) as error:
            raise KeptError(
                f"'{file}', this client's own part of run '{kept_for.run_id}', cannot be read ({error}). Put back an "
                "undamaged copy; or delete it, and the client begins again from the global model."
            ) from error

    def _file(self, kept_for: KeptFor) -> Path:
        """The path of the file. Its name is a hash, so that a server chooses no part of it."""
        named = json.dumps([kept_for.run_id, kept_for.algorithm, kept_for.task]).encode()
        return self.folder / f"{sha256(named).hexdigest()}{_SUFFIX}"


def _facts(file: Path) -> dict[str, Any]:
    """Read the facts in a file's header, with its last `round`; raises `KeptError`."""
    try:
        with safe_open(file, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {})[_FACTS])
            named = {name: facts[name] for name in ("run_id", "algorithm", "task", "written")}
            return named | {"round": max(map(int, opened.keys()))}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise KeptError(f"'{file}' cannot be read ({error}); put back an undamaged copy, or delete it.") from error


def kept_beside(guard: Path) -> Path:
    """The folder that belongs to a guard."""
    return guard.with_name(f"{guard.name}.kept")


def kept_task(task: Task) -> str:
    """The name of a task in kept files: its dataset, and its own name."""
    return f"{task.dataset}/{task.name}"


@dataclass(frozen=True, slots=True)
class KeptInState:
    """Storage in the state that Flower keeps for a simulated client, from which `KeptModels` takes it."""

    state: RecordDict

    def load(self, kept_for: KeptFor) -> Tensor | None:
        """Return the vector kept last for the algorithm, shape [d]; None: nothing."""
        facts, arrays = self.state.get(_STATE_FACTS), self.state.get(_IN_STATE)
        if not isinstance(facts, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            return None
        return torch.from_numpy(arrays["own"].numpy()) if facts["algorithm"] == kept_for.algorithm else None

    def keep(self, kept_for: KeptFor, own: Tensor, room: Room | None = None) -> None:
        """Replace the kept vector; in memory, no room is held."""
        self.state[_STATE_FACTS] = ConfigRecord({"algorithm": kept_for.algorithm})
        self.state[_IN_STATE] = ArrayRecord({"own": Array(own.cpu().numpy())})


KeptStore = KeptInFolder | KeptInState
"""Storage of a client's own vectors."""


@dataclass(slots=True)
class KeptModels:
    """The kept vectors of all clients of a simulation.

    Attributes:
        algorithm: the algorithm that they belong to, with its settings.
        own: vectors of shape [d], by client_id.
    """

    algorithm: str = ""
    own: dict[str, Tensor] = field(default_factory=dict)

    def of(self, algorithm: str) -> dict[str, Tensor]:
        """Return the vectors kept for an algorithm; those of any other algorithm are dropped."""
        if algorithm != self.algorithm:
            self.algorithm, self.own = algorithm, {}
        return self.own

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All kept vectors, as a checkpoint holds them."""
        return {client_id: own.numpy() for client_id, own in self.own.items()}

    def restore(self, algorithm: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the kept vectors from a checkpoint."""
        self.algorithm = algorithm
        self.own = {client_id: torch.from_numpy(own) for client_id, own in arrays.items()}

    def lend(self, client_id: str, state: RecordDict) -> None:
        """Put a client's kept vector into its state, for a round by messages."""
        if client_id in self.own:
            KeptInState(state).keep(KeptFor("", self.algorithm, 0), self.own[client_id])

    def take(self, client_id: str, state: RecordDict) -> None:
        """Take the vector that a client has kept since out of its state."""
        facts = state.get(_STATE_FACTS)
        if isinstance(facts, ConfigRecord):
            algorithm = str(facts["algorithm"])
            own = KeptInState(state).load(KeptFor("", algorithm, 0))
            if own is not None:
                self.of(algorithm)[client_id] = own


class NoOwnModelError(ValueError):
    """There is no such model; the text says why, and what to do."""


def own_model(guard: Path, task: OpenedTask, global_model: Path, run_id: str | None = None) -> tuple[KeptFor, bytes]:
    """The model that a client uses after a run. Nothing is charged or changed.

    Args:
        guard: the client's guard, beside which its own vectors are stored.
        task: the task that the run trained.
        global_model: the run's `model.safetensors`, from the operator of the run.
        run_id: which run; None: the one that kept something last.

    Returns:
        Run, algorithm and last round; and the content of a file like the global model's.

    Raises:
        NoOwnModelError: the run left no model of the client's own; or the global model or the task is another one's.
        KeptError: a file beside the guard is damaged.
    """
    store = KeptInFolder(kept_beside(guard))
    kept_for = _choose([kept for kept in store.kept_vectors() if kept.task == kept_task(task)], guard, run_id)
    algorithm, model = algorithm_of(kept_for.algorithm), task.model()
    numbers = _load(model, global_model)
    shared, own = flat_parameters(model), store.load(kept_for._replace(round=kept_for.round + 1))
    if own is None or own.shape != shared.shape:
        raise NoOwnModelError(
            f"What is kept of run '{kept_for.run_id}' is of another model than the task's; name its own."
        )
    used = algorithm.model(shared, own, personal_mask(algorithm, model))
    nn.utils.vector_to_parameters(used, [p for p in model.parameters() if p.requires_grad])
    return kept_for, save({name: p.contiguous() for name, p in trainable_parameters(model).items()}, numbers)


def _choose(held: list[KeptFor], guard: Path, run_id: str | None) -> KeptFor:
    models = [kept_for for kept_for in held if algorithm_of(kept_for.algorithm).personal]
    chosen = [kept_for for kept_for in models if run_id in {None, kept_for.run_id}]
    if chosen:
        return chosen[0]
    runs = ", ".join(dict.fromkeys(f"'{kept_for.run_id}'" for kept_for in models))
    of_run = "any run" if run_id is None else f"run '{run_id}'"
    raise NoOwnModelError(
        f"Beside '{guard}' lies no model of this task and {of_run}; "
        + (f"there are those of {runs}." if runs else "runs leave one with an algorithm such as mr-mtl or fedper.")
    )


def _load(model: nn.Module, file: Path) -> dict[str, str]:
    """Load the global model's trained parameters; what the file says of standardised inputs."""
    try:
        with safe_open(file, framework="pt") as opened:
            found = {name: opened.get_tensor(name) for name in trainable_parameters(model)}
            model.load_state_dict(found, strict=False)
            return opened.metadata() or {}
    except (SafetensorError, OSError, RuntimeError) as error:
        raise NoOwnModelError(
            f"'{file}' is not the global model of such a run ({error}); name its model.safetensors."
        ) from error
