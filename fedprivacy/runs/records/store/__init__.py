"""The run store: finished rounds in the ledger's database, for people who watch a run, live or afterwards.

It is a copy for the eye. What was spent is in the ledger, and nothing here is read back to decide anything.
"""

from fedprivacy.runs.records.store.reader import ClientQuery, RunStore, StoredRun
from fedprivacy.runs.records.store.writer import RunRecording

__all__ = ["ClientQuery", "RunRecording", "RunStore", "StoredRun"]
