"""A run to look at: its results as plain rows, its figures, its report and its model."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprivacy.runs.records.folder import CLIENT_MODELS, MODEL, REPORT, RunFolderError, read_history
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.settings.configuration import FIELDS, RunConfig, Value
from fedprivacy.values.columns import raw_row
from fedprivacy.values.metrics import spread_of
from fedprivacy.values.runs import Rows
from fedprivacy.values.spent import UserLevelSpent
from fedprivacy.values.wording import NO_PRIVACY, budget_text, count_text, epsilon_text, metric_name, metric_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedprivacy.accounting.risk import Risk
    from fedprivacy.figures import RunFigures
    from fedprivacy.tasks import Task
    from fedprivacy.training.machine import Machine

_MOST_SHOWN = 20
"""Clients in a notebook's table."""


class Run:
    """A run as far as it has come, read from its folder when this object was made.

    In a notebook it shows itself, without a network.

    >>> import fedprivacy as fp
    >>> run = fp.simulate("cancer", clients=3, rounds=2, progress=False)
    >>> len(run.rounds), sorted(run.metrics), run.report.name
    (2, ['accuracy', 'loss'], 'report.html')
    >>> run.clients[0]["client_id"], run.clients[0]["epsilon"] <= run.clients[0]["budget_epsilon"]
    ('client-0', True)
    >>> 0.01 < float(run.risk.found(0.01)) < 1.0
    True
    >>> run.figures.epsilon("client-0").save("epsilon.svg")
    >>> run.model()
    Linear(in_features=30, out_features=2, bias=True)

    Attributes:
        folder: where the run wrote.
        history: the run's settings and its finished rounds, as objects.
    """

    def __init__(self, folder: Path, history: RunHistory, task: Task | None = None) -> None:
        self.folder = folder
        self.history = history
        self._task = task

    @property
    def settings(self) -> Mapping[str, Any]:
        """The run's configuration, under hyphenated keys; an infinite epsilon is None. To repeat it: `keywords`."""
        return self.history.settings

    @property
    def keywords(self) -> dict[str, Value]:
        """The settings as keywords: `fp.simulate(**run.keywords)` makes the same run again, in a folder of its own.

        Raises:
            ConfigError: another version of fedprivacy wrote the folder, with other settings.
        """
        repeated = RunConfig.from_public(self.settings).settings_to_repeat()
        return {FIELDS[key].name: value for key, value in repeated.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of every metric, by name; `rounds` has them after each round.

        A name says whose records it is of: see `fedprivacy.values.metrics`.
        """
        return self.history.newest_metrics

    @property
    def user_level(self) -> UserLevelSpent | None:
        """The privacy loss of any client as a whole, an account of its own; None: the run has no user-level noise."""
        return self.history.last.user_level

    @property
    def risk(self) -> Risk:
        """The most that an attacker finds out about one unit at the client that has spent most, over all its runs.

        Raises:
            RunFolderError: the run has no privacy, or no client yet.
        """
        if self.history.risk is None:
            raise RunFolderError(f"'{self.folder}' has no client with privacy: nothing bounds what an attacker finds.")
        return self.history.risk

    @property
    def machine(self) -> Machine | None:
        """The machine that simulated the run, and how it computed gradients; None: other hosts did."""
        from fedprivacy.training.machine import Machine  # which imports torch

        return Machine.kept_in(self.folder)

    @cached_property
    def rounds(self) -> Rows:
        """A row for each finished round.

        `round`, counted from 1; every metric under its own name; `max_epsilon`, the largest of a client, at its delta,
        infinite without privacy;
        `participants`, `failed`, `exhausted` and `unreconciled`, numbers of clients; where the run has a clock, `clock`
        at its end, in simulated seconds, and `seconds` that it took.
        """
        return Rows(
            {
                "round": result.round,
                **result.metrics,
                "max_epsilon": result.max_epsilon,
                "participants": len(result.participants),
                "failed": len(result.failures),
                "exhausted": len(result.exhausted),
                "unreconciled": len(result.unreconciled),
                **({} if result.clock is None else {"clock": result.clock, "seconds": result.seconds}),
            }
            for result in self.history.rounds
        )

    @cached_property
    def clients(self) -> Rows:
        """A row for each client, as it stands after the last round.

        `client_id`; `epsilon`, its privacy loss over all runs on its shard, at `delta`; `budget_epsilon`, maybe
        infinite; `rounds` and `steps` that it was charged for; `steps_left` of this run; `sampling_rate` and
        `noise_multiplier` of a local step; `exhausted_in`, the first round after which no step was left, or None;
        `averaged` and `failed`, rounds of this run that used its update or did not; `reason`, why its last update was
        not used, or None; `state`: active, spent as planned, exhausted, unreconciled, refused or failed.
        """
        return Rows(map(raw_row, self.history.standings.values()))

    @cached_property
    def held_out(self) -> Rows:
        """A row for each client, of the newest round that measured its model on held-out, public records.

        `client_id`; `round`; `records`, how many; every score under its own name, the records' mean; every metric of
        all these records together (`Task.held_out_metrics`). None is what a client's records do not define. Without
        such records (`Task.held_out`) there is no row.
        """
        newest = self.history.last_held_out
        if newest is None:
            return Rows()
        names = spread_of(newest.held_out)
        return Rows(
            {"client_id": client_id, "round": newest.round, "records": told.records}
            | {name: told.metrics.get(name) for name in names}
            for client_id, told in newest.held_out.items()
        )

    @property
    def figures(self) -> RunFigures:
        """The run's figures: `run.figures.epsilon()` in a notebook's cell shows one."""
        from fedprivacy.figures.named import RunData, RunFigures

        return RunFigures(RunData(self.history.series, self.history.costs))

    @property
    def report(self) -> Path:
        """The report, one HTML file to mail, print and keep.

        Raises:
            RunFolderError: it is not written yet.
        """
        return self._write(REPORT)

    def model(self, task: Task | None = None, *, client_id: str | None = None) -> nn.Module:
        """The trained model, ready to predict; of a task that standardises, after what its inputs become first.

        Args:
            task: that the run was of; None: the one that is known.
            client_id: the client whose model it is, in a simulation: its own where the algorithm gives it one, else the
                global one, as for None.

        Raises:
            RunFolderError: the run has left no model yet, or has no such client.
            TaskError: the task was an object of another process, or another one than `task`; give it.
        """
        from safetensors import safe_open
        from torch import nn

        from fedprivacy.questions.standardise import STANDARDISE, Standardise
        from fedprivacy.tasks.loader import open_task
        from fedprivacy.tasks.opened import TaskError

        if isinstance(task, str):
            raise TaskError(f"the task is '{task}', a text; for a client's model, write model(client_id='{task}').")
        model = open_task(str(self.settings["task"]), task or self._task).model()
        with safe_open(self._write(MODEL), framework="pt") as file:
            names = file.keys()
            model.load_state_dict({name: file.get_tensor(name) for name in names}, strict=False)
            numbers = (file.metadata() or {}).get(STANDARDISE)
        if client_id is not None and (personal := self._personal(client_id)) is not None:
            nn.utils.vector_to_parameters(personal, [p for p in model.parameters() if p.requires_grad])
        if numbers is not None:
            model = nn.Sequential(Standardise(**json.loads(numbers)), model)
        return model.eval()

    def _personal(self, client_id: str) -> Tensor | None:
        """A client's own model, flat; None: it uses the global one."""
        from safetensors import safe_open

        if client_id not in self.history.last.spent:
            raise RunFolderError(f"'{self.folder}' has no client '{client_id}'; choose one of `run.clients`.")
        if (self.folder / CLIENT_MODELS).exists():
            with safe_open(self.folder / CLIENT_MODELS, framework="pt") as file:
                return file.get_tensor(client_id) if client_id in file.keys() else None  # noqa: SIM118 - no mapping
        config = RunConfig.from_public(self.settings)
        if config.algorithm_in(config.rounds).personal:
            raise RunFolderError(
                f"'{self.folder}' holds no model of {client_id}'s own (algorithm {config.algorithm}), which stays on "
                "its host; leave client_id open for the global one."
            )
        return None

    def _write(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            raise RunFolderError(f"'{self.folder}' has no {name} yet; it is written when the run ends.")
        return path

    def __repr__(self) -> str:
        return f"<Run {str(self.folder)!r}: {self._in_words()}>"

    def _repr_html_(self) -> str:
        drawing = self.figures.overview()._repr_svg_() if self.history.rounds else ""
        drawing = drawing.replace("<svg", '<svg style="max-width: 100%; height: auto"', 1)  # cells are narrower than it
        return f"<p><b>{html.escape(self.folder.name)}</b>: {html.escape(self._in_words())}</p>{drawing}{self._table()}"

    def _in_words(self) -> str:
        history, last = self.history, self.history.last
        measured = (
            f"{metric_name(history.metric)} {metric_text(history.metric, history.newest_metrics.get(history.metric))}"
        )
        rounds = count_text(len(history.rounds), "round")
        if not history.facts.private:
            return f"{measured} after {rounds}; {NO_PRIVACY}"
        return f"{measured} after {rounds}; no client above epsilon {epsilon_text(last.max_epsilon)}"

    def _table(self) -> str:
        clients, told = list(self.history.last.spent.values()), self.history.facts.epsilon_text
        rows = [
            (client.client_id, told(client.epsilon, budget), budget_text(budget) if client.limited else "none")
            for client in clients[:_MOST_SHOWN]
            for budget in [client.budget_epsilon]
        ]
        heads = "".join(f"<th>{name}</th>" for name in ("client", "epsilon", "budget"))
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        more = len(clients) - len(rows)
        caption = f"<caption>and {count_text(more, 'more client')}</caption>" if more else ""
        return f"<table>{caption}<tr>{heads}</tr>{body}</table>"


def open_run(folder: str | PathLike[str], task: Task | None = None) -> Run:
    """Open a run from its folder, finished or going on.

    >>> import fedprivacy as fp
    >>> fp.open_run("runs/nothing-here")
    Traceback (most recent call last):
    fedprivacy.runs.records.folder.RunFolderError: 'runs/nothing-here' holds no run; name ...

    Args:
        folder: that the run wrote to, for example "runs/digits-1".
        task: for its model, where the run was started with an object; None: the task that the run names.

    Raises:
        RunFolderError: the folder holds no run.
    """
    if not isinstance(folder, str | PathLike):
        raise RunFolderError(f"folder is {folder!r}; give the path of a folder that a run wrote to.")
    return Run(Path(folder), read_history(Path(folder)), task)
