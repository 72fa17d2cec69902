"""Whole runs on the in-process engine."""

import random

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.flower.simulated.populations import Order, Population
from fedprivacy.ledger import Ledger
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.values.events import PoissonSampledGaussian

SAMPLING = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}


class Silent(InProcessGrid):
    """A grid that lets no message through."""

    def push_messages(self, messages):
        assert not list(messages), "a population sends no messages"
        return []


def order_of(part, **changed):
    """Return what a population is asked to train: one client's round of a step, but for some of it."""
    usual = {"client_id": f"client-{part}", "mechanism": SampledGaussianSum(PoissonSampledGaussian(0.5, 1.0), 1.0)}
    usual |= {"expected_batch_size": 15.0, "steps": 1, "weight": 1.0}
    return Order(part=part, **usual | changed)


class Noting(FedAvg):
    """FedAvg, and the weights of the updates that it averaged in each round."""

    def __init__(self):
        super().__init__(**SAMPLING)
        self.weights = []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.weights.append([reply.content["metrics"]["num-examples"] for reply in replies])
        return super().aggregate_train(server_round, replies)


def run(plan, strategy=None, client=None, *, grid=None, population=None, observers=(), initial_arrays=None, **kwargs):
    """The finished strategy and its round records, without round 0.

    `grid` is a kind of InProcessGrid, or a grid that is made already. With a population no message is let through.
    """
    records = []
    watching = [records.append, *observers]
    wrapped = PrivateStrategy(strategy or FedAvg(**SAMPLING), plan, observers=watching, **kwargs)
    app = client or private_client(plan.task, plan.config)
    made = grid or (InProcessGrid if population is None else Silent)
    wrapped.grid = made(app, plan.config.clients, {}, population=population) if isinstance(made, type) else made
    try:
        wrapped.start(wrapped.grid, initial_arrays)
    finally:
        wrapped.records = [record for record in records if record.round]
    return wrapped


def run_together(plan, strategy=None, **kwargs):
    """The same of a population, in this process."""
    random.seed(0)  # by which Flower samples
    return run(plan, strategy, **{"population": Population(plan.task, plan.config)} | kwargs)


def model_of(done):
    """The model that a run left, flat."""
    return torch.cat([values.flatten() for values in done.result.arrays.to_torch_state_dict().values()])


def history_of(ledger_url, client_id, dataset="blobs"):
    """A client's charge, as a ledger has it."""
    name = f"{dataset}/{client_id}"
    return Ledger(ledger_url).accounts([name])[name].history


def answering(plan, change):
    """The real ClientApp, whose reply to a round becomes `change(message, context, reply)`."""
    honest, app = private_client(plan.task, plan.config), ClientApp()
    app.query("enrol")(honest)
    app.train()(lambda message, context: change(message, context, honest(message, context)))
    return app


def tampered(plan, change, client_ids=("client-1",)):
    """The real ClientApp, with the replies of some clients changed on their way."""

    def changed(message, context, reply):
        ours = f"client-{context.node_config['partition-id']}" in client_ids
        return change(message, reply) if ours else reply

    return answering(plan, changed)


def stop_once_in_round_two(monkeypatch):
    """Let the next run be stopped before its second round is written; those after it go on."""
    write, stopped = RunWriter.__call__, []

    def stop(self, result):
        if result.round == 2 and not stopped:
            stopped.append(1)
            raise KeyboardInterrupt
        write(self, result)

    monkeypatch.setattr(RunWriter, "__call__", stop)
