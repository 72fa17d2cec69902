"""The run store: a run's finished rounds, in `run.db` in its folder and, for pages elsewhere, in its ledger's database.

The file in the folder is the run's record: each round is there, whole and durably, before the next begins. Beside it
stands an index by clients and rounds, which a thread writes while the run goes on, and from which pages read no more
than they show. Where a run charges a ledger elsewhere, such as that of a deployment, pages that know only the ledger
find the same index there, in the same tables and by the same reader. What was spent is in the ledger, and nothing here
is read back to decide anything.
"""

from fedprivacy.runs.records.store.database import EARLIER, RECORD, RecordDatabase, read_lines, url_in
from fedprivacy.runs.records.store.reader import ClientQuery, RunStore, StoredRun, in_memory
from fedprivacy.runs.records.store.writer import RunRecording

__all__ = [
    "EARLIER",
    "RECORD",
    "ClientQuery",
    "RecordDatabase",
    "RunRecording",
    "RunStore",
    "StoredRun",
    "in_memory",
    "read_lines",
    "url_in",
]
