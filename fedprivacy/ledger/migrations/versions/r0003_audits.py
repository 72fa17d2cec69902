"""The table of audits: what attacks on runs proved, for people. It is no part of the journal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create it, empty."""
    op.create_table(
        "audits",
        sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("run_id", sa.String, nullable=False),
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
