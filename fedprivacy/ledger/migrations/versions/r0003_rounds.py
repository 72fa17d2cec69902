"""Tables of the run store: finished rounds, for monitoring. They are no part of the ledger, and prove nothing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create its tables, empty: records of earlier runs are in their folders."""
    _create_runs()
    _create_clients()
    op.create_table(
        "recorded_rounds",
        sa.Column("run_id", sa.String, sa.ForeignKey("recorded_runs.run_id"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("epsilons", sa.LargeBinary, nullable=False),
        *(
            sa.Column(name, sa.Integer, nullable=False)
            for name in ("clients", "participants", "failed", "exhausted", "unreconciled")
        ),
    )
    op.create_table(
        "recorded_epsilons",
        sa.Column("run_id", sa.String, sa.ForeignKey("recorded_runs.run_id"), primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epsilons", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "recorded_failures",
        sa.Column("run_id", sa.String, sa.ForeignKey("recorded_runs.run_id"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("client_id", sa.String, primary_key=True),
        sa.Column("reason", sa.String, nullable=False),
    )
    op.create_table(
        "audits",
        sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("recorded_runs.run_id"), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("attack", sa.String, nullable=False),
        sa.Column("client_id", sa.String, nullable=False),
        sa.Column("lower", sa.Float, nullable=False),
        sa.Column("confidence", sa.Float, nullable=False),
        sa.Column("upper", sa.Float, nullable=True),
        sa.Column("delta", sa.Float, nullable=False),
        sa.Column("accountant", sa.String, nullable=False),
        sa.Column("view", sa.String, nullable=False),
        sa.Index("audits_by_run", "run_id"),
    )


def downgrade() -> None:
    """Refuse: a ledger must not lose charges."""
    raise NotImplementedError("A ledger is not taken back to an older version: it would forget charges.")


def _create_runs() -> None:
    op.create_table(
        "recorded_runs",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("noise_multiplier", sa.Float, nullable=False),
        sa.Column("relation", sa.String, nullable=False),
        sa.Column("metric", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("stage_round", sa.Integer, nullable=False),
        sa.Column("stage_clients", sa.Integer, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("updated", sa.Float, nullable=False),
        sa.Column("changes", sa.Integer, nullable=False),
    )


def _create_clients() -> None:
    op.create_table(
        "recorded_clients",
        sa.Column("run_id", sa.String, sa.ForeignKey("recorded_runs.run_id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("client_id", sa.String, nullable=False),
        sa.Column("epsilon", sa.Float, nullable=True),
        sa.Column("delta", sa.Float, nullable=False),
        sa.Column("budget", sa.Float, nullable=True),
        sa.Column("share", sa.Float, nullable=True),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("rounds", "steps", "steps_left")),
        sa.Column("sampling_rate", sa.Float, nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("averaged", "failed")),
        sa.Column("exhausted_in", sa.Integer, nullable=True),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=True),
        sa.UniqueConstraint("run_id", "client_id", name="one_number_per_client"),
    )
