"""The workflow that releases, and what it releases: on every Python that the project names, the same bytes again.

Beside it, the forms in which people report what is wrong.
"""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

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
