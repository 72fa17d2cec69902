"""The workflow that releases, what it releases, and which releases may be deployed.

Beside them, the forms in which people report what is wrong.
"""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import fedprivacy as fp
from fedprivacy.deploy.description import SOUND_SINCE, flower_window, is_sound, works_with_flower
from tests.conftest import lacking
from tests.house import ROOT

GITHUB = ROOT / ".github"
WORKFLOW = GITHUB / "workflows" / "release.yml"
FORMS = GITHUB / "ISSUE_TEMPLATE"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("file", "schema"),
    [
        (WORKFLOW, "github-workflows"),
        (FORMS / "config.yml", "github-issue-config"),
        *((form, "github-issue-forms") for form in sorted(FORMS.glob("*.yml")) if form.stem != "config"),
    ],
    ids=lambda value: getattr(value, "stem", None),
)
def test_what_github_reads_is_valid(file, schema):
    check = Path(sys.executable).with_name("check-jsonschema")
    if not check.exists():
        lacking("no check-jsonschema; install the extra test")
    command = [check, "--builtin-schema", f"vendor.{schema}", file]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_form_asks_for_no_secret_and_says_where_a_leak_is_reported():
    words = (FORMS / "fault.yml").read_text()
    assert "Report a vulnerability" in words and "Report a vulnerability" in (ROOT / "SECURITY.md").read_text()
    assert "never paste real records" in words
    heading = re.search(r'"([^"]*)" in (docs/[\w/-]+\.md)', (FORMS / "wish.yml").read_text())
    assert f"## {heading[1]}\n" in (ROOT / heading[2]).read_text()


def test_every_action_is_pinned_by_a_commit_and_says_of_which_version():
    uses = re.findall(r"uses: (.*)", WORKFLOW.read_text())
    assert len(uses) >= 6
    assert not [line for line in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)]


def test_uvx_and_pipx_find_the_program_by_the_package_s_name_and_are_told_the_extra_that_a_simulation_needs():
    assert PROJECT["scripts"] == {PROJECT["name"]: "fedprivacy.commands.app:app"}
    typed = re.findall(r"`((?:uvx|pipx) [^`]+)`", (ROOT / "README.md").read_text())
    assert [line.split()[0] for line in typed] == ["uvx", "pipx"]
    assert all("'.[simulation]'" in line for line in typed)  # tests/test_extras.py: without it, simulate says so
    assert "simulation" in PROJECT["optional-dependencies"]


def test_licence_and_pythons_are_those_of_the_files_and_of_flower():
    assert (ROOT / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert PROJECT["license"] == "Apache-2.0" and "\nlicense: Apache-2.0\n" in (ROOT / "CITATION.cff").read_text()
    assert (ROOT / "README.md").read_text().endswith(" Apache-2.0.\n")
    pythons = {classifier for classifier in PROJECT["classifiers"] if ":: Python :: 3" in classifier}
    assert pythons <= set(importlib.metadata.metadata("flwr").get_all("Classifier"))


def test_a_release_is_tested_with_every_python_that_the_project_names_and_published_only_after_that():
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    tested = jobs["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r":: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert set(named) <= set(tested) and f">={named[0]}" == PROJECT["requires-python"]
    assert (jobs["publish"]["needs"], jobs["build"]["needs"]) == ("build", "test")
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"


@pytest.mark.exhaustive
def test_a_source_archive_makes_itself_and_the_same_wheel_again(tmp_path):
    made, again = tmp_path / "made", tmp_path / "again"
    arguments = ["-o", f"{sys.prefix}/.installed-node", f"VENV={sys.prefix}", f"DIST={made}"]
    subprocess.run(["make", "dist", *arguments], cwd=ROOT, check=True)
    (archive,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    subprocess.run(["tar", "--extract", "--touch", "--file", archive], cwd=tmp_path, check=True)
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    (source / "PKG-INFO").unlink()  # is written anew, beside one that is there
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "build", "--quiet", "--out-dir", again, source], check=True)
    assert (again / archive.name).read_bytes() == archive.read_bytes()
    assert (again / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_release_that_this_is_is_everywhere_the_same_and_the_versions_are_told_that_a_check_refuses():
    version = PROJECT["version"]
    assert is_sound(version) and fp.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## .*?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and version.startswith(newest[1])
    rows = re.findall(r"^\| (\d+)\.(\d+)\b.*? \| (.*) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    states = {(int(major), int(minor)): state for major, minor, state in rows}
    assert min(series for series, state in states.items() if "supported" in state) == SOUND_SINCE
    assert {series: is_sound("{}.{}.7".format(*series)) for series in states} == {
        series: "do not deploy it" not in state for series, state in states.items()
    }


@pytest.mark.parametrize(
    ("judge", "good", "bad"),
    [
        (is_sound, ("0.2.0.dev0", "0.10.1", "1.0"), ("0.1.0", "0.1.99", "unknown")),
        (works_with_flower, ("1.41.0", importlib.metadata.version("flwr"), "1.42.7"), ("1.40.9", "1.43.0", "")),
    ],
)
def test_versions_are_ordered_by_their_numbers(judge, good, bad):
    assert all(map(judge, good)) and not any(map(judge, bad))


def test_the_tests_run_under_the_oldest_and_the_newest_flower_of_the_window():
    oldest, newest = re.search(r"^FLOWERS \?= (\S+) (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).groups()
    major, minor, _ = map(int, newest.split("."))
    assert flower_window() == f">={oldest.removesuffix('.0')},<{major}.{minor + 1}"
    assert f"FLOWERS={oldest}" in (ROOT / ".ci" / "run").read_text()
    named = re.findall(r"Flower (\d\.\d+)\b", (ROOT / "docs/reference/flower-versions.md").read_text().splitlines()[2])
    assert named == [f"{major}.{each}" for each in range(int(oldest.split(".")[1]), minor + 1)]
