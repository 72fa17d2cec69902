"""The report and what a notebook shows, as a browser without a network and with other fonts draws them."""

import pytest

from fedprivacy.audit.findings import Findings
from fedprivacy.figures.style import PAPER
from fedprivacy.runs.records.report import report_html
from fedprivacy.runs.records.run import Run
from tests.dashboard.browser import LEGIBLE, text_sizes
from tests.notebook import shown
from tests.runs.histories import alike, unlike

CLIPPED = """() => [...document.querySelectorAll("svg text")].filter(text => {
    const [inner, outer] = [text, text.ownerSVGElement].map(element => element.getBoundingClientRect());
    return inner.right > outer.right + 0.5 || inner.left < outer.left - 0.5;
}).map(text => text.textContent)"""

HISTORIES = {
    "exhausted": unlike(6, quota=12),
    "fan": unlike(200, quota=25),
    "long-names": alike(1, task="a-task-with-a-long-name", metric="balanced accuracy"),
}


@pytest.fixture
def page(browser):
    """A page that lacks a network: what it asks for is listed in `asked`, and fails."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.asked, page.complaints = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    yield page
    context.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "width", "media"), [("long-names", 390, "screen"), ("fan", 680, "print")])
def test_a_report_s_figures_are_legible_without_scrolling_sideways(page, name, width, media):
    """On a phone, and on A4 paper."""
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(media=media)
    page.set_content(report_html(HISTORIES[name]))
    sizes = text_sizes(page)
    assert len(sizes) == 3 and min(sizes) >= LEGIBLE
    for figure in page.locator("figure, figure div").all():
        assert figure.evaluate("box => box.scrollWidth <= Math.max(box.clientWidth, 1)")
    assert page.evaluate(CLIPPED) == []


COLOURS = """() => [...document.querySelectorAll("p, b, td, th")].map(element => {
    const style = getComputedStyle(element);
    return `${style.color} on ${style.backgroundColor}`;
})"""

PAPERS = """() => [...document.querySelectorAll("svg")].map(svg => {
    const first = svg.querySelector("rect"), [inner, outer] = [first, svg].map(e => e.getBoundingClientRect());
    const same = Math.abs(inner.width - outer.width) + Math.abs(inner.height - outer.height) < 2;
    return [first.getAttribute("fill"), same];
})"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ink", "paper"), [("rgb(0, 0, 0)", "rgb(255, 255, 255)"), ("rgb(224, 224, 224)", "rgb(17, 17, 17)")]
)
def test_words_have_the_colours_of_a_notebook_s_theme_and_figures_a_paper_of_their_own(page, tmp_path, ink, paper):
    run = Run(tmp_path, HISTORIES["exhausted"])
    outputs = [
        shown(run),
        shown(Findings(subject="this code", seed=0, gates=())),
        shown(run.figures.epsilon(), "image/svg+xml"),
    ]
    cells = "".join(f"<div>{cell}</div>" for cell in outputs)
    page.set_content(f"<!doctype html><body style='color: {ink}; background: {paper}'>{cells}")
    assert len(page.evaluate(COLOURS)) > 20
    assert set(page.evaluate(COLOURS)) == {f"{ink} on rgba(0, 0, 0, 0)"}
    assert page.evaluate(PAPERS) == [[PAPER, True]] * 2 and page.evaluate(CLIPPED) == []
    assert (page.asked, page.complaints) == ([], [])
