"""The notebooks: each runs as written and shows what its page says, and each is a valid notebook for Jupyter."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.written import ROOT, check_notebook, pages, unproved

FOLDER = ROOT / "docs/notebooks"
ALL = [path.name for path in pages.NOTEBOOKS]
QUICK, DEPLOYED = "1-five-minutes.md", "9-deployment.md"  # the last has many processes, see tests/deploy
DEAR = {"4-images.md", "5-adapters.md"}  # half of the time of all
EACH = [
    name if name == QUICK else pytest.param(name, marks=pytest.mark.soak if name in DEAR else pytest.mark.exhaustive)
    for name in ALL
    if name != DEPLOYED
]


@pytest.mark.parametrize("name", EACH)
def test_a_notebook_shows_what_its_page_says(name, tmp_path, monkeypatch, undrawn):
    monkeypatch.chdir(tmp_path)
    check_notebook(FOLDER / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every notebook, as the site offers it."""
    folder = tmp_path_factory.mktemp("notebooks")
    subprocess.run([sys.executable, ROOT / "docs/site/notebooks.py", folder], check=True)
    return {f"{path.stem}.md": json.loads(path.read_text()) for path in folder.glob("*.ipynb")}


@pytest.mark.parametrize("name", ALL)
def test_a_notebook_is_of_jupyter_s_format_with_the_page_s_cells_in_order_and_their_outputs(name, made):
    book, page = made[name], pages.Page(FOLDER.joinpath(name).read_text(), {}, [], [])
    assert (book["nbformat"], book["nbformat_minor"], book["metadata"]["kernelspec"]["name"]) == (4, 5, "python3")
    needed = {
        "markdown": {"cell_type", "id", "metadata", "source"},
        "code": {"cell_type", "id", "metadata", "source", "outputs", "execution_count"},
    }
    assert all(cell.keys() == needed[cell["cell_type"]] for cell in book["cells"])
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [f"{cell['source']}\n" for cell in code] == [block for _, block, _ in pages.BLOCK.findall(page.text)]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    printed = [output["text"] for output in outputs if output["output_type"] == "stream"]
    drawn = [output["data"]["image/svg+xml"] for output in outputs if output["output_type"] == "display_data"]
    assert printed == [said for said in page.said if said]
    assert drawn == [(ROOT / "docs/images" / f"{shown}.svg").read_text() for shown in page.shown]


@pytest.mark.parametrize("name", ALL)
def test_a_notebook_is_short_fits_a_cell_s_width_and_has_numbers_only_from_its_code(name):
    text = (FOLDER / name).read_text()
    blocks = pages.BLOCK.findall(text)
    assert 5 <= len(blocks) <= 15
    lines = [line for _, code, said in blocks for line in (code + said).splitlines()]
    assert [line for line in lines if len(line) > 92] == []
    assert unproved(text) == []


def test_every_notebook_is_in_the_index_and_leads_to_the_next():
    index = (FOLDER / "README.md").read_text()
    assert re.findall(r"^\| \[.*?\]\((.*?)\)", index, re.MULTILINE) == ALL
    for name, following in pairwise(ALL):
        assert (FOLDER / name).read_text().endswith(f"]({following})\n")


@pytest.mark.exhaustive
def test_a_notebook_without_widgets_shows_no_other_library_s_warning():
    kernel = "import sys, types; sys.modules['IPython'] = types.SimpleNamespace("
    kernel += "get_ipython=lambda: types.SimpleNamespace(config={'IPKernelApp': {}}))\n"
    code = kernel + "import fedprivacy as fp; print(len(fp.plan('cancer', clients=3).clients))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("3\n", "")
