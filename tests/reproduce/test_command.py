"""Reproductions' command: a table with verdicts, files to keep, and a command that goes on where it was stopped."""

import contextlib
import json
import re
from pathlib import Path

import pytest

from fedprivacy.figures.style import spec_of
from simulations.reproduce import REPRODUCTIONS, reproduce
from simulations.reproduce.__main__ import app
from simulations.reproduce.bench import measure, reproduction_of
from simulations.reproduce.experiment import Measured, ReproductionError, Row
from simulations.reproduce.figures import DrawnRow, budgets_figure, has_lines
from simulations.reproduce.results import GoalVerdict, RowResult
from tests.reproduce import coins
from tests.reproduce.coins import Coins
from tests.terminal import CliRunner


def command(*arguments, cwd, code=0, columns=120):
    """Run the command in this process, and return what it printed."""
    with contextlib.chdir(cwd):
        typed = [str(argument) for argument in arguments]
        run = CliRunner().invoke(app, typed, env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    assert run.exit_code == code, run.output
    return run


@pytest.fixture
def toss(tmp_path, monkeypatch):
    """Runs the command on a reproduction that this test may change."""

    def run(*options, code=0, **changes):
        monkeypatch.setattr(coins, "COINS", Coins(**changes))
        monkeypatch.setitem(REPRODUCTIONS, "coins", "tests.reproduce.coins:COINS")
        return command("coins", "--jobs", 1, *options, cwd=tmp_path, code=code)

    return run


def test_a_table_a_figure_and_results_that_say_the_same(toss, tmp_path):
    printed = " ".join(toss().output.split())
    assert "heads 0.5 0.5 0.6 0.058 3.00 met 0 s" in printed
    assert "error 0.2 0.25 0.21 0.0058 2.00 met 0 s" in printed
    assert "beside - - 0.9 0 no privacy recorded 0 s" in printed
    assert "share of heads: heads mean squared error: error without privacy: beside" in printed
    assert "Bernoulli 1713" in printed and "Delta 0.001" in printed and "Mean over 3 seeds" in printed
    out = tmp_path / "runs" / "reproduce-coins"
    told = json.loads(toss("--json").stdout)
    assert told == json.loads((out / "results.json").read_text()) | {"out": "runs/reproduce-coins"}
    assert (told["seeds"], told["settings"]) == ([0, 1, 2], {"tosses": 10, "sides": [0, 1]})
    assert told["rows"][0]["values"] == [0.5, 0.6, 0.7] and told["met"]
    drawing = (out / "figure.svg").read_text()
    assert drawing.startswith("<svg") and "Coins: all 2 goals are met" in drawing


def test_it_goes_on_where_ctrl_c_ended_it(toss, tmp_path):
    stopped = toss("--out", "kept", code=130, ended_at=1)
    assert "the same command goes on" in stopped.stderr
    assert coins.COINS.measured == [0]
    assert [file.name for file in (tmp_path / "kept").glob("*.json")] == ["seed-0.json"]
    first = (tmp_path / "kept" / "seed-0.json").stat().st_mtime_ns
    printed = toss("--out", "kept").output
    assert coins.COINS.measured == [1, 2]
    assert (tmp_path / "kept" / "seed-0.json").stat().st_mtime_ns == first
    assert "Mean over 3 seeds" in " ".join(printed.split())


def test_any_metric_of_the_runs_is_shown_without_measuring_again(toss, tmp_path):
    printed = " ".join(toss().output.split())
    assert "Also measured: loss; --metric shows another." in printed
    printed = " ".join(toss("--metric", "loss").output.split())
    assert coins.COINS.measured == []
    assert "loss, global model on the server's public records: heads; error" in printed
    assert "heads - - 1.9 0.058 3.00 recorded" in printed and "error - - 1 0 2.00 recorded" in printed
    assert "Not measured: beside" in printed and "are of the rows' own metrics" in printed
    told = json.loads((tmp_path / "runs" / "reproduce-coins" / "results.json").read_text())
    assert (told["metric"], told["metrics"], told["left_out"]) == ("loss", ["accuracy", "loss"], ["beside"])
    assert told["rows"][0]["values"] == [2.0, 1.9, 1.8] and not told["rows"][0]["at_least"]
    told = json.loads(toss("--metric", "accuracy", "--json").stdout)  # a row's own keeps its goal
    assert [(row["name"], row["goal"], row["verdict"]) for row in told["rows"]] == [("heads", 0.5, "met")]
    assert told["left_out"] == ["error", "beside"]


def test_what_is_kept_and_does_not_fit_is_refused_before_more_seeds_are_measured(toss, tmp_path):
    def refused(*options, **changes):
        return " ".join(toss(*options, code=2, **changes).stderr.split())

    toss("--seeds", 1)
    said = refused("--metric", "auc")
    assert "metric is 'auc', which no row of 'coins' has measured with every seed" in said
    assert "the metrics are accuracy, loss" in said and coins.COINS.measured == []
    said = refused(settings={"tosses": 11})
    assert "was measured with other settings" in said and "name a new folder (--out)" in said
    (tmp_path / "runs" / "reproduce-coins" / "seed-0.json").write_text('{"name": "coins"}')
    assert "delete it to measure again" in refused() and coins.COINS.measured == []


def test_missing_data_are_named_with_where_to_get_them(toss, tmp_path):
    needed = {"coins.csv": "https://example.org/coins", "more.npz": "made by hand"}
    refused = toss(code=2, data=needed).stderr
    assert "coins.csv: https://example.org/coins" in refused and "--data DIR" in refused
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "coins.csv").touch()
    refused = toss("--data", "there", code=2, data=needed).stderr
    assert "more.npz: made by hand" in refused and "coins.csv" not in refused
    assert not (tmp_path / "runs").exists()
    (tmp_path / "there" / "more.npz").touch()
    toss("--data", "there", data=needed)


