"""The round, top to bottom: a wrapper that makes any Flower strategy account for every client's privacy."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedprivacy.accountant import CentralAccountant
from fedprivacy.accounting import MechanismChanged
from fedprivacy.flower.eligible import EligibleGrid
from fedprivacy.flower.exchange import exchange
from fedprivacy.flower.records import GRANT, Grant
from fedprivacy.flower.registry import ClientRegistry, EnrolledClient, TooFewClientsError
from fedprivacy.flower.release import ARRAYS
from fedprivacy.flower.replies import OpenRound, RoundOutcome, sort_replies
from fedprivacy.gradients import trainable_parameters
from fedprivacy.identity import dataset_id
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.optimizers import MovingAverage
from fedprivacy.plan import RunPlan
from fedprivacy.rounds import Observer, RoundRecord

log = logging.getLogger("fedprivacy.server")

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

    Formal guarantee: see `fedprivacy.accountant`.

    Args:
        strategy: any Flower strategy.
        plan: the run's public numbers: configuration, task, and what a local step costs.
        run_id: unique in the ledger; None: a new one.
        observers: told of every finished round, and of round 0 before the first.

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
    ) -> None:
        self.strategy = strategy
        self.plan = plan
        self.config = plan.config
        self.task = plan.task
        self.run_id = run_id or uuid.uuid4().hex
        self.result = Result()
        self.stopped_because: str | None = None
        self._observers = observers
        self._average = MovingAverage(plan.config.ema_decay)
        self._registry = ClientRegistry(plan.config.node_timeout)
        self._ledger: Ledger  # these three are set by `start`, when it is known who the clients are
        self._accountant: CentralAccountant
        self._earlier_runs: int
        self._keys: dict[str, str] = {}
        self._left_out: set[str] = set()
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
        evaluate = evaluate_fn or self._evaluate
        arrays = self.result.arrays = initial_arrays or self._new_model()
        self._average.begin(arrays.to_torch_state_dict())
        self._open_run(grid)
        self._finish_round(0, evaluate)
        for server_round in range(1, (num_rounds or self.config.rounds) + 1):
            messages = list(self.configure_train(server_round, arrays, train_config or ConfigRecord(), grid))
            if not messages:
                self.stopped_because = "no client has budget left"
                break
            replies = exchange(grid, messages, timeout or self.config.round_timeout)
            aggregated, metrics = self.aggregate_train(server_round, replies)
            if aggregated is not None:
                arrays = aggregated
                self._average.add(arrays.to_torch_state_dict())
                self.result.arrays = _as_arrays(self._average.average)
            if metrics:
                self.result.train_metrics_clientapp[server_round] = metrics
            self._finish_round(server_round, evaluate)
            self._check_outcome(server_round)
        return self.result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy choose among clients with budget left, and reserve what each may spend.

        Returns no message when no client has budget left.
        """
        self._admit_late(grid)
        messages = self._sample(server_round, arrays, config, grid)
        clients = {m.metadata.dst_node_id: self._registry[m.metadata.dst_node_id] for m in messages}
        if len(clients) < len(messages):
            raise ValueError("The wrapped strategy asks a client twice in a round: a release that nobody would charge.")
        wanted = dict.fromkeys((client.client_id for client in clients.values()), self.config.local_steps)
        granted = self._accountant.grant(server_round, wanted)
        grants = {
            node_id: self._grant(client, server_round, granted[client.client_id])
            for node_id, client in clients.items()
            if client.client_id in granted
        }
        self._opened = OpenRound(server_round, arrays, grants)
        return [_with_grant(m, grants[m.metadata.dst_node_id]) for m in messages if m.metadata.dst_node_id in grants]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Match receipts with grants, commit what was spent, and let the wrapped strategy average the rest."""
        outcome = self._outcome = sort_replies(replies, self._opened)
        self._accountant.commit(server_round, outcome.spent)
        self._accountant.void(server_round, outcome.untouched)
        self._left_out.update(outcome.exhausted)
        if not outcome.updates:
            return None, None
        in_fixed_order = [self._weighted(outcome.updates[client_id]) for client_id in sorted(outcome.updates)]
        aggregated, metrics = self.strategy.aggregate_train(server_round, in_fixed_order)
        return _like(aggregated, self._opened.arrays) if aggregated else None, metrics

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

    def _open_run(self, grid: Grid) -> None:
        """Wait for the clients, then open the ledger: their identities say whether this is a deployment."""
        self._registry.wait_for(grid, self.config.clients)
        online = list(self._registry.online(grid).values())
        deployed = any(client.key_hash for client in online)
        config = self.config
        self._ledger = Ledger(config.ledger_url(deployed=deployed))
        self._earlier_runs = self._ledger.open_run(self.run_id, self.task.dataset, self._partition(online))
        self._accountant = CentralAccountant(
            self._ledger, self.run_id, self.plan.relation, config.budget, config.filter
        )
        self._open_accounts(online)

    def _partition(self, clients: Iterable[EnrolledClient]) -> str:
        """The name of the split that the clients hold: every run on one ledger must have the same."""
        splits = {client.num_partitions for client in clients}
        names = [
            f"{parts} clients: {self.task.partition(parts)}" if parts else "own folders" for parts in sorted(splits)
        ]
        if len(names) != 1:
            raise LedgerError(f"the clients hold parts of different splits ({'; '.join(names)}); start them alike.")
        return names[0]

    def _open_accounts(self, clients: Iterable[EnrolledClient]) -> None:
        """Open the clients' accounts, each bound to the key of its client."""
        self._keys |= {client.client_id: client.key_hash for client in clients}
        self._ledger.bind_keys({client.client_id: client.key_hash for client in clients if client.key_hash})
        self._accountant.enrol(
            {client.client_id: dataset_id(self.task, client.client_id) for client in clients},
            {client.client_id: self.plan.event(client.shard_size) for client in clients},
        )

    def _admit_late(self, grid: Grid) -> None:
        """Open accounts for clients that have come since the last round; whoever cannot have one stays out, alone."""
        self._registry.enrol_new(grid)
        for client in self._registry.online(grid).values():
            try:
                if client.client_id not in self._keys:
                    self._open_accounts([client])
                elif self._keys[client.client_id] != client.key_hash:
                    raise LedgerError("it comes with another key than at its first round")
            except (LedgerError, MechanismChanged) as problem:
                log.warning("Client %s is left out: %s", client.client_id, problem)
                self._left_out.add(client.client_id)

    def _sample(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The wrapped strategy's messages, to clients with budget left; none if it has too few of those to go on."""
        spent = self._accountant.spent()
        barred = self._left_out | {client_id for client_id, client in spent.items() if client.exhausted}
        allowed = spent.keys() - barred

        def eligible() -> list[int]:
            return [node_id for node_id, client in self._registry.online(grid).items() if client.client_id in allowed]

        if not eligible():
            return []
        complete = len(self._registry.online(grid)) >= self.config.clients
        view = EligibleGrid(grid, eligible, timeout=0.0 if complete else self.config.node_timeout)
        try:
            return list(self.strategy.configure_train(server_round, arrays, config, view))
        except TooFewClientsError:
            if not barred:
                raise
            return []

    def _grant(self, client: EnrolledClient, server_round: int, steps: int) -> Grant:
        event = self.plan.event(client.shard_size)
        return Grant(
            run_id=self.run_id,
            client_id=client.client_id,
            round=server_round,
            steps=steps,
            sampling_rate=event.sampling_rate,
            noise_multiplier=event.noise_multiplier,
            relation=event.relation,
            clipping_norm=self.config.clipping_norm,
            clipping=self.config.clipping,
            expected_batch_size=event.sampling_rate * self.plan.shard_size(client.shard_size),
            optimizer=self.config.optimizer,
            learning_rate=self.config.learning_rate,
            momentum=self.config.momentum,
            weight_decay=self.config.weight_decay,
            earlier_runs=self._earlier_runs,
        )

    def _weighted(self, reply: Message) -> Message:
        """The reply as the wrapped strategy expects it: the update, and the client's public weight."""
        client = self._registry[reply.metadata.src_node_id]
        weight = MetricRecord(
            {getattr(self.strategy, "weighted_by_key", "num-examples"): self.plan.weight(client.shard_size)}
        )
        reply.content = RecordDict({ARRAYS: reply.content[ARRAYS], "metrics": weight})
        return reply

    def _evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = self.task.model()
        model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        with torch.no_grad():
            return MetricRecord(dict(self.task.evaluate(model.eval())))

    def _finish_round(self, server_round: int, evaluate: EvaluateFn) -> None:
        assert self.result.arrays is not None
        metrics = evaluate(server_round, self.result.arrays)
        if metrics is not None:
            self.result.evaluate_metrics_serverapp[server_round] = metrics
        record = RoundRecord(
            round=server_round,
            metrics={name: float(value) for name, value in (metrics or {}).items() if isinstance(value, int | float)},
            spent=self._accountant.spent(),
            participants=tuple(sorted(self._outcome.updates)),
            failures=dict(sorted(self._outcome.failures.items())),
        )
        for observe in self._observers:
            observe(record)

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
