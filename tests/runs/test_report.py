"""The report says what happened, in words that hold, and loads and runs nothing."""

import base64
import hashlib
import math
import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import pytest

from fedprivacy.accounting.histories import person_history
from fedprivacy.accounting.risk import RATES, Risk
from fedprivacy.flower.server.one_round import NO_REPLY
from fedprivacy.flower.wire.messages import RefusalCode
from fedprivacy.runs.records.report import report_html, write_report
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.wording import OUT_OF_SCOPE, TAMPERED_CODE, TRUSTED, at_most_text, epsilon_text
from tests.runs.histories import alike, run_history


class Page:
    """A report taken apart: tags, attributes, its text and its tables; tags that do not match are an error."""

    def __init__(self, html):
        closed = re.sub(r"<((?:meta|br|hr|link|img|input)\b[^>]*?) ?/?>", r"<\1/>", html.partition(">")[2])
        elements = list(ElementTree.fromstring(closed.replace("<br/>", " ").replace("&nbsp;", "\xa0")).iter())
        self.tags = {element.tag.rpartition("}")[2] for element in elements}
        self.attributes = [pair for element in elements for pair in element.items()]
        (self.style,) = (element.text for element in elements if element.tag == "style")
        self.text = words_of(elements[0]).replace(" ".join(self.style.split()), "")
        self.tables = [
            [[words_of(cell) for cell in row] for row in element.iter("tr")]
            for element in elements
            if element.tag == "table"
        ]

    def table(self, first_header):
        """Rows as dictionaries by column of the table whose first header this is."""
        (found,) = [table for table in self.tables if table[0][0] == first_header]
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]

    def settings(self):
        return dict(self.tables[-1])


def words_of(element):
    return " ".join("".join(element.itertext()).split())


@pytest.fixture(autouse=True)
def _blank(request, monkeypatch):
    """Blank figures, but where they are looked at: to draw them takes most of a report's time."""
    if "drawn" not in request.fixturenames:
        for figure in ("metric_figure", "epsilon_figure"):
            monkeypatch.setattr(f"fedprivacy.figures.{figure}", lambda *_, **__: None)
        monkeypatch.setattr("fedprivacy.figures.to_svg", lambda figure: "<svg></svg>")


@pytest.fixture
def drawn():
    """Reports have their figures."""


def page(history):
    return Page(report_html(history))


def troubled():
    """Client-10 is exhausted midway; client-2 fails twice for one reason and once for another."""
    return run_history(
        {"client-10": lambda n: True, "client-2": lambda n: n % 2 == 1, "client-3": lambda n: n % 3 == 0},
        rounds=30,
        quota=20,
        failures={
            ("client-2", 1): NO_REPLY,
            ("client-2", 5): NO_REPLY,
            ("client-2", 7): "wrong-shape:body.0.weight",
            ("client-3", 3): NO_REPLY,
        },
    )


@pytest.mark.exhaustive
def test_the_headline_says_what_was_reached_and_what_it_cost():
    text = page(alike(rounds=30)).text
    spent = "no client spent more than ε 2.12 of its budget 3 (δ = 1e-4)"
    assert text.startswith(f"Ten clients trained digits for 30 rounds: accuracy 77.1 %, {spent}")
    one = "One client trained digits for 1 round: accuracy 15.0 %, it spent ε 0.39 of its budget 3 (δ = 1e-4)"
    assert page(alike(clients=1, rounds=1)).text.startswith(one)
    free = page(alike(clients=200, rounds=30, budget=math.inf, metric="mse", value=lambda n: 1 / n)).text
    assert free.startswith("200 clients trained digits for 30 rounds: mse 0.03333, no client spent more than ε 3.53")
    assert "(δ = 1e-4); no budget was set" in free
    assert "accuracy not a number" in page(alike(value=lambda n: math.nan)).text
    assert "accuracy not measured" in page(alike(metric=None)).text


@pytest.mark.exhaustive
def test_every_client_has_its_account_in_the_order_in_which_people_count_and_failures_are_told_by_reason():
    shown = page(troubled())
    rows = shown.table("Client")
    assert [row["Client"] for row in rows] == ["client-2", "client-3", "client-10"]
    assert list(rows[2].values()) == [
        *("client-10", "2.99", "3", "", "exhausted by round 20"),
        *("0", "80", "20", "20", "0.2", "2.1374"),
    ]
    assert (rows[0]["Rounds charged"], rows[0]["Rounds averaged"]) == ("15", "12")
    assert (rows[0]["State"], rows[0]["Local steps left"]) == ("active, 3 rounds failed", "20")
    assert rows[1]["State"] == "active, 1 round failed"
    assert "1 of 3clients have spent their budget, 1 before the last round" in shown.text
    widths = re.findall(r'<rect class="used" width="([\d.]+)"', report_html(troubled()))
    assert [float(width) for width in widths] == pytest.approx(
        [99.6 * math.sqrt(15 / 20), 99.6 * math.sqrt(10 / 20), 99.6], abs=0.06
    )
    rows = shown.table("Reason")
    assert [(row["Reason"], row["Times"], row["Clients"], row["Charge"]) for row in rows] == [
        ("no-reply", "3", "client-2, client-3", "stands"),
        ("wrong-shape", "1", "client-2", "stands"),
    ]
    assert rows[1]["What it means"].endswith("body.0.weight")
    assert rows[1]["What to do"] == "give every client the same version of the task"
    assert "None: every update that was asked for was used." in page(alike()).text


