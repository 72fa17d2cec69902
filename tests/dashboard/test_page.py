"""The page in a real browser: live, with very many clients, behind its door, and for everybody."""

import json
import re
import subprocess
import sys
import threading

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from fedprivacy.runs.records.store import RunRecording
from fedprivacy.values.runs import Phase, RunStatus, Stage
from fedprivacy.values.spent import ClientState
from tests.dashboard.browser import HANG, LEGIBLE, opened, shown, text_sizes
from tests.dashboard.shown import TOKEN, record, serving
from tests.runs.store.made_up import facts, finished, growing, spent
from tests.written import ROOT

RESTED = 5 * HANG
"""Milliseconds after which a figure is drawn again: it rests five times as long as its last drawing took."""

PAGE = ROOT / "fedprivacy" / "dashboard" / "page"

LATE = """
const fetched = window.fetch;
window.fetch = async (address, options) => {
  if (!window.late || !String(address).endsWith(window.late)) {
    return fetched(address, options);
  }
  await new Promise((resolve) => { window.answerLate = resolve; });
  const answer = await fetched(address, options);
  const told = await answer.json();
  answer.json = async () => {
    setTimeout(() => { window.toldLate = true; });
    return told;
  };
  return answer;
};
"""
"""The answer to the address that ends with `late` comes when a test says so; then the page tells that it has it."""

THREE_ROUNDS_LATER = """
() => {
  const found = document.querySelector("#progress-words").textContent.match(/[0-9,]+/);
  const round = found && Number(found[0].replaceAll(",", ""));
  return round >= 3 + (window.firstRound ??= round);
}
"""


@pytest.fixture(scope="module")
def address(runs):
    with serving(runs) as url:
        yield url


def choose(page, name):
    """Another run, by the picker alone."""
    page.locator("#run-picker button").first.click()
    page.keyboard.type(name)
    found = page.locator("#run-picker").get_by_role("option")
    expect(found).to_have_text([re.compile(name)])  # the list of what was typed, which no other replaces
    found.click()
    expect(page.locator("#kicker")).to_contain_text(name)


@pytest.fixture
def done(browser, address):
    """The page of a run that is done."""
    with opened(browser) as page:
        page.goto(address)
        choose(page, "done")
        yield page


