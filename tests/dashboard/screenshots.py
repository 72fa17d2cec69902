"""Takes the documentation's pictures, of real runs: `python -m tests.dashboard.screenshots docs/images`."""

import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect

from tests.dashboard.browser import chromium, opened, shown
from tests.dashboard.shown import serving

UNEQUAL = "--clients 30 --batch-size 24 --noise-multiplier 5.5 --epsilon 3 --fraction-train 0.6 --rounds 100 --seed 1"

RUNS = {"digits-alike": ["--seed", "0"], "digits-unequal": UNEQUAL.split()}

LARGE = {"viewport": {"width": 1360, "height": 1180}}

PAGES = {
    "dashboard": LARGE,
    "dashboard-dark": LARGE | {"color_scheme": "dark"},
    "dashboard-phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True},
}


def take(images, folder):
    """The top of the page, light, dark and on a phone, and the table of clients."""
    with serving(folder) as address, chromium() as browser:
        for name, options in PAGES.items():
            with opened(browser, **options) as page:
                page.goto(address)
                draw_all(page)
                page.screenshot(path=images / f"{name}.png")
                if name == "dashboard":  # taller, or the bar would cover the section's top
                    page.set_viewport_size({"width": 1360, "height": 1700})
                    page.locator("#clients").screenshot(path=images / "dashboard-clients.png")


def draw_all(page):
    """Every figure."""
    shown(page)
    expect(page.get_by_text("Drawing…").filter(visible=True)).to_have_count(0)


def main():
    """Write the pictures into the folder that is named."""
    with tempfile.TemporaryDirectory() as folder:
        for name, options in RUNS.items():
            command = [sys.executable, "-m", "fedprivacy", "simulate", "--json", *options, "--out", f"{folder}/{name}"]
            subprocess.run(command, check=True)
        take(Path(sys.argv[1]), Path(folder))


if __name__ == "__main__":
    main()
