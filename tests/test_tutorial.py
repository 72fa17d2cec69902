"""The tutorial runs as it is written, prints what it says, and shows figures of what it computes."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tests.figures.reading import texts
from tests.written import FIGURES, ROOT, TUTORIAL, alike, pages, unproved

ALL = sorted(path.name for path in TUTORIAL.glob("[1-9]*.md"))
OF_A_SCRIPT = {"tutorial-averaging"}
"""Of what a script computes that asks a thousand times; in `tests/test_simulations.py` it asks less often."""


DRAWN = sorted(FIGURES.keys() - OF_A_SCRIPT)


@pytest.mark.parametrize(
    "picture", [DRAWN[0], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in DRAWN[1:])]
)
def test_a_page_prints_and_draws_what_it_says(picture, tmp_path, monkeypatch, undrawn):
    monkeypatch.chdir(tmp_path)
    name, draw = FIGURES[picture]
    page = pages.Page.run(TUTORIAL / name)
    alike("\n".join(page.said), "\n".join(page.printed))
    alike(page.text, page.corrected())
    assert f"](../images/{picture}.svg)" in page.text
    kept = ElementTree.parse(ROOT / "docs" / "images" / f"{picture}.svg").getroot()
    drawn = ElementTree.fromstring(pages.picture(draw(page.names)))
    alike("\n".join(texts(kept)), "\n".join(texts(drawn)))


@pytest.mark.exhaustive
def test_each_example_of_the_sharp_edges_prints_what_stands_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = pages.Page.run(ROOT / "docs/explanation/sharp-edges.md")
    alike("\n".join(page.said), "\n".join(page.printed))
    assert len(page.printed) == 7 and all(page.printed)
    assert unproved(page.text) == []


@pytest.mark.parametrize("page", ALL)
def test_a_page_s_numbers_are_those_of_its_code(page):
    assert unproved((TUTORIAL / page).read_text()) == []


def test_every_page_is_in_the_index_and_leads_to_the_next():
    assert sorted({page for page, _ in FIGURES.values()}) == ALL
    index = (TUTORIAL / "README.md").read_text()
    assert re.findall(r"^\| \[.*?\]\((.*?)\)", index, re.MULTILINE) == ALL
    for page, following in pairwise(ALL):
        assert (TUTORIAL / page).read_text().endswith(f"]({following})\n")
