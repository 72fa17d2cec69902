"""Clients with noise multipliers of their own: the run store knows each one's, and the range of a run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Say of each client that is recorded that it had the noise multiplier of its run: until now all of one had."""
    op.add_column("recorded_runs", _number("largest_noise_multiplier"))
    op.add_column("recorded_clients", _number("noise_multiplier"))
    op.execute("UPDATE recorded_runs SET largest_noise_multiplier = noise_multiplier")
    op.execute(
        "UPDATE recorded_clients SET noise_multiplier = (SELECT recorded_runs.noise_multiplier FROM recorded_runs "
        "WHERE recorded_runs.run_id = recorded_clients.run_id)"
    )


def downgrade() -> None:
    """Refuse, as all of the ledger's migrations do."""
    raise NotImplementedError("A ledger is not taken back to an older version: it would forget charges.")


def _number(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=False, server_default="0")
