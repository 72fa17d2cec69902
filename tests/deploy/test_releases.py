"""One source says which releases may be deployed: SECURITY.md, the check of a host and the version agree."""

import re
import tomllib

import pytest

from fedprivacy.deploy.releases import SOUND_SINCE, is_sound
from tests.house import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_release_that_this_is_may_be_deployed_and_is_everywhere_the_same():
    assert is_sound(VERSION)
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## .*?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and VERSION.startswith(newest[1])


def test_the_table_of_versions_says_what_the_check_of_a_host_refuses():
    rows = re.findall(r"^\| (\d+)\.(\d+)\b.*? \| (.*) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    states = {(int(major), int(minor)): state for major, minor, state in rows}
    assert len(states) >= 2
    assert min(series for series, state in states.items() if "supported" in state) == SOUND_SINCE
    for (major, minor), state in states.items():
        assert is_sound(f"{major}.{minor}.7") is ("do not deploy it" not in state)


@pytest.mark.parametrize(
    ("version", "sound"),
    [("0.1.0", False), ("0.1.99", False), ("0.2.0.dev0", True), ("0.10.1", True), ("1.0", True), ("unknown", False)],
)
def test_releases_are_ordered_by_their_numbers(version, sound):
    assert is_sound(version) is sound
