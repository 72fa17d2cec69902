"""A user-level figure stands beside the record-level one wherever it is shown, says whose it is, and is never added."""

import html
import re

import pytest

import fedprivacy as fp
from fedprivacy.accounting.views import UserLevelAccount
from fedprivacy.values.spent import FOR_WHOM
from tests.commands.running import fedprivacy, summary, unwrapped
from tests.runs.rounds import rounds_of

SETTINGS = ("--task", "cancer", "--clients", "4", "--rounds", "3", "--fraction-train", "0.5")
NOISE = ("--user-level-noise-multiplier", "2")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(folder, what the command printed)."""
    home = tmp_path_factory.mktemp("home")
    printed = fedprivacy("simulate", *SETTINGS, *NOISE, "--epsilon", "1", cwd=home)
    return home / "runs" / "cancer-1", printed.output


@pytest.fixture(scope="module")
def expected():
    account = UserLevelAccount()
    account.record(0.5, 2.0, 3)
    return account.epsilon(1e-5).value


@pytest.mark.exhaustive
def test_the_terminal_says_both_and_whose_each_is(ran):
    last = ran[1].partition("Next")[0]
    assert re.search(r"no client above epsilon \d", last)
    assert re.search(rf"Each client as a whole: epsilon \d\.\d\d at delta 1e-5 after 3 rounds \({FOR_WHOM}\)", last)
    assert "never added to the other" in last


@pytest.mark.exhaustive
def test_its_files_hold_it_for_every_round_and_read_it_back(ran, expected):
    lines = rounds_of(ran[0])
    assert [line["user_level"]["rounds"] for line in lines] == [1, 2, 3]
    assert lines[-1]["user_level"]["epsilon"] == expected and lines[-1]["max_epsilon"] <= 1.0
    run = fp.open_run(ran[0])
    assert run.user_level.epsilon == expected
    assert run.history.start.user_level.epsilon == 0.0


@pytest.mark.exhaustive
def test_the_report_states_it_with_its_view_and_its_conditions(ran):
    page = html.unescape((ran[0] / "report.html").read_text())
    assert "Each client as a whole" in page and "never added to what one record lost" in page
    assert "User-level, for whoever sees the global models" in page
    assert "Who joined stays secret" in page and "for the server's operator" in page


def test_the_plan_says_what_it_will_cost(tmp_path):
    told = unwrapped(fedprivacy("plan", *SETTINGS, "--user-level-epsilon", "2", cwd=tmp_path).output)
    assert re.search(r"Each client as a whole \(.*\): joins with probability 0\.5, noise multiplier \d", told)
    assert re.search(r"epsilon 2\.00 at delta 1e-05 after 3 rounds", told)


@pytest.mark.exhaustive
def test_a_baseline_with_it_promises_nothing_for_records_and_something_for_clients(tmp_path, expected):
    told = summary(*SETTINGS, *NOISE, "--no-privacy", cwd=tmp_path)
    assert told["max_epsilon"] is None
    assert told["user_level"]["epsilon"] == expected
    page = html.unescape((tmp_path / "runs" / "cancer-1" / "report.html").read_text())
    assert "The server is trusted with all of it" in page and "Each client as a whole" in page
    assert "A simulation with a known seed protects nobody" in page
