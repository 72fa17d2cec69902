"""The wrapper that makes any Flower strategy account for every client's privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedprivacy._support.logs import follow_environment
from fedprivacy.flower.server.accounts import Books, RunAccounts
from fedprivacy.flower.server.checkpoint import Checkpoint, load_checkpoint
from fedprivacy.flower.server.federated_run import EvaluateFn, FederatedRun, PrivateResult, RunParts
from fedprivacy.flower.server.nodes import Replies
from fedprivacy.flower.server.one_round import OpenRound
from fedprivacy.flower.server.rounds import RunRounds
from fedprivacy.flower.server.transports import ByMessage
from fedprivacy.runs.callbacks import Callback
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.settings.configuration import Value
from fedprivacy.tasks import Task
from fedprivacy.values.runs import Observer, PhaseObserver


class PrivateStrategy(Strategy):
    """Wraps a Flower strategy: grants before dispatch, checks receipts, composes every client's privacy loss.

    The wrapped strategy samples and averages as always. It sees only clients that have budget left, and only updates
    whose receipts match their grants; the weights of its average are public (shard sizes, or the noise that each adds),
    never a count that a client sends. Flower's own client-side evaluation is off: its metrics are a release that nobody
    accounts for. With `local-evaluation` clients release noisy ones together with their updates, charged as one more
    step.

    With `ema-decay` the model that is evaluated and kept is the average of the global models. The clients receive the
    last one.

    With user-level noise (`user-level-noise-multiplier`, `user-level-epsilon`) clients join by Poisson sampling, and
    the wrapped strategy is given one update: the global model plus the noisy average of clipped differences from it.
    What that costs each client as a whole has an account of its own, see `fedprivacy.runs.user_level_book`.

    Formal guarantee: see `fedprivacy.runs.accountant`.

    `start` takes and returns what Flower's own `Strategy.start` does.

    >>> import fedprivacy as fp
    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = fp.PrivateStrategy(FedAvg(), fp.tasks.Cancer(), {"clients": 3, "epsilon": 1.0})
    >>> strategy.plan.config.epsilon, strategy.plan.task.name
    (1.0, 'cancer')

    Args:
        strategy: any Flower strategy.
        task: the task to learn, the same as in the clients' `private_client`; or the plan of a run, which holds all of
            its public numbers.
        run_config: settings by hyphenated key: `context.run_config`; ignored if a plan is given. The folder `out` is
            written by `fedprivacy.server.app.server_app`; a strategy by itself writes none.
        run_id: unique in the ledger; None: a new one.
        accounts: what charges and grants, made when the clients are there: they say whether the run is deployed. Those
            of a baseline charge nothing; a simulation alone has them.
        observers: told of every finished round, and of round 0 before the first.
        on_open: told where charges are written, once the accounts are open.
        on_phase: told what the run is about to do.
        resume: the checkpoint of a run that was stopped, or the folder that holds it: go on after its round, as if the
            run had never been stopped; None: a new run.
        checkpoints: the folder that receives a checkpoint after every finished round; None: none is kept.
        callbacks: see `fedprivacy.Callback`; `start` alone calls them.

    Raises:
        CallbackError: what is given as a callback is none.
        ConfigError: lists everything that is wrong with the settings, for example that they name another task; or says
            why no noise meets the budget; or that the run goes on, and there is no checkpoint to go on from; or that it
            is without privacy, and these are not the accounts for that; or a trace that it names cannot be read; or
            that it has user-level noise, with a strategy that needs more than an average, or no folder for its account;
            or that it goes on, and had other callbacks.
        RunFolderError: there is no checkpoint to go on from.

    Attributes:
        plan: the run's public numbers: configuration, task, and what a local step costs.
        run_id: unique in the ledger.
        result: so far.
    """

    def __init__(
        self,
        strategy: Strategy,
        task: Task | TrainingPlan,
        run_config: Mapping[str, Value | None] | None = None,
        *,
        run_id: str | None = None,
        accounts: type[Books] = RunAccounts,
        observers: Sequence[Observer] = (),
        on_open: Callable[[str], None] = lambda _: None,
        on_phase: PhaseObserver = lambda _: None,
        resume: Checkpoint | str | PathLike[str] | None = None,
        checkpoints: Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        follow_environment()
        checkpoint = resume if isinstance(resume, Checkpoint) else load_checkpoint(Path(resume)) if resume else None
        if not isinstance(task, TrainingPlan):
            task = TrainingPlan.of(run_config or {}, task, run_id=checkpoint.run_id if checkpoint else "")
        self.strategy, self.plan = strategy, task
        parts = RunParts(
            run_id=run_id,
            accounts=accounts,
            observers=observers,
            on_open=on_open,
            on_phase=on_phase,
            resume=checkpoint,
            checkpoints=checkpoints,
            callbacks=callbacks,
        )
        self._run = FederatedRun(strategy, task, parts)
        self.run_id, self.result = self._run.run_id, self._run.result
        self._hooked: tuple[RunRounds, OpenRound] | None = None
        self._told: tuple[int, dict[str, float]] = 0, {}  # to a driver by hooks: a round, and what clients evaluated

    def start(  # noqa: PLR0917 - Flower's own signature
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> PrivateResult:
        """Run the rounds; end early, with the model kept, when no client has budget left.

        Takes and returns what Flower's own `Strategy.start` does. What is None comes from the configuration and the
        task: a new model, the rounds, the round's time-out, the evaluation on the server's public records.

        Raises:
            CallbackError: a callback gives what a run cannot take.
            TooFewClientsError: the configured number of clients did not come in time.
            BudgetSpentError: no client's budget allows one step.
            RoundFailedError: a round without one usable update, or with an average that is not finite.
            TaskError: the task's `evaluate` fails.
            LedgerError: the ledger contradicts this run, or cannot be written.
        """
        last = num_rounds or self.plan.config.rounds
        return self._run.run(grid, initial_arrays, last, timeout, train_config or ConfigRecord(), evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Open a round, for callers that drive this strategy by Flower's hooks; `start` does not use them.

        Returns no message when no client has budget left.
        """
        rounds = self._hooked[0] if self._hooked else self._run.enlist(grid, None, by_messages=True)
        attempt, again = next(rounds.accounts.attempts(server_round))
        opened = rounds.open(attempt, arrays, config, again=again, at=self._run.clock)
        self._hooked = rounds, opened
        assert isinstance(rounds.transport, ByMessage)
        return rounds.transport.messages_to_send(opened)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Settle the round that `configure_train` has opened, and let the wrapped strategy average it.

        Raises:
            ValueError: it has not opened this one.
        """
        if self._hooked is None or self._hooked[1].attempt.round != server_round:
            raise ValueError(f"round {server_round} was not opened: configure_train comes before aggregate_train.")
        rounds, opened = self._hooked
        first: dict[int, Message] = {}
        for reply in replies:
            first.setdefault(reply.metadata.src_node_id, reply)
        outcome = rounds.settle(opened, Replies(first))
        self._run.clock = outcome.ended
        self._told = server_round, self._run.measures.local(outcome.evaluated)[1]
        return rounds.average(outcome)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: evaluation is on the server's public records, and clients' came with their updates."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the metrics of local evaluations, which came with the round's updates; None: there were none."""
        number, metrics = self._told
        return MetricRecord(dict(metrics)) if number == server_round and metrics else None

    def summary(self) -> None:
        """Log the wrapped strategy's settings."""
        self.strategy.summary()
