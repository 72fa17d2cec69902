"""Reconciliation of a client's own figures with the ledger's: the larger of both counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from fedprivacy._support.table import figure_columns
from fedprivacy.ledger.charges import held_of
from fedprivacy.ledger.store import Ledger
from fedprivacy.values.event_codec import from_fields
from fedprivacy.values.events import UNNAMED, Claims, PoissonSampledGaussian
from fedprivacy.values.wording import run_text


def read_claims(file: Path) -> Claims:
    """Read what a client spent, from the lines of `fedprivacy guard export`.

    Raises:
        ValueError: a line was not written by a guard; the error names it.
        OSError: the file cannot be read.
    """
    claims: Counter[tuple[str, PoissonSampledGaussian]] = Counter()
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            fields = json.loads(line)
            runs = {"charge": fields["run_id"], "correction": UNNAMED}
            claims[runs[fields["kind"]], _event(fields["event"])] += int(fields["steps"])
        except (ValueError, TypeError, KeyError) as problem:
            raise ValueError(f"line {number} of '{file}' was not written by 'fedprivacy guard export'.") from problem
    return dict(claims)


def _event(fields: Mapping[str, Any]) -> PoissonSampledGaussian:
    event = from_fields(fields)
    if not isinstance(event, PoissonSampledGaussian):
        raise TypeError("the ledger holds Poisson-sampled Gaussians alone")
    return event


def compared(ledger: Ledger, dataset_id: str, claims: Claims) -> Table:
    """Make a table of both figures for each run and event that the client knows."""
    columns = figure_columns("q", "sigma", "client", "ledger", "added", wrapped=True)
    table = Table("run", *columns, title="Steps, by run", title_justify="left", caption="The larger of both counts.")
    with ledger.database.reading() as connection:
        for (run_id, event), held in held_of(connection, dataset_id, claims).items():
            claimed = claims[run_id, event]
            rates = f"{event.sampling_rate:.4g}", f"{event.noise_multiplier:.4g}"
            table.add_row(run_text(run_id), *rates, str(claimed), str(held), str(max(0, claimed - held)))
    return table
