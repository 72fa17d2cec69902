"""Tables for answers to questions, so that an answer that was paid for can be reread for free."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fedprivacy.ledger.migrations.append_only import forbid_changes

revision = "0004"
down_revision = "0003"

_QUESTION = ("run_id", "round", "attempt", "number")
_CHARGE = ("dataset_id", "run_id", "round", "attempt")


def upgrade() -> None:
    """Create the tables, empty: no question was asked before."""
    op.create_table(
        "questions",
        *_question_key(),
        sa.Column("entry", sa.Integer, sa.ForeignKey("journal.number"), nullable=False),
        sa.Column("at", sa.String, nullable=False),
        sa.Column("question", sa.Text, nullable=False),
    )
    op.create_index("questions_by_text", "questions", ["question"], postgresql_using="hash")
    op.create_table(
        "answers",
        *_question_key(),
        sa.Column("dataset_id", sa.String, primary_key=True),
        sa.Column("entry", sa.Integer, sa.ForeignKey("journal.number"), nullable=False),
        sa.Column("noise_multiplier", sa.Float, nullable=False),
        sa.Column("totals", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(_QUESTION, [f"questions.{name}" for name in _QUESTION]),
        sa.ForeignKeyConstraint(_CHARGE, [f"charges.{name}" for name in _CHARGE]),
    )
    forbid_changes("questions")
    forbid_changes("answers")


def downgrade() -> None:
    """Refuse: a ledger must not lose charges."""
    raise NotImplementedError("A ledger is not taken back to an older version: it would forget charges.")


def _question_key() -> list[sa.Column[int] | sa.Column[str]]:
    numbers = (sa.Column(name, sa.Integer, primary_key=True, autoincrement=False) for name in _QUESTION[1:])
    return [sa.Column("run_id", sa.String, primary_key=True), *numbers]
