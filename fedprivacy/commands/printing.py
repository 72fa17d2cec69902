"""Pages as PDF, printed by the browser of this machine, without a network and without a window."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Programs that print, in the order in which they are looked for on PATH."""

_OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--no-pdf-header-footer",
)
_PATIENCE = 120.0  # seconds; a page of a hundred sheets takes ten


class PrintingError(RuntimeError):
    """A page cannot be printed here; the error says why, and how else to print it."""


def find_browser() -> str | None:
    """Return the path of a browser that prints; None: there is none on PATH."""
    return next((found for found in map(shutil.which, BROWSERS) if found), None)


def print_page(page: Path, pdf: Path) -> None:
    """Print a page, an HTML file, into a PDF.

    Raises:
        PrintingError: there is no browser, or it fails; no PDF is written.
    """
    by_hand = f"open {page.name} in any browser and print it to a file"
    if (browser := find_browser()) is None:
        raise PrintingError(f"there is no browser on PATH ({', '.join(BROWSERS[:3])}); {by_hand}.")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # under root Chromium does not start otherwise
    with tempfile.TemporaryDirectory() as profile:
        printed = Path(profile) / "page.pdf"
        place = [f"--user-data-dir={profile}", f"--print-to-pdf={printed}", page.absolute().as_uri()]
        try:
            subprocess.run([browser, *_OPTIONS, *root, *place], check=True, capture_output=True, timeout=_PATIENCE)
            shutil.copyfile(printed, pdf)
        except (OSError, subprocess.SubprocessError) as problem:
            why = f"{Path(browser).name} could not print ({type(problem).__name__})"
            raise PrintingError(f"{why}; {by_hand}.") from problem