@pytest.mark.exhaustive
def test_one_of_one_s_own_is_named_by_its_file(tmp_path):
    """Seeds run in processes of their own, each of which loads it from there; those that are finished are kept."""
    source = f"{Path(coins.__file__)}:COINS"
    told = json.loads(command(source, "--jobs", 2, "--json", cwd=tmp_path).stdout)
    assert (told["name"], told["out"], told["seeds"]) == ("coins", "runs/reproduce-coins", [0, 1, 2])
    kept = sorted(file.name for file in (tmp_path / told["out"]).glob("seed-*.json"))
    assert kept == ["seed-0.json", "seed-1.json", "seed-2.json"]
    the_class = f"{Path(coins.__file__)}:Coins", "--jobs", 1, "--out", "one"
    one = json.loads(command(*the_class, "--json", cwd=tmp_path).stdout)
    assert [row["values"] for row in one["rows"]] == [row["values"] for row in told["rows"]]
    assert one["rows"][0]["values"] == [0.5, 0.6, 0.7]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nosuch", f"reproduction is 'nosuch'; choose one of {', '.join(REPRODUCTIONS)}"),
        ("nowhere.py:COINS", "names file 'nowhere.py', which does not exist"),
        ("own.py:NOTHING", "defines no 'NOTHING'"),
        ("own.py:half", "which lacks data, delta, measure, rows, seeds, settings, source, title"),
        ("own.py:Asks", "which cannot be made: TypeError"),
        ("own.py:twice", "its rows are called heads, heads; give each a name of its own"),
        ("own.py:odd", "its settings cannot be kept (Object of type set is not JSON serializable); take what JSON has"),
        ("own.py:elsewhere", "its name is '../coins'; take letters, digits, - and _ alone"),
    ],
)
def test_what_is_no_reproduction_is_refused_before_anything_is_written(source, words, tmp_path):
    (tmp_path / "own.py").write_text(
        "from types import SimpleNamespace\n"
        "from tests.reproduce.coins import Coins\n"
        "half = SimpleNamespace(name='half')\n"
        "elsewhere = Coins(name='../coins')\n"
        "twice = Coins(rows=Coins.rows[:1] * 2)\n"
        "odd = Coins(settings={'sides': {0, 1}})\n"
        "class Asks:\n"
        "    def __init__(self, sides): pass\n"
    )
    assert words in " ".join(command(source, cwd=tmp_path, code=2).stderr.split())
    assert [file.name for file in tmp_path.iterdir() if file.suffix != ".py" and "cache" not in file.name] == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    printed = command("digits", "--out", "/proc/nowhere", cwd=tmp_path, code=2).output
    assert "out is '/proc/nowhere', which cannot be written" in printed and "name another folder" in printed
    assert "Traceback" not in printed and list(tmp_path.iterdir()) == []


