"""Callbacks: what somebody adds to a run, on the server. They see what is released, and nothing else.

A callback hears of every finished round, may measure the global model, and may end the run. What it makes of what it
hears is post-processing: it costs no privacy, and a run that it ends early has spent less. So it must not read private
records: where clients are simulated in the same process it could, and no account would count it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from numbers import Integral, Real

import torch
from torch import nn

from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.values.metrics import shown_metric
from fedprivacy.values.numbers import number_of
from fedprivacy.values.runs import RoundResult
from fedprivacy.values.wording import count_text, less_is_better


class CallbackError(ValueError):
    """A callback gives what a run cannot take, with the remedy."""


class Callback:
    """Something to be added to a run: override what is needed. What it raises ends the run, which can be resumed.

    Its attributes that are numbers, texts or NumPy arrays are kept in the run's checkpoint, and a run that goes on
    finds them again; `state_dict` and `load_state_dict`, if it has them, give and take others.

    >>> import fedprivacy as fp
    >>> class Norm(fp.Callback):
    ...     def measure(self, round, model):
    ...         return {"norm": sum(p.square().sum().item() for p in model.parameters()) ** 0.5}
    >>> run = fp.simulate("cancer", clients=3, rounds=2, epsilon=1.0, callbacks=[Norm()], progress=False)
    >>> list(run.metrics)
    ['accuracy', 'loss', 'norm']

    Attributes:
        stop_because: why the run is to end before the next round, in words that go on after "The run ended before round
            7: "; empty: it goes on.
    """

    stop_because: str = ""

    def begin(self, plan: TrainingPlan) -> None:
        """The run begins, or goes on, in which case what the callback remembers follows.

        Args:
            plan: its settings are `plan.config`, its task is `plan.task`, and the task's own object
                `plan.task.original`.
        """

    def measure(self, round: int, model: nn.Module) -> Mapping[str, float]:
        """Further metrics of the global model after a round, which are recorded beside the task's.

        Args:
            round: counted from 1; 0 is the state before the first.
            model: in the mode of evaluation, a copy of the callback's own; after what inputs become first, where the
                task standardises. No gradients are recorded.
        """
        return {}

    def after_round(self, result: RoundResult) -> None:
        """A round is finished and recorded; round 0 is the state before the first.

        Where user-level noise protects who joined a round, `result` says nothing of single clients: its `participants`,
        `failures`, `unreconciled` and `spent` are empty.
        """

    def end(self) -> None:
        """The run is over, or was stopped, or failed."""


class EarlyStopping(Callback):
    """Ends a run when a metric has not become better for a while; what is left of every budget is kept.

    The metric is one that the run records: of public records, or a local evaluation, which was charged.

    >>> import fedprivacy as fp
    >>> hasty = fp.EarlyStopping(patience=2, least_change=1.0)
    >>> run = fp.simulate("cancer", clients=3, rounds=9, epsilon=1.0, callbacks=[hasty], progress=False)
    >>> run.history.finished, hasty.stop_because
    (2, 'accuracy has not become better than in round 0, by 1 at least, for 2 rounds')

    Args:
        metric: its name; None: the task's, or the nearest that the run measures instead.
        patience: after how many rounds in a row that have measured it, and nothing better, the run ends.
        least_change: by how much a better one must be better.
        less_is_better: whether it is an error; None: as its name says.
    """

    def __init__(
        self,
        metric: str | None = None,
        *,
        patience: int = 5,
        least_change: float = 0.0,
        less_is_better: bool | None = None,
    ) -> None:
        if metric is not None and not isinstance(metric, str):
            raise CallbackError(f"metric is {metric!r}; give its name.")
        given: tuple[object, object] = patience, least_change
        if not isinstance(given[0], Integral) or patience < 1:
            raise CallbackError(f"patience is {patience!r}; give a whole number, 1 or more.")
        if not isinstance(given[1], Real) or not 0.0 <= least_change < math.inf:
            raise CallbackError(f"least_change is {least_change!r}; give a number from 0 on.")
        self._asked = metric, less_is_better
        self.patience = patience
        self.least_change = least_change

    def begin(self, plan: TrainingPlan) -> None:
        """Forget another run."""
        self.metric = self._asked[0] or ""
        self._declared = plan.task.metric
        self.stop_because = ""
        self.best: float | None = None
        self.best_round = 0
        self.waited = 0
        config = plan.config
        self._due = max(self.patience, config.local_evaluation or 0, config.held_out_evaluation or 0)

    def state_dict(self) -> dict[str, float | str | None]:
        """The figures that it has seen. Its own settings are not part of the state."""
        return {name: getattr(self, name) for name in ("metric", "stop_because", "best", "best_round", "waited")}

    def load_state_dict(self, state: Mapping[str, float | str | None]) -> None:
        """See it again."""
        vars(self).update(state)

    def after_round(self, result: RoundResult) -> None:
        """Compare with the best so far, where the metric was measured."""
        if not self.metric and result.metrics:
            self.metric = shown_metric(self._declared, result.metrics)
        value = result.metrics.get(self.metric)
        if value is None:
            if self.best is None and self.waited == 0 and result.round >= self._due:
                wanted, known = self.metric or self._declared, ", ".join(result.metrics) or "none"
                raise CallbackError(
                    f"metric is '{wanted}', which no round has measured until round {result.round}; the metrics are "
                    f"{known}."
                )
        elif self._better(value):
            self.best, self.best_round, self.waited = value, result.round, 0
        else:
            self.waited += 1
        if self.waited >= self.patience:
            by = f", by {self.least_change:g} at least," if self.least_change else ""
            waited = count_text(self.waited, "round")
            self.stop_because = f"{self.metric} has not become better than in round {self.best_round}{by} for {waited}"

    def _better(self, value: float) -> bool:
        if self.best is None:
            return not math.isnan(value)
        less = less_is_better(self.metric) if self._asked[1] is None else self._asked[1]
        gain = self.best - value if less else value - self.best
        return gain > 0.0 and gain >= self.least_change


class Callbacks:
    """All callbacks of a run, in the order in which they were given."""

    def __init__(self, each: Sequence[Callback]) -> None:
        self.each = tuple(each) if isinstance(each, Iterable) else (each,)
        for callback in self.each:
            if not isinstance(callback, Callback):
                given = callback.__name__ if isinstance(callback, type) else type(callback).__name__
                words = (
                    f"write {given}()" if isinstance(callback, type) else "derive its class from fedprivacy.Callback"
                )
                raise CallbackError(f"callbacks has {given}, which is no fedprivacy.Callback; {words}.")

    @property
    def names(self) -> list[str]:
        """The class of each."""
        return [_name(callback) for callback in self.each]

    def check_goes_on(self, had: Sequence[str]) -> None:
        """Check that a run which had callbacks of these classes can go on with these: with the same, or with none.

        Raises:
            ConfigError: it cannot.
        """
        if self.each and self.names != list(had):
            raise ConfigError(
                f"callbacks has {', '.join(self.names)}, and the run that goes on had {', '.join(had) or 'none'}; "
                "give the same in their order, or none to go on without."
            )

    @property
    def stop_because(self) -> str:
        """The reason to end the run; empty: it goes on."""
        for callback in self.each:
            if not isinstance(callback.stop_because, str):
                raise CallbackError(f"{_name(callback)} has stop_because {callback.stop_because!r}; give it a text.")
        return "; ".join(filter(None, (callback.stop_because for callback in self.each)))

    @contextmanager
    def during(self, plan: TrainingPlan, remind: Callable[[], None]) -> Iterator[None]:
        """A run, from its beginning to whatever ends it: who has heard of the one hears of the other.

        Args:
            plan: of the run.
            remind: lets those of a run that goes on remember, once they have begun.
        """
        with ExitStack() as ends:
            for callback in self.each:
                with _note_in_errors(callback, "begin"):
                    callback.begin(plan)
                ends.callback(_end, callback)
            remind()
            yield

    def measure(self, round: int, model: Callable[[], nn.Module], known: Mapping[str, float]) -> dict[str, float]:
        """The metrics of all callbacks together.

        Args:
            round: the finished round.
            model: makes a copy of the global model.
            known: what else the round tells.

        Raises:
            CallbackError: it is no number by name, or the name is taken.
        """
        measured: dict[str, float] = {}
        for callback in self.each:
            if type(callback).measure is Callback.measure:
                continue
            with _note_in_errors(callback, f"measure after round {round}"), torch.no_grad():
                found = callback.measure(round, model())
            if not isinstance(found, Mapping):
                kind = type(found).__name__
                raise CallbackError(f"{_name(callback)} measures a {kind}; return numbers by name, {{}} for none.")
            for name, value in found.items():
                number = number_of(value)
                problem = ""
                if number is None:
                    problem = "which is no number"
                elif not isinstance(name, str):
                    problem = "which is no name"
                elif name in known or name in measured:
                    problem = "a metric that the round has already"
                if number is None or problem:
                    raise CallbackError(
                        f"{_name(callback)} measures {name!r}, {problem}; return new names with numbers."
                    )
                measured[name] = float(number)
        return measured

    def after_round(self, result: RoundResult) -> None:
        """Tell all of them of a finished round, but for what user-level noise hides."""
        if result.user_level is not None:
            result = replace(result, spent={}, participants=(), failures={}, unreconciled=())
        for callback in self.each:
            with _note_in_errors(callback, f"after_round {result.round}"):
                callback.after_round(result)


@contextmanager
def _note_in_errors(callback: Callback, method: str) -> Iterator[None]:
    """Add the names of the callback and its method to any exception raised inside."""
    try:
        yield
    except Exception as error:
        error.add_note(f"In the callback {_name(callback)}, {method}.")
        raise


def _end(callback: Callback) -> None:
    with _note_in_errors(callback, "end"):
        callback.end()


def _name(callback: Callback) -> str:
    return type(callback).__name__
