"""Takes the documentation's pictures, of real runs: `python -m tests.dashboard.screenshots docs/images`."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.dashboard.browser import chromium, opened, shown
from tests.dashboard.shown import serving

UNEQUAL = "--clients 40 --batch-size 16 --noise-multiplier 2.2 --epsilon 3 --fraction-train 0.7 --rounds 80 --seed 1"

RUNS = {"digits-alike": ["--seed", "0"], "digits-unequal": UNEQUAL.split()}


def simulate(folder):
    """Ten clients that are alike, and forty that are not."""
    for name, options in RUNS.items():
        out = ["--out", str(folder / name)]
        subprocess.run([sys.executable, "-m", "fedprivacy", "simulate", "--json", *options, *out], check=True)


def take(images, folder):
    """The top of the page, all of it, a phone, and a comparison."""
    with serving(folder) as address, chromium() as browser:
        for name, options in {
            "dashboard": {"viewport": {"width": 1360, "height": 1000}},
            "dashboard-dark": {"viewport": {"width": 1360, "height": 1000}, "color_scheme": "dark"},
            "dashboard-phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True},
        }.items():
            with opened(browser, **options) as page:
                page.goto(address)
                draw_all(page)
                page.screenshot(path=images / f"{name}.png")
                if name == "dashboard":
                    page.screenshot(path=images / "dashboard-whole.png", full_page=True)


def draw_all(page):
    """Every figure; they are drawn when somebody comes near."""
    shown(page)
    for place in ("#client-table", "#failures", "#whatif-section", "footer"):
        page.locator(place).scroll_into_view_if_needed()
        page.wait_for_timeout(1500)
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(500)


def main():
    """Write the pictures into the folder that is named."""
    images = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        simulate(Path(name))
        take(images, Path(name))


if __name__ == "__main__":
    main()
