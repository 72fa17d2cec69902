"""A run that takes too long for its machine fails, and one that is only above its budget says so."""

import pytest

from tests import pace

FEW = "def test_it(): pass"


@pytest.fixture(autouse=True)
def budgets(monkeypatch):
    monkeypatch.setattr(pace, "BUDGETS", {"quick": 100, "full": 10_000})


@pytest.mark.parametrize(
    ("seconds", "unit", "fails", "says"),
    [
        (230, 2.4, False, "quick: 230 s, 96 units of 100: within its budget"),
        (290, 2.4, False, "quick: 290 s, 121 units of 100: above its budget by 21%"),
        (310, 2.4, True, "quick: 310 s, 129 units of 100: above its budget by 29%"),
        (310, 3.2, False, "quick: 310 s, 97 units of 100: within its budget"),
    ],
)
def test_a_budget_counts_units_of_the_machine(seconds, unit, fails, says):
    failed, line = pace.judge("quick", seconds, unit)
    assert failed is fails
    assert line.startswith(says)
    assert f"A unit is {unit:.2f} s" in line


@pytest.mark.parametrize(("units", "code"), [((1e-6, 1e-6), 1), ((1e-6, 1e3), 0), ((1e3, 1e3), 0)])
def test_the_last_line_of_a_run_says_how_long_it_took(units, code, tmp_path, capsys, monkeypatch):
    measured = iter(units)
    monkeypatch.setattr(pace, "unit", lambda: next(measured))
    (tmp_path / "test_timed.py").write_text(FEW)
    alone = (f"--rootdir={tmp_path}", "--noconftest", "--import-mode=importlib", "--quiet")
    assert pytest.main(["-p", "tests.pace", *alone, "--budget=quick", str(tmp_path)]) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith("quick: 0 s, ")


@pytest.mark.exhaustive
def test_the_unit_is_measured_with_all_that_tests_do():
    assert all(part > 0.1 for part in pace.parts())
    assert len(pace.parts()) == 3