def test_an_object_is_reproduced_from_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fair = Coins()
    found = reproduce(fair, seeds=2, progress=False)
    assert fair.measured == [0, 1] and found.met
    assert [(row["name"], row["mean"], row["verdict"]) for row in found.table] == [
        ("heads", 0.55, "met"),
        ("error", pytest.approx(0.205), "met"),
        ("beside", 0.9, "recorded"),
    ]
    assert found.files == [Path("runs/reproduce-coins") / name for name in ("results.json", "figure.svg")]
    assert json.loads(found.files[0].read_text())["rows"] == list(found.table)
    again = Coins()
    assert reproduce(again, progress=False, out="runs/reproduce-coins").table[0]["values"] == [0.5, 0.6, 0.7]
    assert again.measured == [2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"jobs": 2}, "jobs is 2, and the reproduction is an object of class Coins, which other processes do not have"),
        ({"jobs": 0}, "jobs is 0; give a whole number, 1 or more"),
        ({"seeds": 0}, "seeds is 0; give a whole number, 1 or more"),
        ({"seeds": "many"}, "seeds is 'many'; give a whole number"),
    ],
)
def test_what_a_script_cannot_ask_for_is_said_before_anything_is_measured(settings, words, tmp_path):
    fair = Coins()
    with pytest.raises(ReproductionError, match=re.escape(words)):
        reproduce(fair, out=tmp_path / "out", **settings)
    assert fair.measured == [] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_reproduction_is_what_it_says(name):
    found = reproduction_of(name)
    assert found.name == name and found.seeds == 5 and found.source and 0.0 < found.delta < 1.0
    assert len({row.name for row in found.rows}) == len(found.rows)
    assert json.loads(json.dumps(dict(found.settings)))


@pytest.mark.parametrize(
    ("goal", "at_least", "mean", "verdict"),
    [
        (0.9, True, 0.9, GoalVerdict.MET),
        (0.9, True, 0.8999, GoalVerdict.NOT_MET),
        (0.1, False, 0.1, GoalVerdict.MET),
        (0.1, False, 0.1001, GoalVerdict.NOT_MET),
        (0.1, False, float("nan"), GoalVerdict.NOT_MET),
        (None, True, 0.0, GoalVerdict.RECORDED),
    ],
)
def test_the_verdict_is_of_the_mean(goal, at_least, mean, verdict):
    assert RowResult(Row("a", "", goal, None, at_least), (mean,), None, 0.0).verdict is verdict


def test_rows_that_were_not_announced_are_a_mistake_of_the_reproduction(tmp_path, monkeypatch):
    monkeypatch.setattr(Coins, "measure", lambda self, seed, place: iter([("tails", Measured(0.5))]))
    with pytest.raises(RuntimeError, match=r"measured the rows \['tails'\], and announced \['heads', "):
        measure(Coins(), 0, tmp_path, tmp_path, tell=print, advance=print)
    assert not list(tmp_path.glob("*.json"))


# --- the figure over budgets ---


def row(line, budget, mean, error=0.01, goal=None):
    values = (mean - error, mean, mean + error)
    return DrawnRow(f"{line} {budget}", values, mean, error, goal, None, None, line=line, budget=budget)


NEAR = [row("ours", 1.0, 0.8, goal=0.75), row("ours", 8.0, 0.9), row("alone", 1.0, 0.5), row("alone", 8.0, 0.7)]


def layers(rows):
    """The rows of each layer's data, by its mark."""
    spec = spec_of(budgets_figure("Title", "accuracy", rows))
    found = {}
    for layer in spec["layer"]:
        found.setdefault(layer["mark"]["type"], []).append(spec["datasets"][layer["data"]["name"]])
    return found


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (NEAR, True),
        ([row("ours", 1.0, 0.5), row("ours", None, 0.6)], False),
        ([row(f"{n}", b, 0.5) for n in range(9) for b in (1.0, 2.0)], False),
    ],
    ids=["two budgets", "one budget and no privacy", "more lines than colours"],
)
def test_a_line_needs_two_budgets_and_a_colour(rows, expected):
    assert has_lines(rows) is expected


def test_every_row_is_a_point_and_every_line_has_its_name_and_end():
    found = layers(NEAR)
    (points,) = found["line"]
    assert {(p["line"], p["budget"], p["mean"]) for p in points} == {(r.line, r.budget, r.mean) for r in NEAR}
    assert [(p["low"], p["high"]) for p in points if p["mean"] == 0.8] == [pytest.approx((0.78, 0.82))]
    assert {label["text"] for label in found["text"][0]} == {"0.900\N{EN SPACE}ours", "0.700\N{EN SPACE}alone"}
    assert [goal["goal"] for goal in found["tick"][0]] == [0.75]
