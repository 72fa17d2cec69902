"""All runs side by side: the page's table and figure say what each run's folder says."""

import csv
import io
import json
import re

import pytest
from playwright.sync_api import expect

import fedprivacy as fp
from tests.dashboard.browser import opened
from tests.dashboard.shown import asking, serving
from tests.flower.blobs import Blobs

RATES = (0.001, 0.1, 0.5)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder with three runs of different rates, one of them tagged."""
    folder = tmp_path_factory.mktemp("swept")
    for rate in RATES:
        settings = {"learning_rate": rate, "clients": 2, "rounds": 2, "epsilon": 3, "seed": 1}
        tags = "best" if rate == RATES[-1] else ""
        fp.simulate(Blobs(), out=folder / f"rate-{rate}", tags=tags, progress=False, drawn=False, **settings)
    return folder


def get(folder, path, **query):
    answer = asking(folder).get(f"/api/v1/experiments{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer


def test_the_table_has_every_run_s_metrics_and_the_settings_in_which_they_differ(swept):
    found = get(swept, "", sort="accuracy").json()
    assert (found["total"], found["differing"]) == (3, ["learning-rate"])
    assert found["metrics"] == found["main"] == ["accuracy"]
    reached = {rate: fp.open_run(swept / f"rate-{rate}").metrics for rate in RATES}
    assert {run["settings"]["learning-rate"]: run["metrics"] for run in found["runs"]} == reached
    order = [run["metrics"]["accuracy"] for run in found["runs"]]
    assert order == sorted(order, reverse=True) and len(set(order)) > 1
    assert [run["run"] for run in get(swept, "", tag="best").json()["runs"]] == ["rate-0.5"]
    assert [run["run"] for run in get(swept, "", search="RATE-0.1").json()["runs"]] == ["rate-0.1"]
    assert asking(swept).get("/api/v1/experiments", params={"sort": "acuracy"}).status_code == 409


def test_the_figure_has_a_point_for_each_run_that_has_both(swept):
    rows = list(csv.DictReader(io.StringIO(get(swept, "/figures/points.csv", x="learning-rate", y="accuracy").text)))
    drawn = json.dumps(get(swept, "/figures/points", x="learning-rate", y="accuracy", colour="learning-rate").json())
    assert {float(row["learning-rate"]) for row in rows} == set(RATES)
    for row in rows:
        assert row["run"] in drawn
        assert float(row["accuracy"]) == fp.open_run(swept / row["run"]).metrics["accuracy"]
    assert "3 runs: best accuracy" in drawn and '"log"' in drawn  # the rates span more than a factor of 20
    nothing = asking(swept).get("/api/v1/experiments/figures/points", params={"x": "pull", "y": "accuracy"})
    assert nothing.status_code == 409 and "no run has pull and accuracy yet" in nothing.json()["detail"]


@pytest.mark.exhaustive
def test_a_reader_finds_the_best_run_and_opens_it(browser, swept):
    """A question to which the server gives no answer is asked again with the reader's next word."""
    with serving(swept) as address, opened(browser, expected="ERR_FAILED") as page:
        page.goto(address)
        page.route("**/experiments?*", lambda route: route.abort(), times=1)
        with page.expect_event("requestfailed"):
            page.get_by_text("All runs: settings and metrics").click()
        table, figure = page.locator("#experiment-table"), page.locator("#experiment-figure")
        expect(figure.get_by_role("button", name="PNG")).to_be_disabled()  # nothing is drawn yet
        page.locator("#experiment-search").fill("rate")
        expect(table.get_by_role("row")).to_have_count(4)
        expect(figure.get_by_role("button", name="PNG")).to_be_enabled()
        expect(figure).to_contain_text("One point for each run")
        page.get_by_role("combobox", name="Figure", exact=True).focus()
        page.keyboard.press("ArrowDown")
        expect(figure).to_contain_text("One line for each run")
        drawn = figure.get_by_role("img", name=re.compile("One line for each run.*best accuracy.*in rate-0.5"))
        expect(drawn).to_be_visible()
        expect(drawn.locator(".mark-line path")).to_have_count(len(RATES))
        page.locator("#experiment-search").fill("best")
        expect(table.get_by_role("row")).to_have_count(2)
        table.get_by_role("button", name="rate-0.5").click()
        expect(page.locator("#kicker")).to_contain_text("rate-0.5")
