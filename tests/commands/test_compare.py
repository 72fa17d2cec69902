"""`fedprivacy compare`, and what privacy cost."""

import html
import json
import re
import shutil

import pytest

import fedprivacy as fp
from fedprivacy.runs.records.comparison import best_of
from tests.commands.running import fedprivacy
from tests.runs.histories import alike
from tests.runs.rounds import rounds_of

SHORT = {"clients": 2, "rounds": 2, "progress": False}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, undrawn_runs):
    """Folders of a baseline and of two private runs, one of them with another learning rate."""
    home = tmp_path_factory.mktemp("home")
    fp.simulate("cancer", privacy=False, out=home / "baseline", **SHORT)
    fp.simulate("cancer", epsilon=0.1, out=home / "tight", **SHORT)
    fp.simulate("cancer", epsilon=2.0, learning_rate=0.01, out=home / "slow", **SHORT)
    return home


def compared(runs, *names):
    return json.loads(fedprivacy("compare", "--json", *names, "--out", "compared", cwd=runs).stdout)


@pytest.mark.exhaustive
def test_it_says_what_each_run_reached_and_what_privacy_cost(runs):
    told = compared(runs, "baseline", "tight", "slow")
    baseline, tight, slow = told["runs"]
    for row in told["runs"]:
        rounds = rounds_of(runs / row["run"])
        accuracies = [one["metrics"]["accuracy"] for one in rounds]
        assert (row["final"], row["best"]) == (accuracies[-1], max(accuracies))
        assert row["best_round"] == 1 + accuracies.index(max(accuracies))
        assert row["epsilon"] == rounds[-1]["max_epsilon"]
    assert (baseline["privacy"], baseline["epsilon"], baseline["noise_multiplier"]) == (False, None, None)
    assert (baseline["cost"], tight["cost"]) == (None, pytest.approx(baseline["final"] - tight["final"]))
    assert told["differing"]["epsilon"] == ["no privacy", "0.1", "2"]
    assert told["cautions"] == ["slow and its baseline differ in learning-rate, too."]
    assert slow["noise_multiplier"] < tight["noise_multiplier"]
    printed = fedprivacy("compare", "baseline", "tight", cwd=runs).output
    (shown,) = (line for line in printed.partition("Settings that differ")[2].splitlines() if " epsilon " in line)
    assert re.findall(r"[\w.]+(?: \w+)?", shown) == ["epsilon", "no privacy", "0.1"]
    assert "no privacy" in printed and "Report: runs/comparison-1/compare.html" in printed
    assert (runs / "runs" / "comparison-1" / "compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_the_page_needs_no_network_and_escapes_names(runs):
    evil = runs / "<b>evil"
    shutil.copytree(runs / "tight", evil)
    settings = evil / "config.json"
    settings.write_text(settings.read_text().replace(json.dumps(str(runs / "tight")), json.dumps(str(evil))))
    compared(runs, "baseline", "<b>evil")
    page = (runs / "compared" / "compare.html").read_text()
    assert "<b>evil" not in page and "&lt;b&gt;evil" in page
    assert "default-src 'none'" in page and "<script" not in page
    assert not re.search(r"(src|href)=", page)
    words = html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))
    assert "The price of privacy" in words and "the baseline" in words and "no privacy" in words


def test_of_a_loss_less_is_better():
    falling = alike(rounds=4, metric="loss", value=lambda n: abs(n - 3) + 1.0)
    assert best_of(falling, "loss") == (1.0, 3)
    assert best_of(falling, "accuracy") is None


@pytest.mark.exhaustive
def test_in_python_it_takes_runs_and_folders_and_shows_itself(runs):
    compared = fp.compare(fp.open_run(runs / "baseline"), runs / "tight")
    assert "<svg" in compared._repr_html_()
    assert "privacy costs" in repr(compared)
