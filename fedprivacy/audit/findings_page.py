"""Page that shows people an audit's findings: one file, no script, nothing from the network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedprivacy.audit.findings import Findings
from fedprivacy.figures import audit_figure
from fedprivacy.figures.style import WIDTH
from fedprivacy.runs.records.folder import writing
from fedprivacy.runs.records.html_page import for_every_screen, page

PAGE = "audit.html"


def write_page(findings: Findings, at: float, folder: Path) -> Path:
    """Write the page into a folder, which is made if it is not there.

    Args:
        findings: what it shows.
        at: when they were found, in seconds since the epoch.
        folder: where.

    Raises:
        RunFolderError: it cannot be written.
    """
    drawing, results = "", findings.results(at)
    if results:
        drawing = for_every_screen(lambda width, below: audit_figure(results, findings.subject, width), WIDTH)
    when = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    text = page("audit.html.jinja", "audit", findings=findings, when=when, drawing=drawing)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PAGE).write_text(text, encoding="utf-8")
    return folder / PAGE
