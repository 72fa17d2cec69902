"""The round, top to bottom: a wrapper that makes any Flower strategy account for every client's privacy."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedprivacy._support.failpoints import reach
from fedprivacy._support.random_state import RandomState
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.flower.server.checkpoint import Checkpoint, save_checkpoint
from fedprivacy.flower.server.eligible import EligibleGrid
from fedprivacy.flower.server.exchange import Correspondence
from fedprivacy.flower.server.registry import ClientRegistry, TooFewClientsError
from fedprivacy.flower.server.replies import OpenRound, RoundOutcome, sort_replies
from fedprivacy.flower.server.strategy_state import forgotten, read_state, write_state
from fedprivacy.flower.wire.messages import GRANT, Grant
from fedprivacy.gradients import trainable_parameters
from fedprivacy.runs.configuration import ConfigError
from fedprivacy.runs.plan import RunPlan
from fedprivacy.training.optimizers import MovingAverage
from fedprivacy.values.rounds import Observer, Phase, PhaseObserver, RoundResult, Stage

log = logging.getLogger("fedprivacy.server")

_ATTEMPTS = 2
"""At a round: clients that lose their updates again and again must not be charged again and again."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class RoundFailedError(RuntimeError):
    """A round without one usable update: going on would spend privacy for nothing."""


