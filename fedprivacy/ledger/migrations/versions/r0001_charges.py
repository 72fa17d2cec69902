"""Tables for runs, keys, budgets, charges and balances, as before migrations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("dataset", sa.String, nullable=False),
        sa.Column("partition", sa.String, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("client_id", sa.String, primary_key=True),
        sa.Column("key_hash", sa.String, nullable=False, unique=True),
    )
    op.create_table(
        "budgets",
        sa.Column("dataset_id", sa.String, primary_key=True),
        sa.Column("epsilon", sa.Float, nullable=True),
        sa.Column("delta", sa.Float, nullable=False),
        sa.Column("filter", sa.String, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "charges",
        sa.Column("charge_id", sa.Integer, primary_key=True),
        sa.Column("dataset_id", sa.String, sa.ForeignKey("budgets.dataset_id"), nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("sampling_rate", sa.Float, nullable=False),
        sa.Column("noise_multiplier", sa.Float, nullable=False),
        sa.Column("relation", sa.String(17), nullable=False),
        sa.Column("view", sa.String, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("state", sa.String(9), nullable=False),
        sa.Column("charged_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("dataset_id", "run_id", "round", "attempt", name="one_charge_per_attempt"),
    )
    op.create_index("charges_by_dataset", "charges", ["dataset_id", "state"])


def downgrade() -> None:
    """Refuse: a ledger must not lose charges."""
    raise NotImplementedError("A ledger is not taken back to an older version: it would forget charges.")
