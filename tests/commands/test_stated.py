"""A run's promise is stated wherever it is shown: for records, for clients as a whole, or nothing at all."""

import html
import re
from contextlib import closing

import pytest

import fedprivacy as fp
from fedprivacy.accounting.views import UserLevelAccount
from fedprivacy.runs.records.store import RunStore, url_in
from fedprivacy.simulation.simulate import RoundProgress
from fedprivacy.trackers.tracker import guarantee, scalars, settings
from fedprivacy.values.spent import FOR_WHOM
from tests.commands.running import fedprivacy, summary, unwrapped
from tests.dashboard.shown import asking
from tests.runs.rounds import rounds_of

BASELINE = ("--task", "cancer", "--clients", "3", "--rounds", "3")
OF_CLIENTS = ("--task", "cancer", "--clients", "4", "--rounds", "3", "--fraction-train", "0.5")
NOISE = ("--user-level-noise-multiplier", "2")


def words(page):
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    """(folder, what the command printed) of a run without privacy."""
    home = tmp_path_factory.mktemp("home")
    printed = fedprivacy("simulate", *BASELINE, "--epsilon", "1", "--no-privacy", cwd=home)
    return home / "runs" / "cancer-1", printed.output


def test_a_baseline_has_no_privacy_wherever_an_epsilon_would_stand_and_charges_nothing(baseline):
    folder, printed = baseline
    assert printed.count("no privacy") >= 4  # the progress, the title, the clients, the last lines
    assert not re.search(r"epsilon \d|epsilon ∞", printed.partition("Next:")[0])
    with closing(RunStore(url_in(folder))) as store:
        (stored,) = store.runs()
        assert store.run(stored.facts.run_id).charges(limit=1, offset=0) == (0, [])
    assert not (folder / "ledger.db").exists()
    page = (folder / "report.html").read_text()
    assert words(page).count("no privacy") >= 6 and "<strong>No privacy.</strong>" in page
    assert not re.search(r"ε\s*(=|≤)?\s*\d|∞|What ε means", words(page))
    run = fp.open_run(folder)
    assert run.metrics["accuracy"] > 0.9 and repr(run).endswith("after 3 rounds; no privacy>")
    assert run._repr_html_().count("<td>no privacy</td>") == 3 and "∞" not in run._repr_html_()
    assert "no privacy" in run.figures.accuracy()._repr_svg_()
    for figure in (run.figures.epsilon, run.figures.tradeoff, run.figures.cost):
        with pytest.raises(ValueError, match="no privacy: there is no epsilon to draw"):
            figure()
    facts = run.history.facts
    assert guarantee(facts) == {"guarantee": "no privacy"}
    assert (settings(facts)["epsilon"], settings(facts)["privacy"]) == ("no privacy", False)
    assert not any("epsilon" in name for name in scalars(run.history.last.point, private=facts.private))


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
    figures = ("epsilon", "tradeoff", "cost", "metric")
    assert [client.get(f"{path}/figures/{drawn}").status_code for drawn in figures] == [409, 409, 409, 200]
    metrics = client.get("/metrics").text
    assert 'privacy="false"' in metrics
    assert not re.search(r"^fedprivacy_(client_)?epsilon\{", metrics, flags=re.MULTILINE)


@pytest.mark.usefixtures("undrawn")
def test_a_baseline_goes_on_as_if_it_had_not_been_stopped(baseline, tmp_path, monkeypatch):
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


@pytest.fixture(scope="module")
def expected():
    account = UserLevelAccount()
    account.record(0.5, 2.0, 3)
    return account.epsilon(1e-5).value


@pytest.mark.exhaustive
def test_a_user_level_figure_stands_beside_the_record_level_one_says_whose_it_is_and_is_never_added(tmp_path, expected):
    printed = fedprivacy("simulate", *OF_CLIENTS, *NOISE, "--epsilon", "1", cwd=tmp_path).output.partition("Next")[0]
    assert re.search(r"no client above epsilon \d", printed)
    assert re.search(rf"Each client as a whole: epsilon \d\.\d\d at delta 1e-5 after 3 rounds \({FOR_WHOM}\)", printed)
    assert "never added to the other" in printed
    folder = tmp_path / "runs" / "cancer-1"
    lines = rounds_of(folder)
    assert [line["user_level"]["rounds"] for line in lines] == [1, 2, 3]
    assert lines[-1]["user_level"]["epsilon"] == expected and lines[-1]["max_epsilon"] <= 1.0
    run = fp.open_run(folder)
    assert (run.user_level.epsilon, run.history.start.user_level.epsilon) == (expected, 0.0)
    page = words((folder / "report.html").read_text())
    assert "Each client as a whole" in page and "never added to what one record lost" in page
    assert "User-level, for whoever sees the global models" in page
    assert "Who joined stays secret" in page and "for the server's operator" in page


def test_the_plan_says_what_it_will_cost(tmp_path):
    told = unwrapped(fedprivacy("plan", *OF_CLIENTS, "--user-level-epsilon", "2", cwd=tmp_path).output)
    assert re.search(r"Each client as a whole \(.*\): joins with probability 0\.5, noise multiplier \d", told)
    assert re.search(r"epsilon 2\.00 at delta 1e-05 after 3 rounds", told)


@pytest.mark.exhaustive
def test_a_baseline_with_it_promises_nothing_for_records_and_something_for_clients(tmp_path, expected):
    told = summary(*OF_CLIENTS, *NOISE, "--no-privacy", cwd=tmp_path)
    assert (told["max_epsilon"], told["user_level"]["epsilon"]) == (None, expected)
    page = words((tmp_path / "runs" / "cancer-1" / "report.html").read_text())
    assert "The server is trusted with all of it" in page and "Each client as a whole" in page
    assert "A simulation with a known seed protects nobody" in page
