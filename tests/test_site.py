"""The documentation as a site: complete, without a warning, readable on any screen, without a network."""

import json
import re
import runpy
import subprocess
import sys

import pytest

from tests.house import ROOT

SITE = ROOT / "docs/site"


@pytest.fixture
def made(monkeypatch):
    """The names of the module that gathers the site's pages."""
    monkeypatch.syspath_prepend(str(SITE))
    return runpy.run_path(str(SITE / "pages.py"))


def test_the_sidebar_lists_every_document_once(made):
    listed = [place for places in made["CONTENTS"].values() for place in places]
    assert len(listed) == len(set(listed))
    there = set(listed)
    documents = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    documents = {path.removesuffix(".md") for path in documents - {"README.md"}} | {"reference/python"}
    assert there >= documents
    assert {place for place in there - documents if not place.startswith("repository/")} == {"what-you-can-do"}


def test_what_stands_outside_of_the_documents_is_taken_along_and_links_lead_there(made):
    pages = made["pages"]()
    assert {"README.md", "clients/README.md", "simulations/digits.py", "SECURITY.md"} <= pages.keys()
    assert "](how-to/deploy.md)" in pages["README.md"]
    assert "](repository/clients/README.md)" in pages["README.md"]
    assert "](../index.md" in pages["docs/for/privacy-officers.md"]
    assert '"""' in pages["simulations/digits.py"] and "````python" in pages["simulations/digits.py"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does; a warning would end it."""
    pages, html = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("html")
    subprocess.run([sys.executable, SITE / "pages.py", pages], check=True)
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-b", "html", pages, html]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return html


SHORTENED = """document.querySelectorAll("#python > section:nth-of-type(n+7)").forEach(each => each.remove())"""
"""Leaves six entries of the Python reference, with classes, functions, methods, attributes and errors: axe takes half
a minute for all.
"""


@pytest.mark.exhaustive
def test_the_site_is_built_without_a_warning_read_on_any_screen_and_searched_without_a_network(site, browser):
    from axe_playwright_python.sync_playwright import Axe

    for width, scheme in ((390, "dark"), (1280, "light")):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page, asked = context.new_page(), []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        for name in ("index", "reference/settings", "reference/python", "how-to/questions"):
            page.goto(f"{(site / name).as_uri()}.html")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.evaluate(SHORTENED)
            found = Axe().run(page).response["violations"]
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            assert not serious, json.dumps(serious, indent=1)[:4000]
        page.goto(f"{(site / 'search').as_uri()}.html?q=withdrawal")
        page.locator("#search-results li a[href*='compliance.html']").first.wait_for()  # results come one by one
        assert all(address.startswith(("file:", "data:")) for address in asked)
        context.close()


CUT_OFF = """() => {
    const shown = element => element.getClientRects().length > 0;
    const sheet = document.documentElement.clientWidth;
    return {
        wide: [...document.querySelectorAll("article *")]
            .filter(each => each.getBoundingClientRect().right > sheet + 1
                || each.matches("pre") && each.scrollWidth > each.clientWidth + 1)
            .map(each => each.textContent.slice(0, 60)),
        beside: [...document.querySelectorAll(".sidebar-drawer, .toc-drawer, .skip-to-content, .related-pages")]
            .filter(shown).map(each => each.className),
        colours: [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor],
    };
}"""
"""A sheet's faults: what is cut off at its right side, what is printed beside the page, and text and paper."""


@pytest.mark.exhaustive
def test_a_page_is_printed_whole_alone_and_black_on_white(site, browser):
    context = browser.new_context(viewport={"width": 718, "height": 1000}, color_scheme="dark")  # A4 less its margins
    page = context.new_page()
    page.emulate_media(media="print")
    for name in ("how-to/deploy", "reference/settings", "notebooks/1-five-minutes", "explanation/testing"):
        page.goto(f"{(site / name).as_uri()}.html")
        assert page.evaluate(CUT_OFF) == {"wide": [], "beside": [], "colours": ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]}
    context.close()


@pytest.mark.exhaustive
def test_every_public_name_stands_in_the_python_reference_with_its_words_and_settings(site):
    page = (site / "reference/python.html").read_text()
    public = (ROOT / "tests/public_names.txt").read_text()
    for name in re.findall(r"^fp\.(\w+):", public, re.MULTILINE):
        if name not in ("__version__", "tasks"):
            assert f'id="{name.lower().replace("_", "-")}"' in page, name
    assert page.count("noise_multiplier") > 5 and "A built-in task" in page
