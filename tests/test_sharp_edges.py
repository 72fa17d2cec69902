"""The sharp edges, tried: what each example of docs/explanation/sharp-edges.md does is what stands below it."""

import pytest

from tests.written import ROOT, alike, pages, unproved

PAGE = ROOT / "docs" / "explanation" / "sharp-edges.md"


@pytest.mark.exhaustive
def test_each_example_prints_what_stands_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = pages.Page.run(PAGE)
    alike("\n".join(page.said), "\n".join(page.printed))
    assert len(page.printed) == 7 and all(page.printed)
    assert unproved(page.text) == []
