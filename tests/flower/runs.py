"""Whole runs on the in-process engine."""

from flwr.serverapp.strategy import FedAvg

from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.runs.folder import RunWriter

SAMPLING = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}


def run(plan, strategy=None, client=None, **kwargs):
    """The finished strategy and its round records, without round 0."""
    records = []
    wrapped = PrivateStrategy(strategy or FedAvg(**SAMPLING), plan, observers=[records.append], **kwargs)
    app = client or private_client(plan.task, plan.config)
    try:
        wrapped.start(InProcessGrid(app, plan.config.clients, {}))
    finally:
        wrapped.records = records[1:]
    return wrapped


def stop_once_in_round_two(monkeypatch):
    """Let the next run be stopped before its second round is written; those after it go on."""
    write, stopped = RunWriter.__call__, []

    def stop(self, result):
        if result.round == 2 and not stopped:
            stopped.append(1)
            raise KeyboardInterrupt
        write(self, result)

    monkeypatch.setattr(RunWriter, "__call__", stop)
