"""Columns for clients' own noise multipliers in the run store, and for the range of a run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Give each recorded client the noise multiplier of its run, which all clients had until now."""
    op.add_column("recorded_runs", _number("largest_noise_multiplier"))
    op.add_column("recorded_clients", _number("noise_multiplier"))
    op.execute("UPDATE recorded_runs SET largest_noise_multiplier = noise_multiplier")
    op.execute(
        "UPDATE recorded_clients SET noise_multiplier = (SELECT recorded_runs.noise_multiplier FROM recorded_runs "
        "WHERE recorded_runs.run_id = recorded_clients.run_id)"
    )


def downgrade() -> None:
    """Refuse: a ledger must not lose charges."""
    raise NotImplementedError("A ledger is not taken back to an older version: it would forget charges.")


def _number(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=False, server_default="0")
