"""A run's file: what a run leaves repeats it, options win over it, and a file that is wrong says so before anything."""

import tomllib

import pytest

import fedprivacy as fp
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.runs.settings.run_file import as_toml, settings_in
from tests.commands.running import fedprivacy
from tests.runs.rounds import same_results

SETTINGS = ("--task", "cancer", "--clients", "3", "--rounds", "2", "--batch-size", "20", "--speeds", "lognormal:1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where a run by options is in the folder `run`."""
    place = tmp_path_factory.mktemp("typed")
    fedprivacy("simulate", *SETTINGS, "--out", "run", cwd=place)
    return place


@pytest.mark.exhaustive
def test_an_option_wins_over_the_file(place):
    plan = fedprivacy("plan", "--config", "run/run.toml", "--rounds", "3", "--json", cwd=place).stdout
    assert plan == fedprivacy("plan", *SETTINGS, "--rounds", "3", "--json", cwd=place).stdout
    assert plan != fedprivacy("plan", *SETTINGS, "--json", cwd=place).stdout


@pytest.mark.exhaustive
def test_an_audit_and_questions_take_a_file(place):
    (place / "wrong.toml").write_text("rounds = 0\n")
    assert "wrong.toml: rounds is 0" in fedprivacy("audit", "--config", "wrong.toml", cwd=place, code=2).output
    (place / "asked.toml").write_text('task = "cancer"\nclients = 2\nepsilon = 2.0\n')
    fedprivacy("ask", "count", "--plan", "--config", "asked.toml", cwd=place)
    refused = fedprivacy("ask", "count", "--plan", "--config", "run/run.toml", cwd=place, code=2).output
    assert "run/run.toml: this command does not take rounds, local-steps" in " ".join(refused.split())


@pytest.mark.exhaustive
def test_a_run_is_repeated_from_python(place, tmp_path):
    run = fp.open_run(place / "run")
    again = fp.simulate(**run.keywords | {"out": tmp_path / "again"}, progress=False)
    assert same_results(again.folder) == same_results(run.folder)
    assert again.keywords == run.keywords
    kept = {name.replace("_", "-"): value for name, value in run.keywords.items()}
    assert tomllib.loads((run.folder / "run.toml").read_text()) == kept


@pytest.mark.parametrize(
    "given",
    [
        {"batch-size": 8.0, "seed": 2**63 - 1, "spend": 1.0},
        {"algorithm": "ditto", "local-steps": 4, "pull": 0.1},
        {"client-terms": '{"client-0": {"epsilon": 1.0}}', "speeds": "lognormal:1"},
        {"signing-key": 'a \\ "b" \u00fc \U0001f600\n\t.pem', "trackers": "mlflow"},
    ],
    ids=", ".join,
)
def test_every_setting_survives_its_file(given, tmp_path):
    config = resolve(given | {"out": "somewhere"})
    (tmp_path / "run.toml").write_bytes(as_toml(config))
    assert resolve(settings_in(tmp_path / "run.toml") | {"out": "somewhere"}) == config
