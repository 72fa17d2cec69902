"""What a client keeps from round to round: a model of its own, or a part of one, or its control.

All of it came out of the client's own mechanism and was charged there. It is not sent, all the same: a deployed client
has it in a folder beside its guard, and gives it to no round but those of the run and of the algorithm that it was
trained in, so that no other algorithm can be asked for that would send it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedprivacy._support.durable import PRIVATE, name_durably, sync_folder, write_unnamed

_FACTS = "fedprivacy-kept"
_ROUNDS_KEPT = 2
_SUFFIX = ".safetensors"

MOST_KEPT = 64
"""Files that lie on the disk, over all runs and algorithms."""


class KeptFor(NamedTuple):
    """What a kept vector belongs to."""

    run_id: str
    algorithm: str  # with its settings, see `fedprivacy.training.algorithms.text_of`
    round: int  # that trains


class KeptStore(Protocol):
    """Where a client keeps it."""

    def load(self, whose: KeptFor) -> Tensor | None:
        """What was kept last before a round, shape [d]; None: nothing.

        Raises:
            KeptError: it cannot be read.
        """
        ...

    def keep(self, whose: KeptFor, own: Tensor) -> None:
        """Keep what a round has trained.

        Raises:
            OSError: it cannot be written.
        """
        ...


class KeptError(RuntimeError):
    """What a client kept is damaged."""


@dataclass(frozen=True, slots=True)
class KeptInFolder:
    """On a data owner's disk: one file for a run and an algorithm, with the last two rounds.

    Two, because a server that was stopped may ask for its last round again: that begins where it began before. Of more
    than `MOST_KEPT` files the oldest is deleted, so that no server can fill the disk.
    """

    folder: Path

    def load(self, whose: KeptFor) -> Tensor | None:
        """What an earlier round has left. Raises `KeptError`."""
        earlier = [number for number in self._rounds(whose) if number < whose.round]
        return self._rounds(whose)[max(earlier)] if earlier else None

    def keep(self, whose: KeptFor, own: Tensor) -> None:
        """Write it durably, whole or not at all. Raises OSError, `KeptError`."""
        rounds = {number: kept for number, kept in self._rounds(whose).items() if number < whose.round}
        rounds[whose.round] = own.detach().cpu()
        newest = {str(number): rounds[number].contiguous() for number in sorted(rounds)[-_ROUNDS_KEPT:]}
        self.folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self.folder.parent)
        content = save(newest, {_FACTS: json.dumps({"run_id": whose.run_id, "algorithm": whose.algorithm})})
        file = self._file(whose)
        name_durably(write_unnamed(file, content, PRIVATE), file)
        by_age = sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda kept: kept.stat().st_mtime_ns)
        for old in by_age[:-MOST_KEPT]:
            old.unlink()

    def held(self) -> list[KeptFor]:
        """What there is, each by its last round, the latest written first.

        Raises:
            KeptError: a file cannot be read.
        """
        files = sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        return list(map(_told, files))

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
        named = json.dumps([whose.run_id, whose.algorithm]).encode()
        return self.folder / f"{sha256(named).hexdigest()}{_SUFFIX}"


def _told(file: Path) -> KeptFor:
    """Whose a file says it is, and its last round."""
    try:
        with safe_open(file, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {})[_FACTS])
            return KeptFor(facts["run_id"], facts["algorithm"], max(map(int, opened.keys())))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise KeptError(f"'{file}' cannot be read ({error}); put back an undamaged copy, or delete it.") from error


def kept_beside(guard: Path) -> Path:
    """The folder that belongs to a guard."""
    return guard.with_name(f"{guard.name}.kept")
