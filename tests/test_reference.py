"""The reference: its pages say what the program says, and leave nothing out."""

import re
import runpy

import pytest

import fedprivacy as fp
from fedprivacy.flower.wire.messages import RefusalCode
from fedprivacy.ledger.schema import metadata
from fedprivacy.runs.settings.configuration import FIELDS
from tests.house import ROOT
from tests.runs.rounds import rounds_of

FOLDER = ROOT / "docs/reference"
MADE = runpy.run_path(str(FOLDER / "pages.py"))["pages"]()
PUBLIC = (ROOT / "tests/public_names.txt").read_text()


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_page_is_what_the_program_makes_now(name):
    assert (FOLDER / name).read_text() == MADE[name], "run python docs/reference/pages.py"


def rows(page):
    """What comes first in the rows of a page's tables."""
    return re.findall(r"^\| `([^`]+)`", MADE[page], re.MULTILINE)


def titles(page):
    return re.findall(r"^## `?([^`\n]+)`?$", MADE[page], re.MULTILINE)


def test_every_setting_command_code_and_table_is_there():
    assert sorted(rows("settings.md")) == sorted(FIELDS)
    assert sorted(titles("commands.md")) == re.findall("^(fedprivacy[^:]*):", PUBLIC, re.MULTILINE)
    assert set(rows("refusals.md")) > set(RefusalCode)
    assert sorted(titles("ledger-tables.md")) == sorted(metadata.tables)
    assert {"Grant", "Receipt", "Refusal"} < set(titles("wire.md"))


def test_nothing_is_left_without_words():
    for page in ("settings.md", "refusals.md", "wire.md", "commands.md", "run-folder.md"):
        empty = [line for line in MADE[page].splitlines() if re.match(r"\| `[^|]+ \|  \|", line)]
        assert empty == [], page


@pytest.mark.exhaustive
def test_a_run_s_folder_holds_what_the_reference_lists_and_nothing_else(tmp_path):
    settings = {"rounds": 2, "local_steps": 2, "epsilon": 3.0, "progress": False, "signing_key": str(tmp_path / "key")}
    fp.simulate("cancer", clients=2, out=tmp_path / "plain", **settings)
    more = {"algorithm": "mr-mtl", "pull": 1.0, "client_terms": {"client-0": {"epsilon": 2.0}}, "profile": True}
    fp.simulate("cancer", clients=2, out=tmp_path / "more", **settings, **more)
    listed = dict(re.findall(r"^\| `([a-z.-]+)` \| [^|]+ \| ([^|]+) \|$", MADE["run-folder.md"], re.MULTILINE))
    found = {
        name: {path.name for path in (tmp_path / name).iterdir() if "db-" not in path.name}
        for name in ("plain", "more")
    }
    usual = {name for name, when in listed.items() if when in ("always", "once a round has ended", "at the end")}
    assert usual < found["plain"] < found["more"] < set(listed)
    line = rounds_of(tmp_path / "plain")[-1]
    assert set(line) <= set(rows("run-folder.md"))
