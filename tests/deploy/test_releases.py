"""One source says which releases may be deployed: SECURITY.md, the check of a host and the version agree."""

import re
import tomllib
from importlib.metadata import version as installed

import pytest

from fedprivacy.deploy.description import SOUND_SINCE, flower_window, is_sound, works_with_flower
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


@pytest.mark.parametrize(
    ("version", "works"),
    [("1.40.9", False), ("1.41.0", True), (installed("flwr"), True), ("1.42.7", True), ("1.43.0", False), ("", False)],
)
def test_the_window_of_flower_s_versions_is_the_one_that_the_package_requires(version, works):
    assert works_with_flower(version) is works


def test_the_tests_run_under_the_oldest_and_the_newest_flower_of_the_window():
    oldest, newest = re.search(r"^FLOWERS \?= (\S+) (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).groups()
    major, minor, _ = map(int, newest.split("."))
    assert flower_window() == f">={oldest.removesuffix('.0')},<{major}.{minor + 1}"
    assert f"FLOWERS={oldest}" in (ROOT / ".ci" / "run").read_text()
    named = re.findall(r"Flower (\d\.\d+)\b", (ROOT / "docs/reference/flower-versions.md").read_text().splitlines()[2])
    assert named == [f"{major}.{each}" for each in range(int(oldest.split(".")[1]), minor + 1)]
