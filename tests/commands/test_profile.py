"""`fedprivacy simulate --profile` and `fp.simulate(..., profile=True)`: where a run's time goes, by the real path."""

import json
import re

import pytest

import fedprivacy as fp
from fedprivacy.runs.records.folder import RunFolderError, read_lines
from fedprivacy.runs.settings.configuration import ConfigError
from tests.commands.running import fedprivacy
from tests.house import DOORS, HOUSE, imports, module_name

ROUNDS, STEPS, CLIENTS = 3, 2, 4
OPTIONS = ("--rounds", ROUNDS, "--local-steps", STEPS, "--clients", CLIENTS, "--task", "cancer")
ASKED = "run > rounds > asking clients > client"
EVERY_ROUND = (
    "opening the round",
    "opening the round > enrolment",
    "opening the round > composing epsilons",
    "opening the round > sampling clients",
    "opening the round > granting",
    "opening the round > granting > reserving",
    "asking clients",
    "settling the round",
    "settling the round > sorting replies",
    "settling the round > settling charges",
    "averaging",
    "evaluation",
    "composing epsilons",
    "recording",
    "signing the ledger",
    "checkpoint",
)
EVERY_UPDATE = (
    "reading the grant",
    "preparing",
    "preparing > reading the model",
    "preparing > preparing gradients",
    "standardising",
    "training",
    "sealing",
    "writing the reply",
)
EVERY_STEP = ("Poisson sampling", "gradients and clipping", "noise", "optimiser step")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which the same run was profiled, and not."""
    place = tmp_path_factory.mktemp("profiled")
    printed = fedprivacy("simulate", *OPTIONS, "--profile", "--out", "with", cwd=place).stdout
    (place / "printed").write_text(printed)
    fedprivacy("simulate", *OPTIONS, "--out", "without", cwd=place)
    return place


@pytest.fixture(scope="module")
def phases(place):
    return {row["phase"]: row for row in fp.open_run(place / "with").profile}


@pytest.mark.exhaustive
def test_every_phase_is_called_as_often_as_it_happens(phases):
    updates = ROUNDS * CLIENTS
    expected = {ASKED: updates, "run > rounds > opening the round > writing a message": updates, "run > rounds": ROUNDS}
    expected |= {f"run > rounds > {name}": ROUNDS for name in EVERY_ROUND}
    expected |= {f"{ASKED} > {name}": updates for name in EVERY_UPDATE}
    expected |= {f"{ASKED} > training > {name}": updates * STEPS for name in EVERY_STEP}
    assert {name: row["calls"] for name, row in phases.items() if name.startswith("run > rounds")} == expected
    assert phases["run > set-up > enrolment > client"]["calls"] == CLIENTS
    for once in ("set-up > trying the task", "set-up > opening accounts", "closing", "closing > drawing"):
        assert phases[f"run > {once}"]["calls"] == 1


def test_the_command_ends_with_the_table_and_where_the_trace_is(place):
    printed, table = (place / "printed").read_text(), (place / "with" / "profile.txt").read_text()
    for words in ("Where the time went", "gradients and clipping", "share", "Later rounds: 8 client updates in "):
        assert words in printed and words in table
    assert "…" not in printed + table  # 80 columns hold every number
    assert re.search(r"^    choosing how gradients are computed +1 +[\d.]+ +[\d.]+% *$", table, re.M)
    last = printed.splitlines()[-1]
    assert last.startswith("Trace: with/profile.json (open it in chrome://tracing, or at https://ui.perfetto.dev")


def test_the_trace_holds_names_numbers_and_durations_alone(place, phases):
    """No client's name, no path, no private value: every text is a phase, a thread or a note."""
    trace = json.loads((place / "with" / "profile.json").read_text())
    known = {part for phase in phases for part in phase.split(" > ")} | {"first round", "later rounds"}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event["name"] in known
            assert event.get("args", {}).keys() <= {"round"}
    threads = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert threads == {"fedprivacy simulate", "MainThread", "run store"}
    assert trace["profile"]["notes"] == []


def test_a_run_is_the_same_with_and_without(place):
    assert read_lines(place / "with") == read_lines(place / "without")
    kept = {path.name for path in (place / "with").iterdir()} - {path.name for path in (place / "without").iterdir()}
    assert kept == {"profile.json", "profile.txt"}
    assert not list(place.glob("*/ledger.db-*"))  # the ledger is closed: its file is whole
    models = [fp.open_run(place / folder).model().state_dict() for folder in ("with", "without")]
    assert all(bool((models[0][name] == models[1][name]).all()) for name in models[0])
    settings = [json.loads((place / folder / "config.json").read_text())["settings"] for folder in ("with", "without")]
    assert settings[0].keys() == settings[1].keys()
    with pytest.raises(RunFolderError, match="has no profile"):
        fp.open_run(place / "without").profile  # noqa: B018 - reading it fails


def test_a_profile_is_no_setting_of_a_run_and_the_reason_is_given():
    with pytest.raises(ConfigError, match=r"only 'fedprivacy simulate --profile' and .* write a profile; leave it out"):
        fp.plan("cancer", profile=True)


@pytest.mark.exhaustive
def test_no_module_that_a_deployment_loads_records():
    """Who records names `recorded`: one module, which neither a deployed server nor a client reaches, however late."""
    entered = {module_name(path): imports(path) for path in HOUSE if path.stem not in DOORS}
    recording = {name for name, names in entered.items() if "fedprivacy._support.spans.recorded" in names}
    assert recording == {"fedprivacy.simulation.profile"}
    new = {f"fedprivacy.{name}" for name in ("server.app", "flower.server.strategy", "flower.client.client_app")}
    reached = set()
    while new:
        reached |= new
        new = {name for module in new for name in entered[module] & entered.keys()} - reached
    assert "fedprivacy.flower.server.federated_run" in reached
    assert not reached & {"fedprivacy.simulation.simulate", "fedprivacy.simulation.profile"}
