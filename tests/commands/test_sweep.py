"""`fedprivacy sweep`: the product of lists, over seeds, in folders of their own."""

import csv
import json
import re
import statistics
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import torch

import fedprivacy as fp
from fedprivacy.figures import to_svg
from fedprivacy.figures.comparison import EpsilonLine, spread_of, sweep_figure
from fedprivacy.runs.records.folder import read_history, read_lines
from fedprivacy.runs.records.grid import FINISHED, SweepGrid
from fedprivacy.simulation.simulate import RoundProgress
from tests.commands.running import fedprivacy, unwrapped
from tests.deploy import blobs_task

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "sweep.md"


class Coins(fp.Task):
    """Coins that are measured on each client's held-out records alone."""

    metric = "bias"
    recipe = fp.Recipe(rounds=2, delta=1e-3, sampling_rate=0.5)

    def model(self):
        return torch.nn.Linear(2, 2)

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id or 0)
        sides = torch.randint(2, (40,), generator=generator)
        return fp.Shard(torch.randn(40, 2, generator=generator) + sides[:, None], sides)

    def held_out(self, source):
        return self.shard(source)

    def held_out_metrics(self, model, records):
        return {"bias": float(model(records.inputs).diff().mean())}


SWEEP = ("sweep", "--jobs", "1", "--task", "sides.py:Sides", "--clients", "2", "--out", "swept")


@pytest.fixture
def home(tmp_path, undrawn):
    """A folder with a task."""
    copy(blobs_task.__file__, tmp_path / "sides.py")
    return tmp_path


def swept(home, *options, code=0):
    return fedprivacy(*SWEEP, *options, cwd=home, code=code)


def table(file):
    with file.open() as lines:
        return list(csv.DictReader(lines))


