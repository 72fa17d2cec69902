"""Standings: each client's past and allowance on the ledger before a run's first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedprivacy.accounting.histories import Executed, without
from fedprivacy.ledger import NOTHING_SPENT, Allowance, Ledger
from fedprivacy.values.events import History, PoissonSampledGaussian


@dataclass(frozen=True, slots=True)
class Standing:
    """A client's past and what is allowed on its dataset.

    Attributes:
        past: what its dataset was charged before the run.
        allowance: the budget and the filter in force.
        question: what the answer to the task's own question will cost before the first round, part of the past; None:
            nothing is asked.
        charged: what this run was charged before it was stopped; not part of the past.
    """

    past: History
    allowance: Allowance
    question: PoissonSampledGaussian | None = None
    charged: History = field(default_factory=dict)

    @property
    def alike(self) -> tuple[Executed, Allowance]:
        """A key that clients have in common when all that follows from their standing is the same."""
        return frozenset(self.past.items()), self.allowance

    def charged_at(self, sampling_rate: float) -> float | None:
        """Return the noise multiplier that this run has charged at a sampling rate; None: it has charged none.

        Only a client's own guard can have reported several. Of these the largest tells least of the records.
        """
        poisson = [event for event in self.charged if isinstance(event, PoissonSampledGaussian)]
        return max((event.noise_multiplier for event in poisson if event.sampling_rate == sampling_rate), default=None)


def standings_on(
    ledger: Ledger | None, run_id: str, datasets: Mapping[str, str], new: Callable[[str, Allowance | None], Allowance]
) -> dict[str, Standing]:
    """Read how clients stand on a ledger, by client_id.

    Args:
        ledger: the books; None: there are none yet, and nobody was charged.
        run_id: of the run itself; empty: it has charged nobody yet.
        datasets: dataset_id by client_id.
        new: makes the allowance of a client whose dataset has none, from its client_id and one that is in force on
            another dataset (None: there is none).
    """
    if ledger is None:
        return {client_id: Standing({}, new(client_id, None)) for client_id in datasets}
    accounts, allowances = ledger.accounts(datasets.values()), ledger.allowances(datasets.values())
    of_run = ledger.accounts_in_run(run_id, datasets.values()) if run_id else {}
    known = next(iter(allowances.values()), None)
    standings = {}
    for client_id, dataset in datasets.items():
        charged = of_run.get(dataset, NOTHING_SPENT).history
        past = without(accounts.get(dataset, NOTHING_SPENT).history, charged)
        standings[client_id] = Standing(past, allowances.get(dataset) or new(client_id, known), charged=charged)
    return standings
