"""`fedprivacy epsilon` and `fedprivacy sigma`, from the command line, as a user types them."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from fedprivacy import PoissonSampledGaussian
from fedprivacy.accounting import composition, gdp, pld, rdp
from fedprivacy.values.events import (
    MECHANISMS,
    FixedSizeSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    RowSampledGaussian,
    TruncatedPoissonSampledGaussian,
    as_fields,
)
from tests.written import ROOT, alike

HOW_TO = ROOT / "docs" / "how-to" / "epsilon.md"

EVENT = PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0)
TYPED = ["--sampling-rate", "0.01", "--noise-multiplier", "1", "--steps", "1000"]
ASKED = ["epsilon", *TYPED, "--delta", "1e-5"]
WANTED = ["sigma", "--sampling-rate", "0.01", "--steps", "1000", "--delta", "1e-5"]
TRAINING = {"sampling_rate": 0.01, "noise_multiplier": 1.0, "steps": 1000}


def answer(typed, *arguments, stdin=None):
    code, printed, errors = typed(*arguments, "--json", stdin=stdin)
    assert (code, errors) == (0, "")
    return json.loads(printed, parse_constant=pytest.fail)


def written(tmp_path, entries, name="history.json"):
    (tmp_path / name).write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return name


def test_each_accountant_can_be_asked_alone_or_all_at_once(typed):
    functions = {"pld": pld.epsilon, "rdp": rdp.epsilon, "gdp": gdp.epsilon}
    functions |= {"advanced": composition.advanced, "basic": composition.basic}
    expected = {name: function({EVENT: 1000}, 1e-5) for name, function in functions.items()}
    assert len(set(expected.values())) == len(expected)
    assert answer(typed, *ASKED, "--accountant", "all")["epsilon"] == expected
    rows = {line.split()[0]: line for line in typed(*ASKED, "--accountant", "all")[1].splitlines() if line.strip()}
    assert "1.83" in rows["PLD"] and "guarantee:" in rows["PLD"] and "bound:" in rows["RDP"]
    assert "approximation:" in rows["GDP"] and "may be larger" in rows["GDP"]
    approximate = typed(*ASKED, "--accountant", "gdp")[1]
    assert approximate.startswith("epsilon about ") and "no bound" in approximate


PERSON = ["--rows-per-person", "5", "--clients-per-person", "2"]


def test_a_person_with_several_records_is_told_what_a_person_has_lost(typed, tmp_path):
    name = written(tmp_path, [TRAINING | {"steps": 400}, TRAINING | {"steps": 600}])
    history = ["epsilon", "--history", name, "--delta", "1e-5"]
    for asked in (ASKED, history):
        found = answer(typed, *asked, *PERSON)
        assert found["epsilon"] == {"pld": pld.epsilon({RowSampledGaussian(0.01, 1.0, 5): 2000}, 1e-5)}
        assert (found["rows_per_person"], found["clients_per_person"]) == (5, 2)
    code, printed, _ = typed(*ASKED, *PERSON, "--accountant", "all")
    assert code == 0 and "a person with 5 records at each of 2 clients" in " ".join(printed.split())
    assert printed.startswith("epsilon 17.34 ")


def test_every_mechanism_can_be_in_a_history(typed, tmp_path):
    events = [
        PoissonSampledLaplace(0.1, 3.0),
        RandomizedResponse(4, 0.5),
        FixedSizeSampledGaussian(10, 1000, 1.5),
        TruncatedPoissonSampledGaussian(0.01, 1.0, 1000, 60),
    ]
    assert {*map(type, events), PoissonSampledGaussian} == set(MECHANISMS.values())
    for event in events:
        entry = {name: value for name, value in as_fields(event).items() if name != "relation"} | {"steps": 2}
        asked = ["epsilon", "--delta", "1e-5", "--history", written(tmp_path, [entry])]
        found = answer(typed, *asked)
        assert found["epsilon"] == {"pld": pld.epsilon({event: 2}, 1e-5)}
        assert found["relation"] == event.relation
        printed = typed(*asked)[1]
        assert f"of {entry['mechanism']} at " in printed
        everyone = answer(typed, *asked, "--accountant", "all")
        assert everyone["epsilon"]["gdp"] is None and everyone["notes"]["gdp"].startswith("does not apply: ")
        assert "does not apply to these mechanisms" in typed(*asked, "--accountant", "all")[1]
        mistaken(typed(*asked, "--accountant", "gdp"), ["accountant is gdp, which does not apply: "])


def test_a_history_has_the_relation_that_it_states_or_is_given(typed, tmp_path):
    asked = ["epsilon", "--delta", "1e-5", "--history"]
    stated, silent = (
        written(tmp_path, [TRAINING | relation], f"{len(relation)}.json") for relation in ({"relation": "zero-out"}, {})
    )
    assert answer(typed, *asked, stated)["relation"] == "zero-out"
    assert answer(typed, *asked, silent, "--relation", "zero-out")["relation"] == "zero-out"
    assert answer(typed, *asked, silent)["relation"] == "add-or-remove-one"
    words = ["entry 1: relation is zero-out, and --relation add-or-remove-one"]
    mistaken(typed(*asked, stated, "--relation", "add-or-remove-one"), words)
    empty = written(tmp_path, [], "empty.json")
    assert answer(typed, *asked, empty)["epsilon"] == {"pld": 0.0}


def test_an_infinite_epsilon_is_null_with_a_note_and_many_trainings_are_not_all_listed(typed, tmp_path):
    hopeless = ["epsilon", "--sampling-rate", "1", "--noise-multiplier", "1e-200", "--steps", "1", "--delta", "1e-5"]
    found = answer(typed, *hopeless)
    assert found["epsilon"] == {"pld": None} and found["notes"]["pld"].startswith("infinite")
    assert typed(*hopeless)[1].startswith("no finite epsilon at delta 1e-5")
    name = written(tmp_path, [TRAINING | {"steps": steps} for steps in range(1, 11)])
    printed = typed("epsilon", "--delta", "1e-5", "--history", name)[1]
    assert "6 steps at" in printed and "7 steps at" not in printed and "and 4 more" in printed


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([TRAINING | {"sampling_rate": "0.1"}], ['entry 1: sampling_rate is "0.1"; write a number.']),
        (
            [TRAINING | {"steps": 2**31 - 1}, TRAINING],
            ["steps is 2147484647; choose an integer from 1 to 2,147,483,647"],
        ),
        ([TRAINING | {"sigma": 1}], ['entry 1: "sigma" is no setting of poisson-sampled-gaussian; its settings are']),
        ([{"sampling_rate": 0.1, "steps": 1}], ["entry 1: noise_multiplier is not set; a poisson-sampled-gaussian"]),
        ([TRAINING | {"mechanism": "magic"}], ['entry 1: mechanism is "magic"; choose one of poisson-sampled-gauss']),
        ([3, TRAINING | {"steps": 0}], ["history.json, entry 1: ", "history.json, entry 2: "]),
    ],
)
def test_a_bad_file_is_named_with_the_place(typed, tmp_path, entries, words):
    name = written(tmp_path, entries)
    mistaken(typed("epsilon", "--delta", "1e-5", "--history", name), words)


def test_a_file_that_is_no_text_is_named_with_the_place(typed, tmp_path):
    (tmp_path / "history.json").write_bytes(b'["\xff"]')
    mistaken(
        typed(*WANTED, "--epsilon", "1", "--past", "history.json"), ["history.json, byte 2: this is no UTF-8 text"]
    )
    asked = ["epsilon", "--delta", "1e-5", "--history", "-"]
    mistaken(typed(*asked, stdin="nothing"), ["standard input, line 1, column 1: this is no JSON"])


def mistaken(result, words):
    code, printed, errors = result
    assert (code, printed) == (2, "")
    for part in words:
        assert part in errors, errors
    assert all(line.startswith("error: ") for line in errors.splitlines())


def test_sigma_is_the_least_noise_that_keeps_the_budget_and_for_people_rounded_up(typed):
    found = answer(typed, *WANTED, "--epsilon", "2")
    assert found.keys() == {"noise_multiplier", "epsilon", "delta", "relation"}
    spent = answer(typed, *ASKED, "--noise-multiplier", found["noise_multiplier"])["epsilon"]["pld"]
    assert found["epsilon"] == spent
    assert 0.999 * 2 <= spent <= 2
    assert (found["delta"], found["relation"]) == (1e-5, "add-or-remove-one")
    code, printed, _ = typed(*WANTED, "--epsilon", "2")
    shown = float(re.match(r"noise multiplier (\S+)\n", printed)[1])
    assert code == 0 and found["noise_multiplier"] <= shown < found["noise_multiplier"] * 1.001
    assert "epsilon 2.00 of 2 at delta 1e-5" in printed


def test_the_past_is_paid_for_too(typed, tmp_path):
    name = written(tmp_path, [TRAINING | {"relation": "zero-out"}])
    found = answer(typed, *WANTED, "--epsilon", "3", "--past", name)
    assert found["relation"] == "zero-out"
    assert 0.999 * 3 <= found["epsilon"] <= 3
    alone = answer(typed, *WANTED, "--epsilon", "3")["noise_multiplier"]
    assert found["noise_multiplier"] > alone
    printed = typed(*WANTED, "--epsilon", "3", "--past", name)[1]
    assert "which alone spent epsilon 1.83" in printed
    entry = TRAINING | {"noise_multiplier": found["noise_multiplier"], "relation": "zero-out"}
    both = [TRAINING | {"relation": "zero-out"}, entry]
    total = answer(typed, "epsilon", "--delta", "1e-5", "--history", written(tmp_path, both))
    assert 0.999 * 3 <= total["epsilon"]["pld"] <= 3 and total["relation"] == "zero-out"
    code, printed, errors = typed(*WANTED, "--epsilon", "1.5", "--past", name)  # which has spent more
    assert (code, printed) == (2, "") and "1.5" in errors


SLOW = ("torch", "flwr", "sqlalchemy", "altair", "cryptography", "sklearn", "scipy.stats", "scipy.optimize")


@pytest.mark.exhaustive
def test_a_quick_question_loads_nothing_slow(tmp_path):
    code = f"import sys; from fedprivacy.commands.app import app; app({ASKED!r}, standalone_mode=False); "
    code += f"print([name for name in {SLOW} if name in sys.modules])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_how_to_runs_as_written(typed, tmp_path):
    text = HOW_TO.read_text()
    (past,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    written(tmp_path, past, "past.json")
    blocks = re.findall(r"```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL)
    assert len(blocks) == 6
    for command, shown in blocks:
        program, *arguments = shlex.split(command)
        code, printed, errors = typed(*arguments)
        assert (program, code) == ("fedprivacy", 0), errors
        if shown:
            alike(shown, "\n".join(line.rstrip() for line in printed.splitlines()) + "\n", within=1e-3)
