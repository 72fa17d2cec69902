"""`fedprivacy guard show` and `export`, as a data owner types them."""

import json
import math

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedprivacy.accounting import AdaptiveFilter, pld
from fedprivacy.guard import Guard
from fedprivacy.ledger import Allowance, Ledger
from fedprivacy.ledger.certificate import certify
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian, from_fields
from fedprivacy.values.unit import Unit
from tests.commands.running import fedprivacy, unwrapped

EVENT = PoissonSampledGaussian(0.05, 1.2, NeighbouringRelation.ZERO_OUT)
OTHER = PoissonSampledGaussian(0.1, 2.0, NeighbouringRelation.ZERO_OUT)
BUDGET = PrivacyBudget(3.0, 1e-5)


def typed(*arguments):
    done = fedprivacy("guard", *arguments, cwd=".", columns=80)
    assert not done.stderr
    return done.stdout


@pytest.fixture
def file(tmp_path):
    """Two charges of two mechanisms, one of them sealed, and a correction."""
    file = tmp_path / "guard.log"
    guard = Guard(file, BUDGET, "adaptive")
    guard.charge(Attempt("spring [run]", 1, 0), EVENT, 2)
    guard.seal(Attempt("spring [run]", 1, 0), b"update")
    guard.charge(Attempt("autumn", 3, 1), OTHER, 4, elsewhere={EVENT: 9, OTHER: 4})
    return file


HISTORY = {EVENT: 9, OTHER: 4}
RUNS_LEFT = AdaptiveFilter(BUDGET).quota(HISTORY, OTHER) // 4


def answer(file):
    return json.loads(typed("show", file, "--json"), parse_constant=pytest.fail)


def test_show_and_export_tell_each_charge_and_correction_and_charge_nothing(file):
    shown = answer(file)
    assert shown["epsilon"] == pld.epsilon(HISTORY, BUDGET.delta)
    assert (shown["view"], shown["relation"], shown["accountant"]) == ("server", "zero-out", "PLD")
    assert shown["runs_left"] == RUNS_LEFT
    assert shown["budget"] == {"epsilon": 3.0, "delta": 1e-5, "filter": "adaptive"}
    assert {from_fields(total["event"]): total["steps"] for total in shown["totals"]} == HISTORY
    assert [(e["kind"], e["run_id"], e["steps"], e["sealed"]) for e in shown["entries"]] == [
        ("charge", "spring [run]", 2, True),
        ("correction", "autumn", 7, False),
        ("charge", "autumn", 4, False),
    ]
    before = file.read_bytes()
    lines = [json.loads(line) for line in typed("export", file).splitlines()]
    assert file.read_bytes() == before
    assert [(line["kind"], line["round"], line["steps"], from_fields(line["event"])) for line in lines] == [
        ("charge", 1, 2, EVENT),
        ("correction", 3, 7, EVENT),
        ("charge", 3, 4, OTHER),
    ]


def test_a_guard_that_counted_nothing_says_so_and_what_has_no_bound_is_null_in_json(tmp_path):
    Guard(tmp_path / "new.log", BUDGET)
    assert typed("show", tmp_path / "new.log") == "Nothing was charged.\n"
    assert typed("export", tmp_path / "new.log") == ""
    shown = answer(tmp_path / "new.log")
    assert (shown["epsilon"], shown["budget"], shown["entries"]) == (None, None, [])
    assert shown["notes"] == "nothing was charged, and no delta is recorded"
    guard = Guard(tmp_path / "x.log", PrivacyBudget(math.inf, 1e-5))
    guard.charge(Attempt("run", 1, 0), PoissonSampledGaussian(1.0, 1e-200), 1)
    shown = answer(tmp_path / "x.log")
    assert (shown["epsilon"], shown["budget"]["epsilon"]) == (None, None)
    assert shown["notes"] == "no finite epsilon is known"
    assert "No budget was set." in typed("show", tmp_path / "x.log")


KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
SIGNER = KEY.public_key().public_bytes_raw().hex()


def comparing(*arguments, code=1):
    return fedprivacy("guard", "compare", *arguments, cwd=".", code=code, columns=200)


