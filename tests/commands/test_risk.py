"""`fedprivacy risk`, as a user types it: what an attacker who accuses records of having been used can find."""

import json
import re
import shlex
from xml.etree import ElementTree

import pytest

from fedprivacy.accounting import pld
from fedprivacy.accounting.histories import person_history
from fedprivacy.accounting.risk import PRIORS, RATES, Risk
from fedprivacy.ledger import Ledger
from fedprivacy.runs.records.folder import read_history
from fedprivacy.simulation.simulate import simulate
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.unit import Unit
from tests.ledger.acts import ALLOWANCE, EVENT, OTHER, unlimited
from tests.written import ROOT, alike

HOW_TO = ROOT / "docs" / "how-to" / "risk.md"
TYPED = ["--sampling-rate", "0.01", "--noise-multiplier", "1", "--steps", "1000", "--delta", "1e-5"]
TRAINING = {PoissonSampledGaussian(0.01, 1.0): 1000}


def answer(typed, *arguments):
    code, printed, errors = typed("risk", *arguments, "--json")
    assert (code, errors) == (0, "")
    return json.loads(printed, parse_constant=pytest.fail)


def shown(typed, *arguments):
    code, printed, _ = typed("risk", *arguments)
    assert code == 0 and all(len(line) <= 80 or "fedprivacy" in line for line in printed.splitlines())
    return " ".join(printed.split())


def states(fields, risk):
    """The fields are those of a risk."""
    assert (fields["epsilon"], fields["delta"], fields["advantage"]) == (risk.epsilon, risk.delta, risk.advantage)
    assert fields["from"] == ("trade-off curve" if risk.whole else "epsilon and delta")
    for rate, test in zip(RATES, fields["tests"], strict=True):
        assert (test["accused_wrongly"], test["found"]) == (rate, float(risk.found(rate)))
        assert {right["used"]: right["right"] for right in test["right"]} == {p: risk.right(rate, p) for p in PRIORS}
    return True


def test_the_worst_mechanism_of_a_budget_and_the_whole_curve_of_a_training_are_told(typed):
    asked = ["--epsilon", "3", "--delta", "1e-5"]
    fields = answer(typed, *asked)
    assert states(fields, Risk.of_budget(3.0, 1e-5)) and fields["persons"] == []
    printed = shown(typed, *asked)
    assert "wrongly accuses 1 % of the records that were not used finds at most 20.1 % of those that were" in printed
    assert "Computed from epsilon and delta alone" in printed and "trade-off curve" not in printed
    fields = answer(typed, *TYPED)
    assert states(fields, Risk.of_history(TRAINING, 1e-5)) and fields["epsilon"] == pld.epsilon(TRAINING, 1e-5)
    assert [person["rows"] for person in fields["persons"]] == [2, 5, 10]
    person = fields["persons"][1] | {"delta": 1e-5, "from": "trade-off curve"}
    assert states(person, Risk.of_history(person_history(TRAINING, 5), 1e-5))
    assert "Epsilon and delta alone would allow 6.3 %" in shown(typed, *TYPED)
    five = answer(typed, *TYPED, "--rows-per-person", 5, "--clients-per-person", 2)
    assert states(five, Risk.of_history(person_history(TRAINING, 5, 2), 1e-5)) and five["persons"] == []


@pytest.mark.exhaustive
def test_of_a_run_that_protects_each_client_as_a_whole_both_are_told(typed, tmp_path):
    given = {"user_level_noise_multiplier": 2.0, "fraction_train": 0.5, "seed": 1}
    simulate("cancer", clients=4, rounds=2, **given, out=tmp_path / "run")
    last = read_history(tmp_path / "run").last
    record, client = answer(typed, "--run", "run")["subjects"]
    assert record["unit"] == "record" and client["unit"] == "client"
    assert states(client, Risk.of_budget(last.user_level.epsilon, last.user_level.delta))
    assert "clients that were not used" in shown(typed, "--run", "run")


def test_without_privacy_nothing_bounds_what_is_found(typed, tmp_path):
    simulate("cancer", clients=2, rounds=1, privacy=False, seed=1, out=tmp_path / "run")
    code, printed, error = typed("risk", "--run", "run")
    assert (code, printed) == (2, "") and "nothing bounds what an attacker finds" in error


@pytest.fixture
def ledger(tmp_path):
    """Two datasets whose records are rows, one of patients, and one that was charged nothing."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.open_run("rows", "visits", "a")
    ledger.open_run("patients", "stays", "a", Unit("patient", 8))
    ledger.open_budgets(dict.fromkeys(("a", "b", "p", "x"), ALLOWANCE))
    ledger.reserve(Attempt("rows", 1), EVENT, {"a": 10, "b": 2}, unlimited)
    ledger.reserve(Attempt("rows", 2), OTHER, {"a": 3}, unlimited)
    ledger.reserve(Attempt("patients", 1), EVENT, {"p": 10}, unlimited)
    yield ledger
    ledger.close()


def test_of_a_ledger_every_dataset_is_listed_and_one_told_by_all_that_it_was_charged(typed, ledger):
    listed = {fields["name"]: fields for fields in answer(typed, "--ledger", "ledger.db")["subjects"]}
    assert list(listed) == ["a", "b", "p", "x"] and listed["p"]["unit"] == "patient (at most 8 rows)"
    assert states(listed["a"], Risk.of_history({EVENT: 10, OTHER: 3}, 1e-5))
    assert states(listed["b"], Risk.of_history({EVENT: 2}, 1e-5)) and states(listed["x"], Risk.of_history({}, 1e-5))
    code, printed, _ = typed("risk", "--ledger", "ledger.db")
    row = next(line.split() for line in printed.splitlines() if line.startswith(" a "))
    assert code == 0 and row[1] == "2.95" and len(row) == 8
    of_one = answer(typed, "--ledger", "ledger.db", "--dataset", "a")
    assert states(of_one, Risk.of_history({EVENT: 10, OTHER: 3}, 1e-5)) and len(of_one["persons"]) == 3
    patient = ["--ledger", "ledger.db", "--dataset", "p"]
    assert answer(typed, *patient)["persons"] == []
    assert "of the patients that were not used" in shown(typed, *patient)
    code, _, error = typed("risk", *patient, "--rows-per-person", "3")
    assert code == 2 and "one patient (at most 8 rows) is protected as it is" in error


@pytest.mark.exhaustive
def test_the_figure_is_written_in_the_form_that_its_name_tells(typed, tmp_path):
    assert "Figure: risk.svg" in shown(typed, *TYPED, "--figure", "risk.svg")
    texts = "".join(ElementTree.parse(tmp_path / "risk.svg").getroot().itertext())
    assert "Who accuses 1\xa0% wrongly finds at most 3.0\xa0%" in texts
    assert "ε = 1.83 at δ = 1e-5" in texts and "0.41\xa0%" in texts and "11.2\xa0%" in texts
    assert "thin: what ε and δ alone would allow" in texts
    for name in ("risk.png", "risk.html", "risk.json"):
        assert typed("risk", *TYPED, "--figure", name)[0] == 0 and (tmp_path / name).stat().st_size > 1000


def test_the_page_s_commands_print_what_the_page_says(typed):
    blocks = re.findall(r"```sh\nfedprivacy (risk [^`]+)```\n\n```text\n([^`]+)```", HOW_TO.read_text())
    assert len(blocks) >= 2
    for command, expected in blocks:
        code, printed, _ = typed(*shlex.split(command))
        assert code == 0
        alike(expected, "\n".join(line.rstrip() for line in printed.splitlines()).rstrip() + "\n", within=1e-2)
