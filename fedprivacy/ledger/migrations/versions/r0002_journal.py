"""Tables for the journal: every act from now on is an entry; the ledger's earlier contents are entered first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

from fedprivacy.ledger import journal
from fedprivacy.ledger.migrations.append_only import forbid_changes

revision = "0002"
down_revision = "0001"

_CHARGE = ("sampling_rate", "noise_multiplier", "relation")


def upgrade() -> None:
    """Enter the old tables' rows in the journal, and make the new tables from them."""
    connection = op.get_bind()
    old = {name: _rows(connection, name) for name in ("runs", "keys", "budgets", "charges")}
    if sa.inspect(connection).has_table("balances"):
        op.drop_table("balances")
    for name in ("charges", "budgets", "runs"):
        op.drop_table(name)
    _create_tables()
    forbid_changes("journal")
    forbid_changes("checkpoints")
    _adopt(connection, old)


def downgrade() -> None:
    """Refuse: a ledger must not lose charges."""
    raise NotImplementedError("A ledger is not taken back to an older version: it would forget charges.")


def _rows(connection: sa.Connection, table: str) -> list[dict[str, Any]]:
    order = " ORDER BY charge_id" if table == "charges" else ""
    return [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}{order}")).mappings()]


def _create_tables() -> None:
    op.create_table(
        "journal",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("number", sa.Integer, sa.ForeignKey("journal.number"), primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("at", sa.String, nullable=False),
        sa.Column("public_key", sa.String(64), primary_key=True),
        sa.Column("signature", sa.String(128), nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("entry", sa.Integer, sa.ForeignKey("journal.number"), nullable=False),
        sa.Column("dataset", sa.String, nullable=False),
        sa.Column("partition", sa.String, nullable=False),
    )
    op.create_table(
        "budgets",
        sa.Column("dataset_id", sa.String, primary_key=True),
        sa.Column("epsilon", sa.Float, nullable=True),
        sa.Column("delta", sa.Float, nullable=False),
        sa.Column("filter", sa.String, nullable=False),
        sa.Column("expires", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deliberate", sa.Boolean, nullable=False),
    )
    op.create_table(
        "charges",
        sa.Column("charge_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("entry", sa.Integer, sa.ForeignKey("journal.number"), nullable=False),
        sa.Column("dataset_id", sa.String, sa.ForeignKey("budgets.dataset_id"), nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        *_mechanism(primary_key=False),
        sa.Column("view", sa.String, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("state", sa.String(9), nullable=False),
        sa.UniqueConstraint("dataset_id", "run_id", "round", "attempt", name="one_charge_per_attempt"),
    )
    op.create_index("charges_by_round", "charges", ["run_id", "round"])
    op.create_table(
        "balances",
        sa.Column("dataset_id", sa.String, sa.ForeignKey("budgets.dataset_id"), primary_key=True),
        *_mechanism(primary_key=True),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("charges", sa.Integer, nullable=False),
    )


def _mechanism(*, primary_key: bool) -> list[sa.Column[Any]]:
    numbers = [sa.Column(name, sa.Float, nullable=False, primary_key=primary_key) for name in _CHARGE[:2]]
    return [*numbers, sa.Column(_CHARGE[2], sa.String(17), nullable=False, primary_key=primary_key)]


def _adopt(connection: sa.Connection, old: dict[str, list[dict[str, Any]]]) -> None:
    """Enter the contents of the old tables, in the order in which they must have happened, with their times."""
    for run in old["runs"]:
        facts = {name: run[name] for name in ("run_id", "dataset", "partition")}
        number = journal.append(connection, "run", **facts, since=str(run["started_at"]))
        _insert(connection, "runs", [facts | {"entry": number}])
    for key in old["keys"]:
        journal.append(connection, "key", client_id=key["client_id"], key_hash=key["key_hash"])
    if old["budgets"]:
        terms = {b["dataset_id"]: [b["epsilon"], b["delta"], b["filter"], None] for b in old["budgets"]}
        since = min(str(b["created_at"]) for b in old["budgets"])
        journal.append(connection, "budget", budgets=terms, since=since)
        names = ("dataset_id", "epsilon", "delta", "filter")
        _insert(
            connection,
            "budgets",
            [{name: b[name] for name in names} | {"expires": None, "deliberate": False} for b in old["budgets"]],
        )
    for (run_id, round, attempt), group in groupby(old["charges"], lambda c: (c["run_id"], c["round"], c["attempt"])):
        _adopt_charges(connection, {"run_id": run_id, "round": round, "attempt": attempt}, list(group))
    connection.execute(
        sa.text(
            "INSERT INTO balances SELECT dataset_id, sampling_rate, noise_multiplier, relation, SUM(steps), COUNT(*) "
            "FROM charges WHERE state != 'void' GROUP BY dataset_id, sampling_rate, noise_multiplier, relation"
        )
    )


def _adopt_charges(connection: sa.Connection, key: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Enter the charges of one attempt at one round, then their outcome."""
    events = sorted({tuple(row[name] for name in _CHARGE) for row in rows})
    steps = {row["dataset_id"]: [events.index(tuple(row[n] for n in _CHARGE)), row["steps"]] for row in rows}
    facts = {"events": [list(e) for e in events], "charges": steps, "since": str(rows[0]["charged_at"])}
    number = journal.append(connection, "charge", **key, view="server", **facts)
    for state in sorted({row["state"] for row in rows} - {"reserved"}):
        settled = {row["dataset_id"]: "" for row in rows if row["state"] == state}
        journal.append(connection, "settlement", **key, state=state, receipts=settled)
    names = ("dataset_id", *key, *_CHARGE, "view", "steps", "state")
    _insert(connection, "charges", [{name: row[name] for name in names} | {"entry": number} for row in rows])


def _insert(connection: sa.Connection, table: str, rows: Iterable[dict[str, Any]]) -> None:
    rows = list(rows)
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in rows[0]]
    connection.execute(sa.insert(sa.table(table, *columns)), rows)