def test_every_refusal_is_explained_and_what_became_of_its_charge_and_another_reason_is_shown_as_it_is():
    reasons = [*(code.value for code in RefusalCode), "unheard-of"]
    failures = {(f"client-{n}", 1): reason for n, reason in enumerate(reasons, 1)}
    rows = page(alike(clients=len(reasons), rounds=2, failures=failures)).table("Reason")
    shown = {row["Reason"]: row for row in rows}
    assert shown.keys() == set(reasons)
    for code in RefusalCode:
        assert shown[code.value]["Charge"] == ("returned" if code.before_any_record else "stands")
        assert shown[code.value]["What it means"] != code.value.replace("-", " ")
        assert (
            shown[code.value]["What to do"] != shown["unheard-of"]["What to do"] == "read the logs of server and client"
        )
    assert shown["unheard-of"]["Charge"] == "stands"


@pytest.mark.exhaustive
def test_a_person_with_several_records_has_a_row_each_unless_persons_are_records(drawn):
    charged = {PoissonSampledGaussian(0.2, 2.0, NeighbouringRelation.ZERO_OUT): 30}
    history = alike(rounds=30)
    *earlier, last = history.rounds
    history = replace(history, rounds=(*earlier, replace(last, most_charged=charged)))
    shown = page(history)
    rows = {name: cells for name, *cells in (list(row.values()) for row in shown.table(""))}
    delta = last.spent["client-1"].delta

    def found(charged):
        risk = Risk.of_history(charged, delta)
        return [at_most_text(float(risk.found(rate))).replace("\xa0", " ") for rate in RATES]

    assert rows["The client that has spent most"][2:] == found(charged)
    for records in (2, 5, 10):
        epsilon, _, *those = rows[f"A person there with {records} records"]
        assert those == found(person := person_history(charged, records))
        assert epsilon == epsilon_text(Risk.of_history(person, delta).epsilon)
    assert Risk.of_history(charged, delta).sentence().replace("\xa0", " ") in shown.text
    assert "found, at most" in shown.text and "thin: what ε and δ alone would allow" in shown.text
    of_patients = page(replace(history, unit="patient (at most 8 rows)"))
    assert len(of_patients.table("")) == 3 and "A person there with" not in of_patients.text


@pytest.mark.parametrize(
    ("relation", "said", "unsaid"),
    [
        (NeighbouringRelation.ZERO_OUT, "number of records is public and not protected", "one record less"),
        (NeighbouringRelation.ADD_OR_REMOVE_ONE, "number of records is protected like the records", "is replaced by"),
    ],
)
def test_the_promise_is_the_one_of_the_run_s_relation(relation, said, unsaid):
    text = page(alike(relation=relation)).text
    assert said in text
    assert unsaid not in text
    assert f"{relation.value} relation" in text


def test_without_a_budget_there_is_no_bar_and_no_limit_and_with_one_what_tests_find_within_it_is_told():
    shown = page(alike(budget=math.inf))
    assert {(row["Budget"], row["Local steps left"]) for row in shown.table("Client")} == {("none", "no limit")}
    assert "exhausted by" not in shown.text
    assert 'class="bar"' not in report_html(alike(budget=math.inf))
    assert shown.settings()["epsilon"].startswith("infinite") and len(shown.table("")) == 2
    told = [list(row.values())[1:] for row in page(alike(rounds=30)).table("")]
    assert told[:2] == [["2.12", "8.28", "0.84 %", "8.3 %", "41.4 %"], ["3", "20.1", "2.1 %", "20.1 %", "95.3 %"]]


HOSTILE = "<script>alert(1)</script>\"'&"


def test_the_page_loads_nothing_runs_nothing_keeps_its_own_policy_and_takes_hostile_names_for_texts(drawn):
    history = run_history(
        {HOSTILE: lambda n: True, "b": lambda n: n > 1},
        rounds=3,
        failures={("b", 2): f"wrong-shape:{HOSTILE}", ("b", 3): HOSTILE},
        metric=HOSTILE,
        task=f"a.py:{HOSTILE}",
        out=f"{HOSTILE}/runs",
        strategy=HOSTILE,
    )
    html = report_html(history)
    assert all(limit in unescape(html) for limit in (TRUSTED, OUT_OF_SCOPE, TAMPERED_CODE))
    shown = Page(html)
    assert {row["Client"] for row in shown.table("Client")} == {HOSTILE, "b"}
    assert shown.settings()["out"] == f"{HOSTILE}/runs"
    assert {row["Reason"] for row in shown.table("Reason")} == {"wrong-shape", HOSTILE}
    assert not shown.tags & {"script", "link", "img", "iframe", "object", "base", "form", "a", "image", "use"}
    names = {name for name, _ in shown.attributes}
    assert not names & {"src", "href", "xlink:href", "style", "srcset", "action"}
    assert not {name for name in names if name.startswith("on")}
    assert set(re.findall(r"https?://[^\"\s]*", html)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"url\(|@import|@font-face", shown.style)
    digest = base64.b64encode(hashlib.sha256(shown.style.encode()).digest()).decode()
    policy = next(value for name, value in shown.attributes if name == "content" and "default-src" in value)
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert html.count("<svg") >= 2


@pytest.mark.exhaustive
def test_the_drawings_turn_dark_with_the_page_and_the_file_is_what_was_rendered(drawn, tmp_path):
    html = report_html(troubled())
    dark = Page(html).style.partition("prefers-color-scheme: dark")[2]
    used = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', html.partition("<figure>")[2].partition("</figure>")[0]))
    assert used
    for colour in used:
        assert f'[fill="{colour}"]' in dark and f'[stroke="{colour}"]' in dark
    write_report(troubled(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html
    with pytest.raises(ValueError, match="no finished round"):
        write_report(alike(rounds=0), tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()
