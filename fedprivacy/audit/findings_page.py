"""Page that shows people an audit's findings: one file, no script, nothing from the network."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from fedprivacy.audit.findings import Findings
from fedprivacy.figures import audit_figure
from fedprivacy.figures.style import WIDTH
from fedprivacy.runs.records.folder import RunFolderError, writing
from fedprivacy.runs.records.html_page import for_every_screen, page

PAGE = "audit.html"


def check_place(folder: Path) -> None:
    """Refuse a folder that the page could not be written into, before the audit takes its time. Nothing is made.

    Raises:
        RunFolderError: says why not.
    """
    nearest = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not nearest.is_dir():
        raise RunFolderError(f"out is '{folder}', and '{nearest}' is a file; name a folder.")
    if not os.access(nearest, os.W_OK):
        raise RunFolderError(f"out is '{folder}', which cannot be written; name another folder, or mend this one.")


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
