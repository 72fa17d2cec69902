"""Pages on paper, printed by the browser of this machine, without a network and without a window."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Programs that print, in the order in which they are looked for on PATH."""

HANG = 120.0  # seconds


def find_browser():
    """The path of a browser; None: there is none on PATH."""
    return next((found for found in map(shutil.which, BROWSERS) if found), None)


def printed_sheets(page):
    """The number of sheets on which a browser prints an HTML file."""
    options = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--no-pdf-header-footer"] + ["--no-sandbox"] * (os.geteuid() == 0)
    with tempfile.TemporaryDirectory() as profile:
        pdf = Path(profile) / "page.pdf"
        place = [f"--user-data-dir={profile}", f"--print-to-pdf={pdf}", page.absolute().as_uri()]
        subprocess.run([find_browser(), *options, *place], check=True, capture_output=True, timeout=HANG)
        return len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
