"""A simulation from its settings to its results, its progress as a bar: for `fedprivacy.simulate` and for commands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape

from fedprivacy._support.console import bar_on, console_of
from fedprivacy.flower import private_client
from fedprivacy.flower.server.accounts import Books, RunAccounts
from fedprivacy.flower.server.checkpoint import checkpoint_to_go_on
from fedprivacy.flower.simulated.engine import drive
from fedprivacy.flower.simulated.without_privacy import NullBooks, plain_client
from fedprivacy.runs.callbacks import Callback, Callbacks
from fedprivacy.runs.placement import HERE, Placement
from fedprivacy.runs.plans.advice import training_advice
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import new_run_folder, plan_of, read_history
from fedprivacy.runs.records.run import Run
from fedprivacy.runs.settings.configuration import CONFIG, Value, simulation_settings
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords, takes_settings
from fedprivacy.server.app import going_on, server_app
from fedprivacy.server.recorder import how_to_go_on
from fedprivacy.simulation.preconditions import check_run
from fedprivacy.simulation.profile import profiling
from fedprivacy.tasks import Task
from fedprivacy.tasks.loader import OBJECT
from fedprivacy.values.metrics import shown_metric
from fedprivacy.values.runs import RoundResult
from fedprivacy.values.wording import NO_PRIVACY, budget_text, epsilon_text, time_text


@takes_settings
def simulate(
    task: GivenTask = None,
    *,
    workers: int | None = None,
    ray_address: str = "",
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    profile: bool = False,
    drawn: bool = True,
    **settings: Given,
) -> Run:
    """Train a task on simulated clients, each within its privacy budget; or go on with a run that was stopped.

    Formal guarantee: see `fedprivacy.runs.accountant`. A run that is given a `seed` protects nobody from whoever knows
    it. A built-in task, which is on public records, has the seed 0 unless another is given.

    >>> import fedprivacy as fp
    >>> run = fp.simulate("cancer", clients=3, rounds=2, epsilon=1.0, progress=False)
    >>> max(client["epsilon"] for client in run.clients) <= 1.0
    True
    >>> fp.simulate("cancer", round=2, learning_rate="fast")
    Traceback (most recent call last):
    fedprivacy._support.settings.ConfigError: round is not a setting. Did you mean rounds?
    learning_rate is 'fast'; give a number.

    Args:
        task: an object of a `Task`, its class, a built-in task's name, or "path/to/file.py:Name"; None: "digits", or
            the task of the run that goes on.
        workers: processes that train populations of 100 clients and more, each with one thread, and each on a GPU or a
            part of one. No result depends on it, and a run that goes on may have another number. None: one for each
            GPU, where there are several and `device` is "auto"; else this process alone, or, on a cluster, one for each
            of its GPUs or, without, CPUs.
        ray_address: of a Ray cluster that runs already, and on which these processes are: "host:port", or "auto" for
            the one that runs on this machine.
        callbacks: objects that hear of every round, measure the model or end the run early: see `fedprivacy.Callback`.
        progress: whether a bar shows the rounds, in the terminal or the notebook.
        profile: whether to record where the time goes: a trace (profile.json) and a table (profile.txt) of PyTorch's
            profiler in the folder. Both tell how many records a step drew: they are as private as the records.
        drawn: whether the run leaves its figure and its report, which takes a second or two: many short runs need
            none, and `fedprivacy report` draws them later.
        settings: of the run, see below.

    Returns:
        What the run has recorded in its folder, which is `out`, or the first of runs/NAME-1, runs/NAME-2, ... that does
        not exist.

    Raises:
        ConfigError: lists everything that is wrong with the settings, or says which method of the task fails, and for
            which client, or what keeps the workers from coming; nothing has been spent.
        RunFolderError: `out` holds a run already, or cannot be written, or `resume` names a folder that holds none.
        CallbackError: a callback gives what a run cannot take.
        BudgetSpentError: no client's budget allows one step.
        RoundFailedError: a round without one usable update.
        WorkerError: a worker died, and so did the one that took its clients.
        LedgerError: the ledger contradicts the run, or cannot be written.
        SigningKeyError: the key that is named cannot be read or made.
        RuntimeError: this process is being profiled already.
        KeyboardInterrupt: somebody ended the run; its note says how to go on after its last finished round.
    """
    with spelt_as_keywords():
        plan = prepare_plan(*by_key(task, settings))
    placement, console = Placement(workers, ray_address), console_of(shown=progress)
    return run(plan, placement, console, profile=profile, callbacks=Callbacks(callbacks).each, drawn=drawn)


def prepare_plan(given: Mapping[str, Value | None], task: Task | None = None) -> TrainingPlan:
    """The plan of a simulation, with a folder for its results.

    Args:
        given: settings by hyphenated key; None and "" mean "left open".
        task: None: the one that the settings name.

    Raises:
        ConfigError: lists everything that is wrong with the settings.
        RunFolderError: the folder to go on in holds no run.
    """
    plan = plan_of(simulation_settings(given, task), task)
    plan.client_terms.check_names(plan.simulated_clients)
    out = plan.config.out or new_run_folder(plan.config.name or plan.task.name)
    return replace(plan, config=replace(plan.config, out=out))


def run(
    plan: TrainingPlan,
    placement: Placement,
    console: Console,
    *,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
    drawn: bool = True,
) -> Run:
    """Run a simulation, and show its progress on a console. Once it is planned, it raises what `simulate` does.

    Unless it is `drawn`, it leaves neither figure nor report, which take a second or two; `fedprivacy report` draws
    them later.
    """
    placement.check()
    if profile and placement == Placement():
        placement = HERE  # other processes are not recorded
    config = plan.config
    checkpoint = checkpoint_to_go_on(Path(config.resume)) if config.resume else None
    finished = checkpoint.round if checkpoint else 0
    with profiling(Path(config.out)) if profile else nullcontext():
        return _run(plan, placement, console, finished, callbacks, drawn=drawn)


def _run(
    plan: TrainingPlan,
    placement: Placement,
    console: Console,
    finished: int,
    callbacks: Sequence[Callback],
    *,
    drawn: bool,
) -> Run:
    config = plan.config
    machine = check_run(plan, placement)
    if config.resume:
        console.print(going_on(finished, config.rounds))
    for words in training_advice(plan, watched=bool(callbacks)):
        console.print(f"[yellow]{escape(words)}", soft_wrap=True)
    own = plan.task if config.task.startswith(OBJECT) else None  # what has a name, a worker of Ray loads for itself
    with RoundProgress(console, plan, finished) as progress:
        accounts: type[Books] = RunAccounts if config.privacy else NullBooks
        server = server_app(progress, config=config, task=own, accounts=accounts, callbacks=callbacks, drawn=drawn)
        client = private_client(own, config) if config.privacy else plain_client(own, config)
        try:
            drive(server, client, config, placement)
            history = read_history(Path(config.out))
        except KeyboardInterrupt as stopped:
            if (Path(config.out) / CONFIG).exists():
                stopped.add_note(how_to_go_on(config, placement))
            raise
        finally:
            if (Path(config.out) / CONFIG).exists():
                with suppress(OSError):  # a full disk has ended the run with an error of its own, or leaves it whole
                    machine.keep(Path(config.out))
    return Run(Path(config.out), history, plan.task)


class RoundProgress:
    """A live bar: round, the metric that is shown first, the largest epsilon spent. An observer of rounds.

    A run that goes on has so many finished rounds behind it.
    """

    def __init__(self, console: Console, plan: TrainingPlan, finished: int = 0) -> None:
        self._metric = plan.task.metric
        self._budget, self._private = plan.common_budget, plan.config.privacy
        self._bar = bar_on(console, "round")
        state = "waiting for clients" if finished < plan.config.rounds else "finished"
        self._rounds = self._bar.add_task(state, total=plan.config.rounds, completed=finished)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, record: RoundResult) -> None:
        """Show a finished round."""
        metric = shown_metric(self._metric, record.metrics)
        measured = f"{metric} {record.metrics[metric]:.3f}  " if metric in record.metrics else ""
        measured += "" if record.clock is None else f"clock {time_text(record.clock)}  "
        limit = f" of {budget_text(self._budget)}" if math.isfinite(self._budget) else ""
        spent = (
            f"largest epsilon {epsilon_text(record.max_epsilon, self._budget)}{limit}" if self._private else NO_PRIVACY
        )
        self._bar.update(self._rounds, completed=record.round, description=f"{measured}[cyan]{spent}")