@pytest.mark.exhaustive
def test_every_combination_is_run_with_every_seed_and_goes_on_where_it_was_stopped(home, monkeypatch):
    options = ("--epsilon", "1,4", "--learning-rate", "0.3", "--seeds", "2", "--baseline")
    stopped, whole = home / "swept" / "epsilon-1_seed-1", home / "whole"

    def stop(self, record):
        if record.round == 2 and stopped.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(RoundProgress, "__call__", stop)
        assert "The same command goes on" in swept(home, *options, code=130).output
    (done,) = (home / "swept").glob(f"*/{FINISHED}")
    written = done.stat().st_mtime_ns
    printed = swept(home, *options).output
    assert "5 runs in" in printed and "1 were finished before" in printed
    words = unwrapped(printed)
    assert "spends privacy that no run's epsilon counts" in words and "docs/how-to/sweep.md" in words
    assert "baseline has the private learning rate" in words and "--baseline-learning-rates 0.1,0.3,1 tries" in words
    assert done.stat().st_mtime_ns == written
    check_tables(home)
    assert (home / "swept" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    settings = ("--task", "sides.py:Sides", "--clients", "2", "--epsilon", "1", "--learning-rate", "0.3", "--seed", "1")
    fedprivacy("simulate", *settings, "--out", str(whole), cwd=home)
    assert read_lines(stopped) == read_lines(whole)


def check_tables(home):
    """The tables say what the runs' own folders say."""
    runs = table(home / "swept" / "runs.csv")
    assert len({run["folder"] for run in runs}) == len(runs) == 2 * 2 + 2
    for run in runs:
        history = read_history(home / run["folder"])
        assert float(run["accuracy"]) == history.last.metrics["accuracy"]
        assert (history.settings["learning-rate"], history.settings["seed"]) == (0.3, int(run["seed"]))
        assert history.settings["privacy"] is (run["privacy"] == "True")
        assert history.settings["epsilon"] == (float(run["epsilon"]) if run["epsilon"] else None)
    for row in table(home / "swept" / "sweep.csv"):
        values = [float(run["accuracy"]) for run in runs if run["epsilon"] == row["epsilon"]]
        assert float(row["accuracy"]) == pytest.approx(statistics.mean(values))
        assert float(row["accuracy_deviation"]) == pytest.approx(statistics.stdev(values))
        assert bool(row["epsilon_spent"]) is (row["privacy"] == "True")


def test_a_sweep_is_the_product_of_its_lists_and_a_baseline_of_those_that_are_not_privacy_s():
    texts = {"epsilon": "1,4", "clipping": "flat", "learning-rate": "0.1,0.3,0.1", "rounds": "7"}
    grid = SweepGrid.of(texts, 3, Path("swept"), baseline=True)
    private = [{"epsilon": e, "learning-rate": rate} for e in (1.0, 4.0) for rate in (0.1, 0.3)]
    without = [{"learning-rate": rate, "privacy": False} for rate in (0.1, 0.3)]
    assert list(grid.combinations) == private + without
    assert len({run.folder for run in grid.runs}) == len(grid.runs) == 3 * 6
    assert grid.runs[1].given == {"clipping": "flat", "rounds": 7, "epsilon": 1.0, "learning-rate": 0.1, "seed": 1}
    assert grid.runs[-1].given == {"rounds": 7, "learning-rate": 0.3, "privacy": False, "seed": 2}


def test_a_setting_is_left_open_where_the_swept_algorithm_does_not_take_it_and_a_baseline_has_rates_of_its_own():
    texts = {"algorithm": "local,fedavg,mr-mtl", "pull": "0.1,1", "epsilon": "2", "learning-rate": "0.3"}
    grid = SweepGrid.of(texts, 2, Path("swept"), baseline=False, baseline_rates="0.01,0.1")
    algorithms = [{"algorithm": "local"}, {"algorithm": "fedavg"}]
    algorithms += [{"algorithm": "mr-mtl", "pull": pull} for pull in (0.1, 1.0)]
    without = [{**chosen, "learning-rate": rate, "privacy": False} for chosen in algorithms for rate in (0.01, 0.1)]
    assert list(grid.combinations) == algorithms + without
    assert grid.runs[0].given == {"algorithm": "local", "epsilon": 2.0, "learning-rate": 0.3, "seed": 0}
    assert grid.runs[-1].given == {**without[-1], "seed": 1}
    fixed = SweepGrid.of({"strategy": "fedavg,fedadam", "server-learning-rate": "0.5"}, 1, Path("s"), baseline=False)
    assert [run.given.get("server-learning-rate") for run in fixed.runs] == [None, 0.5]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_in_python_it_is_the_same_sweep_of_an_object_with_every_metric_and_the_best_baseline(home, monkeypatch):
    monkeypatch.chdir(home)
    settings = {"clients": 2, "rounds": 2, "epsilon": [1.0, 4.0], "learning_rate": 0.3, "progress": False}
    settings |= {"seeds": 2, "baseline_learning_rates": [1e-3, 0.3], "out": "swept"}
    swept = fp.sweep(Coins(), **settings)
    runs = {row["folder"]: fp.open_run(row["folder"]) for row in swept.runs}
    assert len(runs) == 2 * (2 + 2)
    assert swept.metrics == [f"each_{name}{which}" for name in ("loss", "bias") for which in ("", "_least", "_most")]
    for row in swept.runs:
        assert {name: row[name] for name in swept.metrics} == runs[row["folder"]].metrics
    baselines = [row for row in swept.runs if not row["privacy"]]
    slow, fast = ([row["each_bias"] for row in baselines if row["learning-rate"] == rate] for rate in (1e-3, 0.3))
    means = statistics.mean(slow), statistics.mean(fast)
    (line,) = swept.lines()
    assert line.baseline.mean == pytest.approx(max(means)) and means[0] != means[1]
    assert "Each bias" in swept.figure()._repr_svg_()
    rows = table(home / "swept" / "sweep.csv")
    assert [float(row["each_bias"]) for row in rows] == [row["each_bias"] for row in swept.combinations]
    again = fp.sweep(Coins(), metric="each_bias", **settings)
    assert again.metric == "each_bias" and again.runs == swept.runs  # nothing ran again
    with pytest.raises(fp.ConfigError, match="metric is 'bias', which no run has measured; choose from each_loss"):
        fp.sweep(Coins(), metric="bias", **settings)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ledger": "sqlite:///l.db"}, "ledger is no setting of a sweep"),
        ({"seeds": 0}, "seeds is 0; give a whole number, 1 or more"),
        ({"epsilon": "1,3"}, "epsilon is '1,3'; give a number"),
        ({"out": None}, "out is None; give a folder's path"),
        ({"seeds": True}, "seeds is True; give a whole number, 1 or more"),
        ({"baseline_learning_rates": "fast"}, "baseline_learning_rates has 'fast'; give numbers"),
        ({"jobs": 2}, "jobs is 2, and the task is an object"),
        ({"epsilon": []}, "epsilon is an empty list; give a value"),
        ({"baseline_learning_rates": [0.0]}, "learning_rate is 0.0"),
    ],
)
def test_what_python_s_sweep_cannot_take_is_named_before_the_first_run(given, told, tmp_path):
    with pytest.raises(fp.ConfigError) as raised:
        fp.sweep(Coins(), **{"out": tmp_path / "swept", "progress": False} | given)
    assert told in str(raised.value)
    assert not (tmp_path / "swept").exists()


def test_all_combinations_are_checked_before_the_first_run(home):
    printed = swept(home, "--epsilon", "1,-2", "--learning-rate", "0.1,0", code=2).output
    assert "epsilon is -2.0" in printed and "learning-rate is 0.0" in printed
    printed = swept(home, "--epsilon", "1,4", "--strategy", "fedavg,gone.py:Gone", code=2).output
    assert "gone.py" in printed
    assert not (home / "swept").exists()


