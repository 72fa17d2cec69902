"""The end of a simulation: its result in words, and what to type next, ready to be pasted."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path

from rich.markup import escape

from fedprivacy.commands.terminal import as_typed
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.records.folder import REPORT
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.settings.configuration import RUNS, RunConfig, Value, resolve
from fedprivacy.tasks.built_in import DEFAULT_TASK
from fedprivacy.training.machine import Machine
from fedprivacy.values.metrics import OF_CLIENTS, RECORDS
from fedprivacy.values.unit import Unit
from fedprivacy.values.wording import (
    NO_PRIVACY,
    count_text,
    epsilon_text,
    metric_name,
    metric_text,
    plural,
    time_text,
)

_MOST_REASONS = 3
"""Maximum number of clients whose reasons are shown, if nobody trained."""

_OF_THIS_RUN = ("epsilon", "noise-multiplier", "out", "privacy", "resume")
"""Settings that the run that is proposed next does not take over."""


def result_text(history: RunHistory, config: RunConfig) -> str:
    """The result of a finished run in one line, in Rich's markup."""
    result = f"{metric_name(history.metric)} {metric_text(history.metric, history.newest_metrics.get(history.metric))}"
    loss = f"no client above epsilon {epsilon_text(history.last.max_epsilon, config.epsilon)}"
    return (
        f"[bold]{escape(result)}[/] after {count_text(len(history.rounds), 'round')}{_simulated_time(history)}; "
        f"{loss if config.privacy else f'[bold red]{NO_PRIVACY}[/]'}."
    )


def nobody_trained(history: RunHistory) -> str:
    """Say that no update of any client is in the model, and the reasons that are known; "": some are, or user-level
    noise hides whether any is, and moved the model anyway.
    """
    if history.last.user_level is not None or any(result.participants for result in history.rounds):
        return ""
    failures = history.last.failures
    shown = "; ".join(f"{client_id}: {reason}" for client_id, reason in sorted(failures.items())[:_MOST_REASONS])
    more = f"; and {count_text(len(failures) - _MOST_REASONS, 'client')} more" if len(failures) > _MOST_REASONS else ""
    return f"Nobody trained: the model is the one that the run began with. {shown or 'No client joined a round'}{more}."


def outcome_text(
    history: RunHistory, config: RunConfig, given: Mapping[str, Value], placement: Placement, *, verbose: bool = False
) -> str:
    """A finished run for people, in Rich's markup; no command in it may be wrapped.

    Args:
        history: the run.
        config: its settings.
        given: those that the user gave; `config` is the file that some of them are in.
        placement: where the clients ran.
        verbose: whether to name the machine, too.
    """
    last = history.last
    about_seed = "The noise came from a secret that is gone: this run cannot be repeated."
    if not (config.privacy or config.user_level):
        about_seed = "A baseline, without clipping and noise: to compare with, never to use on real people's records."
    elif config.seed is not None:
        about_seed = f"Seeded with {config.seed}: repeatable, and no protection from whoever knows the seed."
    out, report = Path(config.out), Path(config.out) / REPORT
    store = () if out.parent == Path(RUNS) else ("--store", config.out)
    return (
        f"\n{result_text(history, config)}\n"
        f"{_user_level(history)}"
        f"{_on_own_records(history)}"
        f"{_standardised(config)}"
        f"{about_seed}\n"
        f"{_machine(out) if verbose else ''}"
        f"Report, with every client: {escape(str(report)) if report.exists() else 'none'}\n"
        f"In a browser{'' if store else ', with all runs'}: {_bold('dashboard', *store)}\n"
        f"{_next(last.max_epsilon, config, given, placement)}"
    )


def _machine(folder: Path) -> str:
    """The machine and its methods in one line, for reports of trouble."""
    machine = Machine.kept_in(folder)
    return f"This machine: {escape(machine.line)}.\n" if machine else ""


