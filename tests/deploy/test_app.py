"""`fedprivacy deploy app`: a user's task becomes a Flower app, whole and as Flower wants it."""

import subprocess
import zipfile
from importlib.metadata import version
from io import BytesIO

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.app_folder import task_of, write_app
from fedprivacy.deploy.demo import HOSPITALS
from fedprivacy.deploy.description import SetupError
from fedprivacy.deploy.federation import DeploymentError, flower_environment, program
from fedprivacy.runs.settings.configuration import FIELDS, ConfigError
from fedprivacy.tasks import TaskError
from tests.deploy.written_hosts import OWN
from tests.house import ROOT
from tests.terminal import CliRunner


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """An app for a task of one's own."""
    return write_app(tmp_path_factory.mktemp("apps") / "two-sides", f"{OWN}:Sides", clients=2)


def test_flower_builds_the_app_and_its_hub_takes_it(own, tmp_path):
    command = [program("flwr"), "build", "--app", own.folder]
    built = subprocess.run(
        command, cwd=tmp_path, env=flower_environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert built.returncode == 0 and "missing" not in built.stdout, built.stdout + built.stderr
    (bundle,) = tmp_path.glob("two-sides-app.two-sides-app.0-1-0.*.fab")
    assert {"LICENSE", "README.md", "two_sides_app/blobs_task.py"} <= set(zipfile.ZipFile(bundle).namelist())


def test_flower_takes_the_app_and_its_hub_learns_for_which_flower_it_is(own):
    config, warnings = load_and_validate(own.folder / "pyproject.toml", check_module=False)
    assert not warnings and set(config["tool"]["flwr"]["app"]["config"]) == set(FIELDS)
    assert task_of(own.folder) == own.task == "two_sides_app.blobs_task:Sides"
    told = normalize_and_validate_fab_format(config)
    assert (told.fab_format_version, told.flwr_version_target) == (1, version("flwr"))
    config["tool"]["flwr"]["app"]["flwr-version-target"] = "1.12.0"  # before the first that fedprivacy works with
    with pytest.raises(ValueError, match="must be greater than or equal to the declared"):
        normalize_and_validate_fab_format(config)


def test_this_repository_is_an_app_whose_bundle_brings_its_licence():
    assert load_and_validate(ROOT / "pyproject.toml")[1] == []
    bundle = zipfile.ZipFile(BytesIO(build_fab_from_disk(ROOT)))
    assert {"LICENSE", "pyproject.toml", "server/app.py", "clients/app.py"} <= set(bundle.namelist())


@pytest.mark.parametrize(
    ("folder", "task", "error", "words"),
    [
        ("app", "no-such-task", TaskError, "choose one of digits"),
        ("app", f"{OWN}:Missing", ConfigError, "defines no 'Missing'"),
        ("123", "digits", SetupError, "begin the folder's name with a letter"),
        ("a-study-of-29-characters-here", "digits", SetupError, "no app's name beyond 32 characters"),
    ],
)
def test_what_cannot_be_an_app_is_refused_before_anything_is_written(tmp_path, folder, task, error, words):
    with pytest.raises(error, match=words):
        write_app(tmp_path / folder, task)
    assert not (tmp_path / folder).exists()


def test_the_command_says_what_comes_next(tmp_path):
    done = CliRunner().invoke(deploy_app, ["app", str(tmp_path / "sides"), "--task", f"{OWN}:Sides"])
    assert done.exit_code == 0
    assert f"deploy demo --app {tmp_path / 'sides'} --data FOLDER" in done.output
    again = CliRunner().invoke(deploy_app, ["app", str(tmp_path / "sides")])
    assert again.exit_code == 2
    assert "not empty" in again.output


def test_a_rehearsal_makes_its_app_where_nobody_names_one(tmp_path, monkeypatch):
    asked = {}

    def run_demo(directory, app, write_data, **options):
        asked.update(options, directory=directory, app=app)
        write_data("hospital-1", tmp_path)
        raise DeploymentError("enough")

    monkeypatch.setattr("fedprivacy.deploy.demo.run_demo", run_demo)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(deploy_app, ["demo", "--out", "here"])
    assert "enough" in done.output
    assert asked["clients"] == HOSPITALS
    assert asked["run_config"]["task"] == task_of(asked["app"]) == "digits"
    assert asked["app"].is_relative_to(asked["directory"])
    assert (tmp_path / "records.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["keys", "--out", "taken"], "'taken/ca/ca.key' cannot be written"),
        (["client-key", "../h"], "client is '../h'"),
        (["signing-key", "taken/key"], "no key can be made"),
        (["signing-key", "taken"], "holds no readable private key"),
        (["app", "taken"], "'taken' cannot be made"),
        (["demo", "--out", "taken"], "out is 'taken', which is a file; name a folder"),
        (["demo", "--epsilon", "-1"], "epsilon is -1"),
        (["demo", "--app", "gone"], "holds no Flower app"),
        (["demo", "--data", "."], "no folder"),
        (["run", "gone"], "run-config is 'run.toml'"),
        (["check", "taken"], "holds no part of a deployment"),
    ],
)
def test_a_mistake_is_said_in_a_line_and_starts_nothing(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("mine")
    done = CliRunner().invoke(deploy_app, arguments)
    assert done.exit_code == 2, done.output
    assert words in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken").read_text() == "mine"
