"""The column for the unit of privacy of a run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0004"


def upgrade() -> None:
    """Give earlier runs the only unit that there was: a record, which is a row."""
    op.add_column("runs", sa.Column("unit", sa.String, nullable=False, server_default="record"))


def downgrade() -> None:
    """Refuse: a ledger must not lose charges."""
    raise NotImplementedError("A ledger is not taken back to an older version: it would forget charges.")