@pytest.mark.exhaustive
def test_a_place_where_no_sweep_can_be_is_refused(home):
    fedprivacy("simulate", "--task", "sides.py:Sides", "--epsilon", "1", "--rounds", "1", "--out", "one", cwd=home)
    for out, told in (("sides.py", "which is a file"), ("one", "which already holds a run; name a new folder.")):
        printed = fedprivacy("sweep", "--task", "sides.py:Sides", "--epsilon", "1", "--out", out, cwd=home, code=2)
        assert f"out is '{out}', {told}" in unwrapped(printed.output) and "Traceback" not in printed.output
    swept(home, "--epsilon", "1", "--rounds", "1")
    printed = swept(home, "--epsilon", "1", "--rounds", "2", code=2).output
    assert "holds a run with another rounds" in unwrapped(printed)


def test_a_run_that_fails_is_named_and_stops_no_other(home):
    broken = "from flwr.serverapp.strategy import FedAvg\n\nclass Broken(FedAvg):\n    def configure_train(self, *_):\n"
    (home / "broken.py").write_text(broken + "        raise RuntimeError('it is broken')\n")
    printed = swept(home, "--strategy", "broken.py:Broken,fedavg", "--json", code=1)
    told = json.loads(printed.stdout)
    assert [run["strategy"] for run in told["runs"]] == ["fedavg"]
    ((name, why),) = told["failed"].items()
    assert name.startswith("strategy-broken.py_Broken") and why == "RuntimeError: it is broken"


def test_the_figure_has_a_band_for_each_line_and_its_baseline_as_another():
    points = [(0.5, spread_of([0.6, 0.7])), (2.0, spread_of([0.8, 0.82]))]
    drawing = to_svg(sweep_figure([EpsilonLine("", points, spread_of([0.9, 0.91]))], "accuracy"))
    assert "Accuracy 65.0\xa0% at ε 0.5 to 81.0\xa0% at ε 2; 90.5\xa0% with no privacy" in drawing
    assert "mean and standard deviation over 2 seeds" in drawing
    assert spread_of([0.6, 0.7]).deviation == pytest.approx(statistics.stdev([0.6, 0.7]))
    with pytest.raises(ValueError, match="no run of the sweep has an epsilon"):
        sweep_figure([EpsilonLine("", [])], "accuracy")


def made_up_hospitals(file):
    """Four hospitals' patients and public ones, of thirteen measurements that say something of a disease."""
    random, rows = np.random.default_rng(5), ["hospital," + ",".join(f"m{i}" for i in range(13)) + ",disease"]
    weights = random.normal(size=13)
    hospitals = {"cleveland": 303, "hungary": 261, "switzerland": 46, "long-beach": 130, "public": 185}
    for name, patients in hospitals.items():
        measured = random.normal(size=(patients, 13)) + 0.3 * random.normal(size=13)
        ill = (measured @ weights + random.normal(scale=1.5, size=patients) > 0).astype(int)
        rows += [f"{name},{','.join(f'{x:.3f}' for x in row)},{y}" for row, y in zip(measured, ill, strict=True)]
    file.write_text("\n".join(rows) + "\n")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_from_an_empty_folder_to_five_budgets_and_their_baseline_in_three_commands_and_one_file(tmp_path):
    """The how-to's commands as typed, but for one seed instead of five; several are in the first test above."""
    text = HOW_TO.read_text()
    file, in_python, on_public = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "OnPublic(Heart(), " in on_public  # of the same file, for those who have public records
    assert "fp.sweep(" in in_python
    commands = re.findall(r"```sh\n(fedprivacy doctor.*?)```", text, re.DOTALL)[0].strip().splitlines()
    assert (len(file.splitlines()) <= 40, len(commands)) == (True, 3)
    (tmp_path / "heart.py").write_text(file)
    made_up_hospitals(tmp_path / "heart.csv")
    typed = [command.replace("--seeds 5", "--seeds 1 --jobs 1").split()[1:] for command in commands]
    printed = [fedprivacy(*command, cwd=tmp_path) for command in typed]
    rows = table(tmp_path / "sweeps" / "heart" / "sweep.csv")
    assert [row["epsilon"] for row in rows] == ["0.5", "1.0", "2.0", "4.0", "8.0", ""]
    assert {row["runs"] for row in rows} == {"1"}
    reached = [float(row["accuracy"]) for row in rows]
    assert reached[-1] > 0.75 and reached[0] < reached[-1] + 0.03  # one seed to another differs by as much
    assert (tmp_path / "sweeps" / "heart" / "sweep.png").exists()
    assert "privacy costs" in printed[-1].stdout
