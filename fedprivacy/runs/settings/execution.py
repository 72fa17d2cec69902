"""Settings of a run's execution and records: its ledger, files, device and timeouts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedprivacy._support.settings import LEAST, SettingsGroup, is_printable, setting
from fedprivacy.accounting import DEFAULT_FILTER, FILTERS
from fedprivacy.accounting.filters import FILTER_OF_MIXTURES
from fedprivacy.runs.settings.device import AUTOCASTS, check_device
from fedprivacy.trackers import TRACKERS, check_trackers

LEDGER = "ledger.db"
"""Name of a simulation's own ledger in its folder."""


def _check_ledger(named: str) -> None:
    from fedprivacy.ledger import ledger_url  # SQLAlchemy: half a second that `--help` need not wait for

    ledger_url(named)


def _check_name(named: str) -> None:
    if not re.fullmatch(r"[\w][\w.+-]*", named):
        raise ValueError(f"name is '{named}'; give a folder's name of letters, digits and - . + _.")


def _check_words(key: str, words: str) -> None:
    if not is_printable(words):
        raise ValueError(f"{key} holds characters that cannot be printed; take them out.")


NAMING = ("name", "tags", "note")
"""Settings that name a run, and change nothing of it."""

PLACES = ("out", "resume")
"""Settings of the folder that a run writes to."""


def differing_settings(runs: Sequence[Mapping[str, object]], *, ignored: Collection[str] = PLACES) -> list[str]:
    """List the keys of the settings in which runs differ; a run without a key differs from one with a value.

    >>> differing_settings([{"epsilon": 1.0, "out": "a"}, {"epsilon": 3.0, "out": "b"}])
    ['epsilon']
    """
    keys = dict.fromkeys(key for settings in runs for key in settings if key not in ignored)
    return [key for key in keys if any(settings.get(key) != runs[0].get(key) for settings in runs)]


@dataclass(frozen=True, kw_only=True)
class ExecutionSettings(
    SettingsGroup, question="Where does it run, and what is kept?", basic=("seed", "device", "out", "resume")
):
    """The books, the randomness, the device, the files and how long to wait for clients."""

    filter: str = setting(
        f"How the budget is enforced: {', '.join(FILTERS)}. Left open: as on the ledger; a new dataset's is "
        f"{DEFAULT_FILTER}, or {FILTER_OF_MIXTURES} where there is a spend.",
        "",
        choices=FILTERS,
    )
    seed: int | None = setting(
        "Makes a simulation repeatable; built-in tasks are simulated with 0. A deployed client refuses one.",
        None,
        bounds=(0, 2**63 - 1),
    )
    device: str = setting(
        "auto (shards spread over the GPUs that are there), cpu, cuda or cuda:N.", "auto", check=check_device
    )
    autocast: str = setting(
        "Type of activations in private training: float32, or bfloat16, which is faster on GPUs. A record's gradient "
        "is clipped after it is rounded, so the guarantee is the same. A deployed client sets its own.",
        "float32",
        choices=AUTOCASTS,
    )
    out: str = setting("Folder for the results.", "")
    name: str = setting("Beginning of the name of the run's folder. Left open: the task's.", "", check=_check_name)
    tags: str = setting(
        "Words to find the run by, separated by commas: 'fedprivacy runs --tag'.",
        "",
        check=partial(_check_words, "tags"),
    )
    note: str = setting("The purpose of the run, in words for people.", "", check=partial(_check_words, "note"))
    ledger: str = setting(
        "Ledger to share over runs: an SQLite file, or postgresql+psycopg://user@host/name; left open: a simulation "
        "keeps its own in out.",
        "",
        check=_check_ledger,
    )
    signing_key: str = setting(
        "Ed25519 key, in PEM, that signs grants and the ledger's heads; made where there is none. Left open: a "
        "deployment's is ~/.fedprivacy/signing.key.",
        "",
    )
    trackers: str = setting(
        f"Trackers told of every round, separated by commas: {', '.join(TRACKERS)} (offline). Each is an extra: "
        "pip install 'fedprivacy[tensorboard]'.",
        "",
        check=check_trackers,
    )
    questions: str = setting(
        "Questions to ask the clients instead of training, as 'fedprivacy ask' takes them: of a deployment's run.", ""
    )
    resume: str = setting(
        "Folder of a run that was stopped: go on after its last finished round, with its own settings.", ""
    )
    node_timeout: float = setting("Seconds to wait for enough clients.", 120.0, bounds=(0.0, 1e9))
    round_timeout: float = setting("Seconds to wait for a round's replies.", 3600.0, bounds=(LEAST, 1e9))

    def ledger_url(self, *, deployed: bool) -> str:
        """Address of the ledger for charges: a deployment's outlives every run, and a simulation keeps its own."""
        if not self.ledger and deployed:
            from fedprivacy.ledger import default_url

            return default_url()
        return self.ledger or f"sqlite:///{Path(self.out) / LEDGER}"

    @property
    def signing_key_file(self) -> Path:
        """The file of the key that signs in a deployment; a simulation signs only if the key is named."""
        return Path(self.signing_key) if self.signing_key else Path.home() / ".fedprivacy" / "signing.key"
