"""What an audit found as a page for people: one file, no script, nothing from the network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedprivacy.audit.findings import Findings
from fedprivacy.figures import audit_figure, to_svg
from fedprivacy.runs.page import page

PAGE = "audit.html"


def write_page(findings: Findings, at: float, folder: Path) -> Path:
    """Write the page into a folder, which is made if it is not there.

    Args:
        findings: what it shows.
        at: when they were found, in seconds since the epoch.
        folder: where.
    """
    drawing = to_svg(audit_figure(findings.results(at), findings.subject)) if findings.lower_bounds else ""
    when = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / PAGE
    file.write_text(page("audit.html.jinja", "audit", findings=findings, when=when, drawing=drawing), encoding="utf-8")
    return file