class PrivateStrategy(Strategy):
    """Wraps a Flower strategy: grants before dispatch, checks receipts, composes every client's privacy loss.

    The wrapped strategy samples and averages as always. It sees only clients that have budget left, and only updates
    whose receipts match their grants; the weights of its average are public shard sizes (or equal), never a count that
    a client sends. Client-side evaluation is off: a local metric is a release that nobody has accounted for.

    With `ema-decay` the model that is evaluated and kept is the average of the global models. The clients receive the
    last one.

    Formal guarantee: see `fedprivacy.runs.accountant`.

    Args:
        strategy: any Flower strategy.
        plan: the run's public numbers: configuration, task, and what a local step costs.
        run_id: unique in the ledger; None: a new one.
        observers: told of every finished round, and of round 0 before the first.
        on_phase: told what the run is about to do.
        resume: go on after this checkpoint's round, as if the run had never been stopped; None: a new run.
        checkpoints: the folder that receives a checkpoint after every finished round; None: none is kept.

    Raises:
        ConfigError: the configuration says that a run goes on, and there is no checkpoint to go on from.

    Attributes:
        result: Flower's result so far: the model is kept whatever happens.
        stopped_because: why the run ended before its last round, if it did.
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: RunPlan,
        *,
        run_id: str | None = None,
        observers: Sequence[Observer] = (),
        on_phase: PhaseObserver | None = None,
        resume: Checkpoint | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        if plan.config.resume and resume is None:
            raise ConfigError(
                [
                    f"resume is '{plan.config.resume}', but this app starts every run anew; leave resume open, or give "
                    "PrivateStrategy a checkpoint, as fedprivacy/server/app.py does."
                ]
            )
        self.strategy = strategy
        self.plan = plan
        self.config = plan.config
        self.task = plan.task
        self.run_id = resume.run_id if resume else run_id or uuid.uuid4().hex
        self.result = Result()
        self.stopped_because: str | None = None
        self._observers = observers
        self._on_phase = on_phase
        self._resume = resume
        self._checkpoints = checkpoints
        self._average = MovingAverage(plan.config.ema_decay)
        self._registry = ClientRegistry(plan.config.node_timeout, plan.config.signing_key_file)
        earlier_runs = resume.earlier_runs if resume else None
        self._accounts = RunAccounts(plan, self.run_id, self._registry, earlier_runs, checkpoints)
        self._opened = OpenRound(0, ArrayRecord(), {})
        self._outcome = RoundOutcome()

    def start(  # noqa: PLR0917 - Flower's own signature
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds; end early, with the model kept, when no client has budget left.

        Takes and returns what Flower's own `Strategy.start` does. What is None comes from the configuration and the
        task: a new model, the rounds, the round's time-out, the evaluation on the server's public records.

        Raises:
            TooFewClientsError: the configured number of clients did not come in time.
            RoundFailedError: a round without one usable update, or with an average that is not finite.
            LedgerError: the ledger contradicts this run, or cannot be written.
        """
        evaluate, rounds = evaluate_fn or self._evaluate, num_rounds or self.config.rounds
        finished = self._resume.round if self._resume else 0
        arrays = self._restore(self._resume) if self._resume else self._begin(initial_arrays or self._new_model())
        if self._resume and finished >= rounds:
            return self.result  # no client is needed, so none is waited for
        self._registry.wait_for(grid, self.config.clients)
        self._accounts.open(grid)
        if self._resume:
            self._resume.random.restore()
        else:
            self._finish_round(0, arrays, evaluate)
        self._warn_of_forgotten_state()
        correspondence = Correspondence(grid)
        for server_round in range(finished + 1, rounds + 1):
            aggregated = self._round(server_round, arrays, train_config or ConfigRecord(), correspondence, timeout)
            if self.stopped_because:
                break
            if aggregated is not None:
                arrays = aggregated
                self._average.add(arrays.to_torch_state_dict())
                self.result.arrays = _as_arrays(self._average.average)
            self._finish_round(server_round, arrays, evaluate)
            self._check_outcome(server_round)
        return self.result

    def _round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        correspondence: Correspondence,
        timeout: float | None,
    ) -> ArrayRecord | None:
        """One round; a second attempt where a crash has cost every client its update. Returns the new model, if any."""
        self._accounts.begin(server_round)
        aggregated = None
        for _ in range(_ATTEMPTS):
            messages = list(self.configure_train(server_round, arrays, config, correspondence.grid))
            if not messages:
                self.stopped_because = "no client has budget left"
                return None
            self._tell(Stage.TRAINING, server_round, len(messages))
            answers = correspondence.ask(messages, timeout or self.config.round_timeout)
            self._tell(Stage.AVERAGING, server_round, len(messages))
            asked_before = self._opened.asked_before | correspondence.asked_twice
            self._opened = replace(self._opened, asked_before=asked_before)
            reach("server.answered")
            for asked, reply in correspondence.late():
                self._accounts.settle_late(asked, reply)
            aggregated, metrics = self._conclude(server_round, answers)
            if metrics:
                self.result.train_metrics_clientapp[server_round] = metrics
            if not self._outcome.all_lost:
                break
            self._accounts.begin(server_round, self._accounts.attempt + 1)
        return aggregated

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy choose among clients with budget left, and reserve what each may spend.

        Returns no message when no client has budget left.
        """
        self._accounts.admit_late(grid)
        messages = self._sample(server_round, arrays, config, grid)
        clients = {m.metadata.dst_node_id: self._registry[m.metadata.dst_node_id] for m in messages}
        if len({client.client_id for client in clients.values()}) < len(messages):
            raise ValueError("The wrapped strategy asks a client twice in a round: a release that nobody would charge.")
        grants = self._accounts.grant(server_round, clients)
        keys = {node_id: client.public_key for node_id, client in clients.items() if client.public_key}
        asked_before = frozenset(grants) if self._accounts.handed_out_again else frozenset[int]()
        self._opened = OpenRound(server_round, arrays, grants, keys, asked_before)
        return [_with_grant(m, grants[m.metadata.dst_node_id]) for m in messages if m.metadata.dst_node_id in grants]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Match receipts with grants, commit what was spent, and let the wrapped strategy average the rest."""
        answers: dict[int, Message] = {}
        for reply in replies:
            answers.setdefault(reply.metadata.src_node_id, reply)
        return self._conclude(server_round, answers)

    def _conclude(
        self, server_round: int, answers: Mapping[int, Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The same, with the replies by the node that was asked: an error may come from another one."""
        outcome = self._outcome = sort_replies(answers, self._opened)
        self._accounts.settle(server_round, outcome)
        if not outcome.updates:
            return None, None
        nodes = {grant.client_id: node_id for node_id, grant in self._opened.grants.items()}
        in_fixed_order = [
            self._weighted(reply, self._registry[nodes[client_id]].shard_size)
            for client_id, reply in sorted(outcome.updates.items())
        ]
        aggregated, metrics = self.strategy.aggregate_train(server_round, in_fixed_order)
        reach("server.averaged")
        return _like(aggregated, self._opened.arrays) if aggregated else None, metrics

    @property
    def ledger_url(self) -> str:
        """Where charges are written; empty until the first clients are there: they say whether the run is deployed."""
        return self._accounts.ledger_url

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: evaluation is on the server's public records."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing comes back, since nobody was asked."""
        return None

    def summary(self) -> None:
        """Log the wrapped strategy's settings."""
        self.strategy.summary()

    def _new_model(self) -> ArrayRecord:
        return _as_arrays(trainable_parameters(self.task.model()))

    def _begin(self, arrays: ArrayRecord) -> ArrayRecord:
        """Start from these arrays."""
        self.result.arrays = arrays
        self._average.begin(arrays.to_torch_state_dict())
        return arrays

    def _restore(self, checkpoint: Checkpoint) -> ArrayRecord:
        """Be where the checkpoint was taken, but for the random state; the arrays that the next round sends."""
        self._average.begin({name: torch.from_numpy(value) for name, value in checkpoint.average.items()})
        self._average.iterates = checkpoint.iterates
        self.result.arrays = _as_arrays(self._average.average)
        self._accounts.clipping_norms = dict(checkpoint.clipping_norms)
        self._accounts.left_out = set(checkpoint.left_out)
        write_state(self.strategy, checkpoint.strategy)
        return ArrayRecord({name: Array(value) for name, value in checkpoint.arrays.items()})

    def _checkpoint(self, server_round: int, arrays: ArrayRecord) -> Checkpoint:
        return Checkpoint(
            run_id=self.run_id,
            round=server_round,
            earlier_runs=self._accounts.earlier_runs,
            arrays=_as_numpy(arrays),
            average={name: value.numpy() for name, value in self._average.average.items()},
            iterates=self._average.iterates,
            clipping_norms=self._accounts.clipping_norms,
            left_out=frozenset(self._accounts.left_out),
            strategy=read_state(self.strategy),
            random=RandomState.now(),
        )

    def _warn_of_forgotten_state(self) -> None:
        if self._checkpoints and (names := forgotten(self.strategy)):
            log.warning(
                "No checkpoint keeps %s of %s: should the run be stopped, it would go on without. Give the strategy "
                "state_dict() and load_state_dict().",
                ", ".join(names),
                type(self.strategy).__name__,
            )

    def _sample(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The wrapped strategy's messages, to clients with budget left; none if it has too few of those to go on."""
        allowed = self._accounts.open_to(server_round)

        def eligible() -> list[int]:
            return [node_id for node_id, client in self._registry.online(grid).items() if client.client_id in allowed]

        if not eligible():
            return []
        complete = len(self._registry.online(grid)) >= self.config.clients
        view = EligibleGrid(grid, eligible, timeout=0.0 if complete else self.config.node_timeout)
        try:
            return list(self.strategy.configure_train(server_round, arrays, config, view))
        except TooFewClientsError:
            if allowed >= {client.client_id for client in self._registry.online(grid).values()}:
                raise  # nobody is left out, and still there are too few
            return []

    def _weighted(self, reply: Message, shard_size: int) -> Message:
        """A client's reply as the wrapped strategy expects it: the update, and the client's public weight."""
        key = getattr(self.strategy, "weighted_by_key", "num-examples")
        weight = MetricRecord({key: self.plan.weight(shard_size)})
        reply.content = RecordDict({ARRAYS: reply.content[ARRAYS], "metrics": weight})
        return reply

    def _evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = self.task.model()
        model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        with torch.no_grad():
            return MetricRecord(dict(self.task.evaluate(model.eval())))

    def _finish_round(self, server_round: int, arrays: ArrayRecord, evaluate: EvaluateFn) -> None:
        """Tell the observers, then keep where the run stands: what is recorded beyond that is done again."""
        assert self.result.arrays is not None
        self._tell(Stage.EVALUATING, server_round, len(self._opened.grants))
        metrics = evaluate(server_round, self.result.arrays)
        if metrics is not None:
            self.result.evaluate_metrics_serverapp[server_round] = metrics
        record = RoundResult(
            round=server_round,
            metrics={name: float(value) for name, value in (metrics or {}).items() if isinstance(value, int | float)},
            spent=self._accounts.spent(),
            participants=tuple(sorted(self._outcome.updates)),
            failures=dict(sorted(self._outcome.failures.items())),
            unreconciled=self._accounts.unreconciled,
        )
        for observe in self._observers:
            observe(record)
        self._accounts.sign()
        reach("server.round-recorded")
        if self._checkpoints:
            save_checkpoint(self._checkpoints, self._checkpoint(server_round, arrays))
        reach("server.checkpointed")

    def _tell(self, stage: Stage, server_round: int, clients: int) -> None:
        if self._on_phase is not None:
            self._on_phase(Phase(stage, server_round, clients))

    def _check_outcome(self, server_round: int) -> None:
        """Stop when a round gave nothing and not because budgets are spent."""
        outcome = self._outcome
        if not outcome.updates and set(outcome.failures) != set(outcome.exhausted):
            reasons = "; ".join(f"{client_id}: {reason}" for client_id, reason in sorted(outcome.failures.items()))
            raise RoundFailedError(
                f"Round {server_round} brought no usable update ({reasons}). The run stops, so that no privacy is "
                "spent for nothing; the clients' own logs say what happened."
            )


def _as_arrays(parameters: Mapping[str, torch.Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(parameter.numpy()) for name, parameter in parameters.items()})


def _as_numpy(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in arrays.items()}


def _with_grant(message: Message, grant: Grant) -> Message:
    """The wrapped strategy's message to one client, with its grant.

    Raises:
        ValueError: the strategy sends something else than one model.
    """
    models = list(message.content.array_records.values())
    if len(models) != 1:
        raise ValueError(
            f"The wrapped strategy sends {len(models)} array records to a client; wrap one that sends one."
        )
    settings = next(iter(message.content.config_records.values()), ConfigRecord())
    content = RecordDict({ARRAYS: models[0], "config": settings, GRANT: grant.to_record()})
    return Message(content, message.metadata.dst_node_id, message.metadata.message_type)


def _like(aggregated: ArrayRecord, model: ArrayRecord) -> ArrayRecord:
    """The average in the model's own types: some strategies compute in float64 and leave it so.

    Raises:
        RoundFailedError: it is not finite. Every further round on such a model would spend privacy for nothing.
    """
    with np.errstate(over="ignore"):  # an overflow is found below
        values = {name: aggregated[name].numpy().astype(old.dtype) for name, old in model.items()}
    if not all(np.isfinite(value).all() for value in values.values()):
        raise RoundFailedError(
            "The average of the clients' updates is not finite. The run stops with the model of the round before: "
            "lower learning-rate, or look for a client that sends huge values."
        )
    return ArrayRecord({name: Array(value) for name, value in values.items()})
