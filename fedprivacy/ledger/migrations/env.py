"""Alembic's entry: runs the migrations on the connection that it is given, in that connection's transaction."""

from alembic import context

from fedprivacy.ledger.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
