"""`fedprivacy simulate --no-privacy`: the same run without clipping and noise, and everywhere it is said that it is."""

import html
import re
from contextlib import closing

import pytest

import fedprivacy as fp
from fedprivacy.runs.records.store import RunStore, url_in
from fedprivacy.simulation.simulate import RoundProgress
from fedprivacy.trackers.tracker import guarantee, scalars, settings
from tests.commands.running import fedprivacy
from tests.dashboard.shown import asking
from tests.runs.rounds import rounds_of

SETTINGS = ("--task", "cancer", "--clients", "3", "--rounds", "3")


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    """(folder, what the command printed) of a run without privacy."""
    home = tmp_path_factory.mktemp("home")
    printed = fedprivacy("simulate", *SETTINGS, "--epsilon", "1", "--no-privacy", cwd=home)
    return home / "runs" / "cancer-1", printed


def test_the_terminal_says_no_privacy_where_an_epsilon_would_stand(baseline):
    printed = baseline[1].output
    assert fp.open_run(baseline[0]).metrics["accuracy"] > 0.9
    assert printed.count("no privacy") >= 4  # the progress, the title, the clients, the last lines
    assert not re.search(r"epsilon \d|epsilon ∞", printed.partition("Next:")[0])


def test_nothing_is_charged(baseline):
    assert not (baseline[0] / "ledger.db").exists()
    with closing(RunStore(url_in(baseline[0]))) as store:
        (run,) = store.runs()
        assert store.run(run.facts.run_id).charges(limit=1, offset=0) == (0, [])


def test_the_report_says_so_and_states_no_epsilon(baseline):
    page = html.unescape((baseline[0] / "report.html").read_text())
    words = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert words.count("no privacy") >= 6
    assert "<strong>No privacy.</strong>" in page
    assert not re.search(r"ε\s*(=|≤)?\s*\d|∞", words)
    assert "What ε means" not in words


def test_a_notebook_says_so(baseline):
    run = fp.open_run(baseline[0])
    shown = run._repr_html_()
    assert repr(run).endswith("after 3 rounds; no privacy>")
    assert shown.count("<td>no privacy</td>") == 3
    assert "∞" not in shown
    assert "no privacy" in run.figures.accuracy()._repr_svg_()
    for figure in (run.figures.epsilon, run.figures.tradeoff, run.figures.cost):
        with pytest.raises(ValueError, match="no privacy: there is no epsilon to draw"):
            figure()


def test_the_dashboard_says_so(baseline):
    client = asking(baseline[0].parent)
    (found,) = client.get("/api/v1/runs").json()["runs"]
    path = f"/api/v1/runs/{found['run_id']}"
    run = client.get(path).json()
    assert (run["privacy"], run["noise_multiplier"]) == (False, None)
    assert (run["worst"]["epsilon"], run["worst"]["epsilon_text"]) == (None, "no privacy")
    assert run["guarantee"].startswith("A baseline: no privacy.")
    clients = client.get(f"{path}/clients").json()["clients"]
    assert {(c["epsilon"], c["epsilon_text"], c["noise_multiplier"]) for c in clients} == {(None, "no privacy", None)}
    for drawn in ("epsilon", "tradeoff", "cost"):
        assert client.get(f"{path}/figures/{drawn}").status_code == 409
    assert client.get(f"{path}/figures/metric").status_code == 200
    metrics = client.get("/metrics").text
    assert 'privacy="false"' in metrics
    assert not re.search(r"^fedprivacy_(client_)?epsilon\{", metrics, flags=re.MULTILINE)


def test_trackers_are_told_so(baseline):
    run = fp.open_run(baseline[0])
    facts = run.history.facts
    assert guarantee(facts) == {"guarantee": "no privacy"}
    assert (settings(facts)["epsilon"], settings(facts)["privacy"]) == ("no privacy", False)
    assert not any("epsilon" in name for name in scalars(run.history.last.point, private=facts.private))


@pytest.mark.usefixtures("undrawn")
def test_it_goes_on_as_if_it_had_not_been_stopped(baseline, tmp_path, monkeypatch):
    """Catches: another sample after the stop, or rounds that are counted anew."""

    def stop(self, record):
        if record.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as stopping, pytest.raises(KeyboardInterrupt):
        stopping.setattr(RoundProgress, "__call__", stop)
        fp.simulate("cancer", clients=3, rounds=3, privacy=False, out=tmp_path / "part", progress=False)
    refused = fedprivacy("simulate", "--resume", "part", "--privacy", cwd=tmp_path, code=2)
    assert "privacy is True, but the run goes on with its own, False" in refused.output
    assert "Going on after round 1 of 3" in fedprivacy("simulate", "--resume", "part", cwd=tmp_path).output
    assert rounds_of(tmp_path / "part") == rounds_of(baseline[0])
