"""A run on disk: written round by round, read back by reports and scripts.

A folder holds `config.json` (every setting, the noise that was used, the run's name in its ledger), `run.toml` (the
settings with which to repeat the run), where clients have terms of their own `client-terms.csv` (with the noise that
was found for them), `run.db` (its rounds, a run store of one run, see `fedprivacy.runs.records.store`) and, when the
run has ended, `model.safetensors`, `figure.png`, `report.html` and, of a simulation, `machine.json` (what computed it,
see `fedprivacy.training.machine`); beside them lies the checkpoint from which a stopped run goes on. The rounds as
lines of JSON, which name the clients that have changed, are what `fedprivacy runs export` prints. Nothing in them
depends on the time of day, so the same seed makes the same bytes.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedprivacy._support.durable import write_durably
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records import store
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.records.store import RECORD, RecordDatabase, url_in
from fedprivacy.runs.settings.client_terms import client_terms_of
from fedprivacy.runs.settings.configuration import CONFIG, RUNS, ConfigError, RunConfig, Value
from fedprivacy.runs.settings.run_file import RUN_FILE, as_toml
from fedprivacy.tasks import Task, TaskError
from fedprivacy.tasks.loader import open_task
from fedprivacy.values.events import NeighbouringRelation, as_list, from_list
from fedprivacy.values.metrics import Evaluation, HeldOut
from fedprivacy.values.numbers import finite_or_none, plain, read_measured, read_unbounded
from fedprivacy.values.runs import RoundResult
from fedprivacy.values.spent import ClientSpent, PopulationSpent, UserLevelSpent

CLIENT_TERMS = "client-terms.csv"
ERROR = "error.txt"
MODEL = "model.safetensors"
CLIENT_MODELS = "client-models.safetensors"
"""Models of simulated clients' own, where they have some: flat vectors, by client_id."""
FIGURE = "figure.png"
REPORT = "report.html"

_PATIENCE = 5.0
"""Seconds for which the run store is tried again: while the index is written, it is locked for a moment."""

SINCE = "since"
"""Key of an earlier round in a line: all clients still stand as after that round, except those that the line names.

A line without it names every client: that of round 0, and one after clients have left.
"""


def new_run_folder(name: str, runs: Path = Path(RUNS)) -> str:
    """The first of runs/NAME-1, runs/NAME-2, ... that does not exist."""
    return str(next(folder for n in itertools.count(1) if not (folder := runs / f"{name}-{n}").exists()))


class RunFolderError(ValueError):
    """A folder that cannot take a run, or holds none."""


