"""Metrics of a run by name: which one is shown first, and on whose records each was measured.

`accuracy` is of the global model on the server's public records, `each_accuracy` of each client's model on its
held-out records, `clients_accuracy` of the global model on the clients' own records, with noise. Callbacks add names of
their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fedprivacy.values.evaluation import LEAST, MOST, OF_CLIENTS, OF_EACH, RECORDS


def shown_metric(declared: str, measured: Collection[str]) -> str:
    """Choose the metric that is shown first: the task's own, or the nearest that the run measured instead.

    After the task's metric come the same on held-out and on clients' own records, then any other mean.

    >>> shown_metric("accuracy", ["each_loss", "each_accuracy", "each_accuracy_least"])
    'each_accuracy'
    >>> shown_metric("accuracy", [])
    'accuracy'
    """
    bare = bare_name(declared)
    preferred = (declared, f"{OF_EACH}{bare}", f"{OF_CLIENTS}{bare}", bare, *main_metrics(measured))
    return next((name for name in preferred if name in measured), declared)


def bare_name(metric: str) -> str:
    """Return a metric's name without the records that it is of: `accuracy` for `each_accuracy`."""
    return metric.removeprefix(OF_EACH).removeprefix(OF_CLIENTS)


def main_metrics(measured: Iterable[str]) -> list[str]:
    """Leave out the number of records and the extremes of clients, which stand beside a metric."""
    return [
        name
        for name in measured
        if name != f"{OF_CLIENTS}{RECORDS}" and not (name.startswith(OF_EACH) and name.endswith((LEAST, MOST)))
    ]


def measured_names(rounds: Iterable[Mapping[str, float]]) -> list[str]:
    """List the names of all metrics of some rounds, each once, in the order in which they were measured."""
    return list(dict.fromkeys(name for metrics in rounds for name in metrics))


def measured_on(metric: str) -> str:
    """Name the model and the records that a metric is of, for people.

    >>> measured_on("each_auc")
    "each client's model on its held-out records"
    """
    if metric.startswith(OF_EACH):
        return "each client's model on its held-out records"
    if metric.startswith(OF_CLIENTS):
        return "global model on the clients' own records, with noise"
    return "global model on the server's public records"
