"""Our client as a subject of audits: what it is asked, with records that the auditor chose, and what it shows."""