class RunWriter:
    """Writes a run's folder.

    Args:
        folder: made if it is missing.
        plan: the run's public numbers.
        resume_from: the last finished round of a run that goes on. Its first files stay as they are, and later rounds,
            which are run again, are forgotten. None: a new run.
        run_id: the run's name in its ledger.

    Raises:
        RunFolderError: the folder already holds a run, lacks a round of the one that goes on, or cannot be written.
            Nothing is overwritten: its ledger says what was spent.
    """

    def __init__(self, folder: Path, plan: TrainingPlan, resume_from: int | None = None, run_id: str = "") -> None:
        self.folder = folder
        self._privacy, self._run_id = plan.config.privacy, run_id
        self._last: RoundResult | None = None
        with writing(folder):
            if resume_from is None:
                check_unused(folder)  # and again once it is held: until then another process may write rounds
                folder.mkdir(parents=True, exist_ok=True)
            self._let_go = weakref.finalize(self, os.close, hold(folder, new=resume_from is None))
        if resume_from is None:
            self._begin(plan, run_id)
        with writing(folder):
            self._store = RecordDatabase(url_in(folder), _PATIENCE, durable=True)
            if resume_from is not None:
                self._last = self._forget_after(resume_from)

    def __call__(self, result: RoundResult) -> None:
        """Write a finished round, with the clients that have changed; round 0 is the state before the first."""
        last = self._last if self._last and result.population.includes(self._last.population) else None
        changed = result.population.changed_since(last.population if last else None)
        told = {
            "round": result.round,
            "metrics": plain(result.metrics),
            "clients": [plain(result.spent[client_id]) for client_id in changed],
            "participants": result.participants,
            "failures": plain(result.failures),
            "exhausted": result.exhausted,
            "unreconciled": result.unreconciled,
            "max_epsilon": finite_or_none(result.max_epsilon),
            "privacy": self._privacy,
        }
        if last:
            told[SINCE] = last.round
        if result.evaluations:
            told["evaluations"] = plain(result.evaluations)
        if result.held_out:
            told["held_out"] = plain(result.held_out)
        if result.clock is not None:
            told |= {"clock": result.clock, "seconds": result.seconds}
        if result.most_charged:
            told["most_charged"] = as_list(result.most_charged)
        if result.user_level:
            told["user_level"] = plain(result.user_level)
        with writing(self.folder):
            self._store.put_line(self._run_id, result.round, json.dumps(told))
        self._last = result

    def close(self) -> None:
        """Let the run go: another process, or this one, may go on with it."""
        self._store.close()
        self._let_go()

    def _forget_after(self, last: int) -> RoundResult:
        """Return round `last`; later rounds go."""
        results = [*_results(read_lines(self.folder))][: last + 1]
        if [result.round for result in results] != list(range(last + 1)):
            raise RunFolderError(
                f"'{self.folder / RECORD}' does not hold rounds 1 to {last}, which the run has finished. Put back an "
                "undamaged copy, or start anew in a new folder; what the run has spent stays in its ledger."
            )
        self._store.forget_after(last)
        return results[-1]

    def _begin(self, plan: TrainingPlan, run_id: str) -> None:
        check_unused(self.folder)
        config = {
            "run_id": run_id,
            "settings": plan.config.public(),
            "noise_multiplier": plan.noise.shared,
            "relation": plan.relation,
            "unit": str(plan.unit),
            "metric": plan.task.metric,
            "task": plan.task.name,
        }
        terms = plan.client_terms.with_noise(plan.noise.own)
        with writing(self.folder):
            if terms:
                write_durably(self.folder / CLIENT_TERMS, terms.as_csv().encode())
            write_durably(self.folder / RUN_FILE, as_toml(plan.config))
            write_durably(self.folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
            for file in self.folder.glob(f"{RECORD}*"):
                file.unlink()  # of a run that did not finish a round


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say of what cannot be written in the block which folder it is about, and what to do.

    Raises:
        RunFolderError: instead of an `OSError`, or a `LedgerError` of the run store.
    """
    try:
        yield
    except (OSError, LedgerError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunFolderError(
            f"'{folder}' cannot be written: {why}. Free space on its disk or mend its permissions; what was written "
            "before is whole."
        ) from error


def check_usable(folder: Path) -> None:
    """Refuse a folder for a new run that holds the rounds of another, or that cannot be made or written.

    Raises:
        RunFolderError: says which. Nothing is left on the disk.
    """
    check_writable(folder)
    check_unused(folder)


def check_writable(folder: Path, setting: str = "out") -> None:
    """Refuse a folder that cannot be made or written.

    Args:
        folder: the folder; it need not exist.
        setting: name of the setting that names it.

    Raises:
        RunFolderError: says why not. Nothing is left on the disk.
    """
    made: list[Path] = []
    try:
        made += [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"1")
    except FileExistsError:
        raise RunFolderError(f"{setting} is '{folder}', which is a file; name a folder.") from None
    except OSError as error:
        raise RunFolderError(
            f"{setting} is '{folder}', which cannot be written: {error.strerror}; name another folder, or mend it."
        ) from error
    finally:
        for each in made:
            with suppress(OSError):
                each.rmdir()


def check_unused(folder: Path) -> None:
    """Refuse a folder for a new run that holds the rounds of another. Raises RunFolderError: it does."""
    if _holds_rounds(folder):
        raise RunFolderError(f"out is '{folder}', which already holds a run; name a new folder.")


def begun_only(folder: Path) -> bool:
    """Tell whether a run was stopped there before it had finished its first round."""
    return (folder / CONFIG).is_file() and not _holds_rounds(folder)


def _holds_rounds(folder: Path) -> bool:
    return len(read_lines(folder)) > 1  # the first is the state before the first round


def hold(folder: Path, *, new: bool = False) -> int:
    """Keep a run's folder to one process, as long as the returned file is open: two would hand out the same grants.

    It is the folder that is locked, and no file in it: a new run replaces the files of one that only began there.
    """
    if not new and not (folder / CONFIG).is_file():
        raise RunFolderError(f"'{folder}' holds no run; name a folder that a run wrote to (out).")
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise RunFolderError(
            f"the run in '{folder}' is still going on, in another process; wait for its end, or end it first."
        ) from None
    return held


def plan_of(given: Mapping[str, Value | None], task: Task | None = None) -> TrainingPlan:
    """The plan of a new run, or, where `given` says `resume`, of the one that goes on; see `resolve`.

    Raises:
        ConfigError: lists what is wrong with the settings of a new run; or each that is not the stopped run's own.
        RunFolderError: the folder to go on in holds no run.
    """
    if given.get("questions"):
        raise ConfigError("questions are given to a run that trains; leave them open, or ask them: fedprivacy ask.")
    folder = given.get("resume")
    if not folder:
        return TrainingPlan.of(given, task)
    recorded = read_config(Path(str(folder)))
    recorded.check_same({key: value for key, value in given.items() if key not in ("resume", "client-terms")})
    if problem := _other_terms(given.get("client-terms"), recorded):
        raise ConfigError(problem)
    try:
        return TrainingPlan(replace(recorded, resume=str(folder), out=str(folder)), open_task(recorded.task, task))
    except TaskError as error:
        raise ConfigError(str(error)) from error


def _other_terms(given: Value | None, recorded: RunConfig) -> str:
    """The problem with client terms that are given for a resumed run; empty: they are its own, or left open."""
    if given in (None, ""):
        return ""
    used = client_terms_of(recorded.client_terms)
    if client_terms_of(str(given)).became(used):
        return ""
    own = f"which are in '{recorded.client_terms}'" if used else "which were left open"
    return (
        f"client-terms is '{given}', but the run goes on with its own, {own}; leave client-terms open, or start a new "
        "run."
    )


def has_terms_of(folder: Path, plan: TrainingPlan) -> bool:
    """Tell whether the run in a folder has the client terms of a plan."""
    return plan.client_terms.became(client_terms_of(read_config(folder).client_terms))


def read_config(folder: Path) -> RunConfig:
    """The configuration that a run was started with; its noise multiplier and client terms are those that were used.

    Where each client has noise for its own sampling rate, the noise multiplier is open: what the run has charged a
    client on its ledger says which it had.

    Raises:
        RunFolderError: the folder holds no run.
        ConfigError: another version of fedprivacy wrote it, with other settings.
    """
    try:
        config = json.loads((folder / CONFIG).read_text())
        settings, used = config["settings"], config["noise_multiplier"]
        noise_multiplier = None if used is None else float(used) or None  # 0: without privacy
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"'{folder}' holds no run that could go on ({CONFIG}: {error}); name a folder that a run wrote to (out)."
        ) from error
    recorded = RunConfig.from_public(settings)
    terms = str(folder / CLIENT_TERMS) if recorded.client_terms else ""
    return replace(recorded, noise_multiplier=noise_multiplier, client_terms=terms)


def ledger_of(folder: Path) -> str:
    """The URL of the ledger of a simulated run, wherever its folder lies by now. Raises what `read_config` does."""
    return replace(read_config(folder), out=str(folder)).ledger_url(deployed=False)


def read_run_id(folder: Path) -> str:
    """The name that a run has in its ledger; empty where another version of fedprivacy wrote the folder."""
    return str(json.loads((folder / CONFIG).read_text()).get("run_id", ""))


def read_lines(folder: Path) -> list[str]:
    """Every round of a run as a line of JSON, the state before the first one first; empty: the folder holds no run.

    Raises:
        RunFolderError: its rounds cannot be read, or another version of fedprivacy wrote them.
    """
    try:
        return store.read_lines(folder)
    except LedgerError as error:
        raise RunFolderError(f"'{folder}' holds a run that cannot be read: {error}") from error


def read_history(folder: Path) -> RunHistory:
    """Read a run back. Raises RunFolderError: the folder holds no run, or one that cannot be read."""
    if not (lines := read_lines(folder)):
        raise RunFolderError(f"'{folder}' holds no run; name a folder that a run wrote to (out).")
    config = json.loads((folder / CONFIG).read_text())
    start, *rounds = _results(lines)
    return RunHistory(
        settings=config["settings"],
        noise_multiplier=config["noise_multiplier"],
        relation=NeighbouringRelation(config["relation"]),
        unit=str(config["unit"]),
        task_metric=config["metric"],
        start=start,
        rounds=tuple(rounds),
    )


def _results(lines: Iterable[str]) -> Iterator[RoundResult]:
    before = PopulationSpent({})
    for line in lines:
        result = _round_from_json(json.loads(line), before)
        before = result.population
        yield result


def _round_from_json(line: Mapping[str, Any], before: PopulationSpent) -> RoundResult:
    """A round from its line, and what everybody had spent in the round before."""
    named = {client["client_id"]: ClientSpent(**read_unbounded(client)) for client in line["clients"]}
    return RoundResult(
        round=line["round"],
        metrics=read_measured(line["metrics"]),
        spent=before.update(named) if SINCE in line else PopulationSpent(named),
        participants=tuple(line["participants"]),
        failures=line["failures"],
        unreconciled=tuple(line["unreconciled"]),
        evaluations={client: Evaluation(**told) for client, told in line.get("evaluations", {}).items()},
        held_out={client: HeldOut(**told) for client, told in line.get("held_out", {}).items()},
        clock=line.get("clock"),
        seconds=line.get("seconds"),
        most_charged=from_list(line.get("most_charged", ())),
        user_level=UserLevelSpent(**read_unbounded(line["user_level"])) if "user_level" in line else None,
    )