@pytest.fixture
def compared(file, tmp_path):
    """Compare the guard with a certificate of a ledger that was told so many steps of each event."""

    def compare(told, *arguments, code=1):
        ledger = Ledger(f"sqlite:///{tmp_path / str(len(list(tmp_path.iterdir())))}.db")
        ledger.open_budgets({"a": Allowance(BUDGET, "adaptive")})
        ledger.reconcile("a", {("run", event): steps for event, steps in told.items()})
        certificate = tmp_path / "a.json"
        (stated,) = certify(ledger, ["a"], SIGNER)
        certificate.write_text(stated.signed_with(KEY))
        return comparing(certificate, file, *arguments, code=code)

    return compare


@pytest.mark.parametrize(
    ("told", "code", "more", "words"),
    [
        (HISTORY, 0, 0, "Your guard and this certificate hold the same, epsilon 1.10"),
        ({EVENT: 9, OTHER: 7}, 0, 0, "This certificate holds 3 steps more"),
        ({EVENT: 8, OTHER: 30}, 1, 1, "and 26 fewer of other mechanisms."),
        ({}, 1, 13, "than this certificate (0.00)"),
    ],
)
def test_a_certificate_is_compared_with_the_guard(file, compared, told, code, more, words):
    before = file.read_bytes()
    done = compared(told, code=code)
    said = unwrapped(done.stdout)
    assert words in said and not done.stderr
    assert ("type" in said and "ledger reconcile" in said) is bool(code)
    as_json = json.loads(compared(told, "--json", code=code).stdout)
    assert as_json["guard"] == {"epsilon": pld.epsilon(HISTORY, BUDGET.delta), "unit": "record"}
    assert (as_json["more"], as_json["since"]) == (more, 0)
    assert as_json["certificate"]["epsilon"] == pld.epsilon(told, BUDGET.delta)
    assert {from_fields(row["event"]): row["certificate"] for row in as_json["events"] if row["certificate"]} == told
    assert {from_fields(row["event"]): row["guard"] for row in as_json["events"]} == dict.fromkeys(told, 0) | HISTORY
    assert file.read_bytes() == before


@pytest.mark.exhaustive
def test_steps_that_came_after_a_certificate_are_told_from_steps_that_it_lacks(file, compared, monkeypatch):
    monkeypatch.setattr("fedprivacy.guard.guard.now", lambda: "2099-01-01T00:00:00+00:00")
    Guard(file, BUDGET).charge(Attempt("later", 1), OTHER, 2)
    told = compared(HISTORY).stdout
    assert "2 steps of them came after it was issued: ask for a newer one." in unwrapped(told)
    assert "reconcile" not in told
    assert "reconcile" in compared({EVENT: 9}).stdout


def test_a_certificate_for_another_unit_of_privacy_is_not_the_same(tmp_path):
    ledger, own = Ledger(f"sqlite:///{tmp_path}/ledger.db"), tmp_path / "guard.log"
    ledger.open_run("run", "a", "own folders")
    ledger.open_budgets({"a": Allowance(BUDGET, "adaptive")})
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 2}, lambda *_: 2)
    Guard(own, BUDGET, unit=Unit("patient", 8)).charge(Attempt("run", 1), EVENT, 2)
    (tmp_path / "a.json").write_text(certify(ledger, ["a"], SIGNER)[0].signed_with(KEY))
    told = unwrapped(comparing(tmp_path / "a.json", own).stdout)
    assert "Its unit of privacy is record, and your guard's is patient (at most 8 rows)" in told


def test_no_guard_is_compared_with_a_certificate_that_is_not_genuine_or_of_another_signer(compared, tmp_path):
    compared(HISTORY, "--signer", SIGNER, code=0)
    done = compared(HISTORY, "--signer", "00" * 32)
    assert "which is none of those named" in done.stderr and not done.stdout
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "changed.json").write_text(text.replace('"steps": 9', '"steps": 13'))
    assert "it was changed" in comparing(tmp_path / "changed.json", tmp_path / "guard.log").stderr
    assert "there is no file" in comparing(tmp_path / "none.json", tmp_path / "guard.log", code=2).stderr