def _simulated_time(history: RunHistory) -> str:
    """The time on the run's own clock, if it has one."""
    return "" if history.last.clock is None else f" and {time_text(history.last.clock)} of simulated time"


def _user_level(history: RunHistory) -> str:
    """The loss of a client as a whole by the published models: beside what its records lost, and never added to it."""
    if (spent := history.last.user_level) is None:
        return ""
    trusted = (
        "" if history.facts.private else " Clients trained plainly: the server is trusted with all that they sent."
    )
    return f"Each client as a whole: {escape(spent.text)}; an account of its own, never added to the other.{trusted}\n"


def _standardised(config: RunConfig) -> str:
    """The private question before the first round, and its cost."""
    if config.question_spend is None:
        return ""
    return f"Inputs standardised by a private answer: at most epsilon {epsilon_text(config.question_spend)}, once.\n"


def _on_own_records(history: RunHistory) -> str:
    """The metrics of the newest local evaluation."""
    if (evaluated := history.last_evaluated) is None:
        return ""
    told = {name: value for name, value in evaluated.metrics.items() if name.startswith(OF_CLIENTS)}
    scores = ((name.removeprefix(OF_CLIENTS), metric_text(name, value)) for name, value in told.items())
    figures = ", ".join(f"{metric_name(name)} {value}" for name, value in scores if name != RECORDS)
    own = plural(Unit.of(history.unit).name)
    return f"On the clients' own {own}, in round {evaluated.round}: {escape(figures)}; noisy, and charged.\n"


def _next(spent: float, config: RunConfig, given: Mapping[str, Value], placement: Placement) -> str:
    """The price of a tighter budget, or a baseline's privacy; where the past counts, what every dataset has spent."""
    if not config.privacy:
        private = _bold("simulate", *_options(_kept(config, given)), *placement.options)
        price = _bold("compare", config.out, "RUN")
        return f"Next, the same with privacy, and then what it costs:\n  {private}\n  {price}"
    if config.ledger:
        ledger = _bold("ledger", "show", "--ledger", str(given.get("ledger", config.ledger)))
        return f"Next, what every dataset has spent over all runs of this ledger:\n  {ledger}"
    if config.client_terms:
        own = _bold("plan", *_options(_kept(config, given)), *placement.options)
        return f"Next, change some client's terms, and see what they would cost:\n  {own}"
    tighter = {"epsilon": f"{_tighter(min(spent, config.epsilon)):g}"} | _kept(config, given)
    commands = "".join(
        f"\n  {_bold(command, *_options(tighter), *placement.options)}" for command in ("plan", "simulate")
    )
    return f"Next, what a tighter budget costs, and a run of it:{commands}"


def _options(settings: Mapping[str, Value]) -> list[str]:
    """Settings as they are typed."""
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def _kept(config: RunConfig, given: Mapping[str, Value]) -> dict[str, Value]:
    """The user's settings but those of this run alone."""
    if given.keys() & {"resume", "config"}:
        usual = resolve({"task": config.task}).public() | {"task": DEFAULT_TASK}
        given = {key: value for key, value in config.public().items() if value not in (None, "", usual[key])}
    return {key: value for key, value in given.items() if key not in _OF_THIS_RUN}


def _tighter(spent: float) -> float:
    """A round epsilon well below what was spent.

    >>> [_tighter(spent) for spent in (2.99, 1.0, 0.5, 0.0123, math.inf)]
    [1.0, 0.5, 0.2, 0.005, 1.0]
    """
    if not 0.0 < spent < math.inf:
        return 1.0
    most = 0.6 * spent
    decade = math.floor(math.log10(most))
    return max(epsilon for digit in (1, 2, 5) if (epsilon := float(f"{digit}e{decade}")) <= most)


def _bold(*words: str) -> str:
    """A command of this program, quoted for the shell."""
    return f"[bold]{escape(f'{as_typed()} {shlex.join(words)}')}[/]"