@pytest.mark.exhaustive
def test_a_live_simulation_appears_round_by_round(browser, tmp_path):
    """Without a reload; the dashboard does not outlive a run that is killed."""
    command = [sys.executable, "-m", "fedprivacy", "simulate", "--dashboard", "--rounds", "2000"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = next(line for line in process.stderr if "Dashboard:" in line)
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop the run
        with opened(browser, "net::ERR") as page:  # each request that is under way then fails in its own manner
            page.goto(line.split()[-1])
            page.locator("#progress-words").wait_for()
            page.wait_for_function(THREE_ROUNDS_LATER, timeout=300_000)
            process.kill()
            expect(page.locator("#unreachable")).to_be_visible()
            assert page.evaluate("performance.getEntriesByType('navigation').length") == 1
    finally:
        process.kill()
        process.wait()


@pytest.mark.exhaustive
def test_everything_on_the_page_changes_with_a_round(browser, tmp_path):
    url = f"sqlite:///{tmp_path / 'live' / 'ledger.db'}"
    records = growing([f"client-{n}" for n in range(5)], 9)
    record(url, facts("live", rounds=9), records[:4], charged=0)
    # The second recording begins anew, and so there is nothing to draw for a moment: who asks then is told so.
    with serving(tmp_path) as address, opened(browser, expected="409 (Conflict)") as page:
        page.goto(address)
        shown(page)
        expect(page.locator("#progress-words")).to_have_text(re.compile("3 of 9"))
        title = page.locator("#charts svg.marks").first
        expect(title).to_contain_text("After 3 rounds")
        recording = RunRecording(url, facts("live", rounds=9))
        for one in records[:9]:
            recording.add(one)
        recording.enter(Phase(Stage.TRAINING, 9, 5))
        recording.flush()
        expect(page.locator("#progress-words")).to_have_text(re.compile("8 of 9"))
        expect(title).to_contain_text("After 8 rounds", timeout=RESTED)
        expect(page.locator("#phase")).to_contain_text("5 clients")
        page.locator("#client-table").scroll_into_view_if_needed()
        expect(page.locator("#client-table tbody tr").first).to_contain_text("3.00")
        recording.add(records[9])
        recording.end(RunStatus.FINISHED)
        recording.flush()
        recording.close()
        expect(page.locator("#status")).to_contain_text("Finished")


@pytest.mark.exhaustive
def test_very_many_clients_are_sorted_and_paged_and_a_hostile_name_stays_a_text(browser, tmp_path):
    hostile, clients = "<img src=x onerror=alert(1)>\"'&", 20_000
    names = [hostile, *(f"client-{n:06d}" for n in range(1, clients))]
    rounds = [
        finished(r, [spent(name, 0.3 * r + 1e-6 * n, rounds=r) for n, name in enumerate(names)]) for r in range(2)
    ]
    told = facts("crowd", name=hostile, task=f"a.py:{hostile}")
    record(f"sqlite:///{tmp_path / 'crowd' / 'ledger.db'}", told, rounds, charged=0)
    with serving(tmp_path) as address, opened(browser) as page:
        page.goto(address)
        rows = page.locator("#client-table tbody tr")
        expect(rows.first).to_contain_text(names[-1])
        column = page.get_by_role("columnheader", name="Client")
        column.get_by_role("button").click()
        expect(rows.first).to_contain_text(hostile)
        expect(column).to_have_attribute("aria-sort", "ascending")
        pages = page.locator("#client-pages")
        pages.get_by_role("button", name="Next").click()
        expect(rows.first).not_to_contain_text(hostile)
        pages.get_by_role("button", name="Last").click()
        expect(rows.last).to_contain_text(names[-1])
        expect(pages).to_contain_text(f"{clients:,}")
        page.keyboard.press("/")
        page.keyboard.type("01234")
        expect(rows.first).to_contain_text("client-001234")
        expect(rows).to_have_count(11)  # client-001234, and client-012340 to 012349
        assert page.locator("img[src=x]").count() == 0


@pytest.mark.exhaustive
def test_a_client_is_chosen_a_chart_downloaded_runs_compared_by_any_metric_and_a_link_shows_the_same(browser, done):
    shown(done)
    done.get_by_role("checkbox", name="client-07").check()
    done.locator("#charts").scroll_into_view_if_needed()
    expect(done.locator("#charts svg.marks", has_text="Largest privacy loss").first).to_contain_text("client-07")
    card = done.locator("#charts > *").first
    expect(card.locator("svg.marks")).to_be_visible()
    for role, name, begins in (("button", "PNG", b"\x89PNG\r\n"), ("link", "CSV", b"round,metric,value")):
        with done.expect_download() as file:
            card.get_by_role(role, name=name).click()
        assert file.value.path().read_bytes().startswith(begins)
    done.locator("#client-search").fill("client-1")
    expect(done.locator("#client-table tbody tr")).to_have_count(10)
    done.locator("#compare-picker button").first.click()
    done.get_by_role("option", name=re.compile("troubled")).first.click()
    done.keyboard.press("Escape")
    done.locator("#comparison-figures").scroll_into_view_if_needed()
    figures = done.locator("#comparison-figures svg.marks")
    expect(figures).to_have_count(3)
    expect(figures.nth(1)).to_contain_text("accuracy 70.0 % to")
    metric = done.get_by_role("combobox", name="Metric", exact=True)
    expect(metric.locator("option:checked")).to_have_text("accuracy, the task's own")
    metric.select_option("loss")
    for place in range(2):
        expect(figures.nth(place)).to_contain_text("1 run: loss 1.25")
        expect(figures.nth(place)).to_contain_text("left out: done (no loss)")
    with opened(browser) as page:
        page.goto(done.url)
        expect(page.locator("#kicker")).to_contain_text("done")
        expect(page.locator("#client-search")).to_have_value("client-1")
        expect(page.locator("#client-table tbody tr")).to_have_count(10)
        expect(page.get_by_role("combobox", name="Metric", exact=True)).to_have_value("loss")
        expect(page.locator("#comparison-figures svg.marks").nth(1)).to_contain_text("loss 1.25")


@pytest.mark.exhaustive
def test_a_late_answer_does_not_replace_the_run_that_was_chosen_since(browser, address):
    with opened(browser, expected="409 (Conflict)") as page:  # of a run without rounds nothing is drawn
        page.add_init_script(LATE)
        page.goto(address)
        choose(page, "done")
        page.evaluate("window.late = '/runs/troubled'")
        page.locator("#run-picker button").first.click()
        page.get_by_role("option", name=re.compile("troubled")).first.click()
        choose(page, "begun")
        page.evaluate("window.answerLate()")
        page.wait_for_function("() => window.toldLate")
        expect(page.locator("#kicker")).to_contain_text("begun")


def test_the_page_has_the_words_of_states_that_all_others_have():
    written = re.search(r"STATES = (\[.*\]);", (PAGE / "words.js").read_text())[1]
    assert sorted(json.loads(written)) == sorted(ClientState)
    icons = (PAGE / "index.html").read_text()
    assert all(f'id="icon-{state.slug}"' in icons for state in ClientState)


def test_the_token_is_asked_for_and_opens(browser, runs):
    with serving(runs, token=TOKEN) as address, opened(browser, "401") as page:
        page.goto(address)
        expect(page).to_have_url(f"{address}/login")
        page.get_by_label("Token").fill("not the token, but as long")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not the token")  # until then the first form is there
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#kicker")).to_be_visible()
        assert TOKEN not in page.url


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scheme", "width"), [("dark", 390), ("light", 1440)])
def test_nothing_bars_anybody_from_reading(browser, address, scheme, width):
    with opened(browser, color_scheme=scheme, viewport={"width": width, "height": 900}) as page:
        page.goto(address)
        choose(page, "troubled")
        shown(page)
        found = Axe().run(page).response["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert not serious, json.dumps(serious, indent=1)[:4000]
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "the page scrolls sideways"
        assert min(text_sizes(page)) >= LEGIBLE
