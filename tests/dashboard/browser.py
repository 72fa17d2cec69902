"""Pages in the system's Chromium, without a window, and what must hold of every one of them."""

import contextlib
from urllib.parse import urlsplit

from playwright.sync_api import expect, sync_playwright

from tests.printing import find_browser

ARGUMENTS = (
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

HANG = 60_000
"""Milliseconds after which something hangs."""

LEGIBLE = 10
"""Minimum size of a text of a figure, in px."""

_TEXT_SIZES = """() => [...document.querySelectorAll("svg")]
    .filter(svg => svg.checkVisibility() && svg.querySelector("text"))
    .map(svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width *
        Math.min(...[...svg.querySelectorAll("text")].map(text => parseFloat(getComputedStyle(text).fontSize))))"""


@contextlib.contextmanager
def chromium():
    """A browser."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=HANG)
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, expected="", **options):
    """A page of its own context; when it closes, nothing must have gone wrong or out.

    `expected` is part of what the browser itself says of an answer that is meant to fail.
    """
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
    context.set_default_timeout(HANG)
    page = context.new_page()
    page.trouble, page.asked = [], []
    page.on("console", lambda said: page.trouble.append(_words(said)) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.trouble.append(f"page error: {error}"))
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    page.wait_for_timeout(100)  # what was said last is still on its way
    context.close()
    unexpected = [said for said in page.trouble if not expected or expected not in said]
    assert not unexpected, unexpected
    assert {urlsplit(url).hostname for url in page.asked if not url.startswith(("data:", "blob:"))} <= {"127.0.0.1"}


def shown(page):
    """The page, once a run's charts near the top are drawn."""
    page.locator("#charts svg.marks, #charts canvas.marks").first.wait_for()
    return page


def text_sizes(page):
    """The size of the smallest text of each figure that the page shows, in px."""
    return page.evaluate(_TEXT_SIZES)


def _words(said):
    """The browser's message with the address that it is about, which messages about failed answers leave out."""
    return f"{said.text} {said.location.get('url', '')}".rstrip()
