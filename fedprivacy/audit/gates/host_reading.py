"""The gate for a data owner's own reader: one cell may change its own record, and no other."""

from __future__ import annotations

from fedprivacy.audit.findings import Gate
from fedprivacy.audit.gates.gate import Judged, verdict
from fedprivacy.audit.host import Host
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.tasks.one_cell import READERS, try_cells
from fedprivacy.values.wording import count_text

NAME = "reading"
PROVES = "One record changes nothing that the task reads of another."
ASSUMES = (
    "Cells of the first rows of .csv and .parquet files were changed, in a copy; they stand for all others, and files "
    "of other kinds were not looked at."
)


def check(audited: Audited, host: Host) -> Gate:
    """Fail if one cell changes other records, makes reading fail, or moves a public number of records."""
    trial = try_cells(host.node.task, host.node.settings.folder)
    reasons = [f"{misread}; {READERS}." for misread in trial.misread]
    proves = f"Nothing: no cell could be changed ({trial.untried})." if trial.untried else PROVES
    if trial.left:
        proves += f" {count_text(trial.columns, 'column')} tried, {trial.left} left out for want of time."
    return verdict(NAME, proves, ASSUMES, Judged(float(len(reasons)), reasons))
