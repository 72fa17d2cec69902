"""What people read off the figures is what the run did, for few clients and many, with and without a budget."""

import math
import re
import struct
from decimal import Decimal
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.figures import (
    DARK,
    EXHAUSTED,
    INK,
    MUTED,
    PAPER,
    SPENDING,
    accuracy_figure,
    delta_text,
    epsilon_figure,
    epsilon_text,
    metric_text,
    run_figure,
    save_png,
    task_name,
    to_svg,
)
from tests.run_histories import alike, run_history, unlike

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart):
    return ElementTree.fromstring(to_svg(chart))


def texts(root):
    return ["".join(element.itertext()).replace("\N{NO-BREAK SPACE}", " ") for element in root.iter(f"{SVG}text")]


def labels(root):
    """Labels beside the plot, as 'epsilon name', from top to bottom."""
    found = [
        (height(e), "".join(e.itertext())) for e in root.iter(f"{SVG}text") if "\N{EN SPACE}" in "".join(e.itertext())
    ]
    return [text.replace("\N{EN SPACE}", " ") for _, text in sorted(found)]


def height(element):
    return float(re.fullmatch(r"translate\(.*,(.*)\)", element.get("transform"))[1])


def marks(root, kind):
    """Drawn elements of all marks of a kind: line, area, symbol, rule, text; axes and titles are not marks."""
    groups = [g for g in root.iter(f"{SVG}g") if {f"mark-{kind}", "role-mark"} <= set((g.get("class") or "").split())]
    return [element for group in groups for element in group]


def coloured(elements, colour):
    return [element for element in elements if colour in (element.get("fill"), element.get("stroke"))]


def width(root):
    return float(root.get("width"))


def two_exhausted():
    """Of four clients, two join every round and are stopped, the second by a later start; two go on."""
    return run_history(
        {
            "north": lambda n: True,
            "east": lambda n: n > 10,
            "south": lambda n: n % 2 == 0,
            "west": lambda n: n % 3 == 0,
        },
        rounds=60,
        quota=40,
    )


@given(st.floats(1e-6, 1e4))
def test_an_epsilon_is_never_rounded_down_nor_far_up(epsilon):
    excess = Decimal(epsilon_text(epsilon)) - Decimal(repr(epsilon))
    assert 0 <= excess < Decimal("0.01")
    assert excess <= Decimal(repr(epsilon)) / 10


@given(st.floats(0.01, 100), st.floats(0, 1))
def test_an_epsilon_within_its_budget_is_never_shown_above_it(budget, share):
    epsilon = budget * share
    assert epsilon <= float(epsilon_text(epsilon, budget)) <= max(budget, epsilon) * (1 + 1e-11)


def test_numbers_are_written_as_people_write_them():
    assert [epsilon_text(e) for e in (0.0, 2.9912, 3.0, 0.00123, math.inf)] == ["0.00", "3.00", "3.00", "0.0013", "∞"]
    assert epsilon_text(2.9949, budget=2.9949) == "2.9949"
    assert [delta_text(d) for d in (1e-4, 1e-5, 2.5e-7)] == ["1e-4", "1e-5", "2.5e-7"]
    assert metric_text("accuracy", 0.9123) == "91.2\N{NO-BREAK SPACE}%"
    assert [metric_text("mse", v) for v in (0.0294831, math.nan, None)] == ["0.02948", "not a number", "not measured"]


def test_the_panels_say_what_was_reached_and_what_epsilon_is_for():
    shown = texts(drawn(run_figure(alike(rounds=30))))
    assert "After 30 rounds: accuracy 77.1 %" in shown
    assert "Largest privacy loss: ε 2.12 of budget 3" in shown
    subtitle = (
        "ε of each client as seen by the server, δ = 1e-4, PLD accountant,"
        "composed over all rounds and runs, an odometer's reading"
    )
    assert subtitle in shown
    assert {"0 %", "100 %"} <= set(shown)


def test_clients_with_one_curve_are_one_line_that_says_how_many_they_are():
    root = drawn(epsilon_figure(alike(rounds=30)))
    assert len(marks(root, "line")) == 1
    assert labels(root) == ["2.12 10 clients"]


def test_exhausted_clients_are_recognised_without_colour():
    root = drawn(epsilon_figure(two_exhausted()))
    assert "Largest privacy loss: ε 2.99 of budget 3; 2 of 4 clients exhausted" in texts(root)
    assert sorted(labels(root)[:2]) == ["2.99 east exhausted", "2.99 north exhausted"]
    assert labels(root)[2:] == ["2.59 south", "2.12 west"]
    diamonds, dots = (coloured(marks(root, "symbol"), colour) for colour in (EXHAUSTED, SPENDING))
    assert len(diamonds) == 2 and len(dots) == 2
    assert len({element.get("d") for element in diamonds + dots}) == 2


def test_the_line_changes_colour_in_the_round_in_which_the_budget_was_exhausted():
    chart = epsilon_figure(two_exhausted()).to_dict()
    points = [row for rows in chart["datasets"].values() for row in rows if row.get("part", "").endswith("north")]
    states = {state: {p["round"] for p in points if p["state"] == state} for state in ("spending", "exhausted")}
    assert states == {"spending": set(range(1, 41)), "exhausted": set(range(40, 61))}


def test_the_budget_is_a_dashed_rule_at_its_height_and_missing_when_there_is_none():
    limited, measured = drawn(epsilon_figure(alike())), drawn(epsilon_figure(alike(budget=math.inf)))
    (rule,) = [element for element in marks(limited, "rule") if element.get("stroke-dasharray")]
    tick = next(e for e in limited.iter(f"{SVG}text") if e.text == "3.0")
    assert abs(height(rule) - height(tick)) < 6
    assert "budget ε = 3" in texts(limited)
    assert not [element for element in marks(measured, "rule") if element.get("stroke-dasharray")]
    assert "Largest privacy loss: ε 4.98, no budget set" in texts(measured)


def test_labels_never_overlap_and_keep_the_order_of_the_curves():
    root = drawn(epsilon_figure(unlike(20)))
    assert len(labels(root)) == 20
    places = sorted(height(e) for e in root.iter(f"{SVG}text") if "\N{EN SPACE}" in (e.text or ""))
    assert all(below - above >= 14.5 for above, below in pairwise(places))
    epsilons = [float(label.split()[0]) for label in labels(root)]
    assert epsilons == sorted(epsilons, reverse=True)


def test_a_long_name_keeps_both_of_its_ends():
    names = ("university-hospital-of-the-north-ward-1", "university-hospital-of-the-north-ward-2")
    history = run_history({names[0]: lambda n: True, names[1]: lambda n: n > 5}, rounds=10)
    assert [label.split()[1] for label in labels(drawn(epsilon_figure(history)))] == [
        "university…th-ward-1",
        "university…th-ward-2",
    ]


def test_many_clients_are_a_fan_with_few_lines():
    history = unlike(200, rounds=80, quota=40)
    root = drawn(epsilon_figure(history))
    spent = sorted(client.epsilon for client in history.rounds[-1].spent.values())
    exhausted = len(history.rounds[-1].exhausted)
    assert 0 < exhausted < 200
    assert len(marks(root, "area")) == 2
    assert len(marks(root, "line")) <= 4
    median = epsilon_text((spent[99] + spent[100]) / 2)
    assert f"{median} median" in labels(root)
    assert labels(root)[-1].startswith(f"{epsilon_text(spent[0])} least: client-")
    assert f"{exhausted} clients exhausted" in texts(root)
    assert any("bands: all clients and their middle half" in text for text in texts(root))


def test_two_hundred_clients_that_are_alike_need_no_fan():
    root = drawn(epsilon_figure(alike(clients=200, rounds=30)))
    assert not marks(root, "area")
    assert labels(root) == ["2.12 200 clients"]


def test_one_round_is_a_dot_that_can_be_seen():
    root = drawn(run_figure(alike(clients=3, rounds=1)))
    assert len(marks(root, "symbol")) == 2
    assert "After 1 round: accuracy 15.0 %" in texts(root)
    assert "0.39 3 clients" in labels(root)


def test_a_metric_that_is_no_accuracy_has_an_axis_of_its_own():
    shown = texts(drawn(accuracy_figure(alike(metric="mse", value=lambda n: 2.0 + 1 / n))))
    assert "After 60 rounds: mse 2.017" in shown
    assert "3.0" in shown and "0" not in {text for text in shown if text.endswith("%")}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda n: math.nan, "not a number"),
        (lambda n: math.inf if n == 60 else 0.5, "not a number"),
        (lambda n: 0.5, "50.0 %"),
    ],
)
def test_a_diverged_or_constant_metric_is_drawn_and_said(value, said):
    assert f"After 60 rounds: accuracy {said}" in texts(drawn(accuracy_figure(alike(value=value))))


def test_a_run_without_metrics_still_shows_its_privacy_loss():
    shown = texts(drawn(run_figure(alike(metric=None))))
    assert "After 60 rounds: accuracy not measured" in shown
    assert any("Largest privacy loss: ε 2.99" in text for text in shown)


def test_a_long_run_is_thinned_and_ends_where_it_ended():
    root = drawn(run_figure(alike(rounds=5001, quota=6000)))
    assert "After 5001 rounds: accuracy 89.9 %" in texts(root)
    assert f"{epsilon_text(0.996 * 3 * math.sqrt(5001 / 6000))} 10 clients" in labels(root)
    assert max(element.get("d").count("L") for element in marks(root, "line")) < 600


def test_a_hostile_name_stays_a_text():
    name = "<script>&'\""
    root = drawn(run_figure(run_history({name: lambda n: True, "b": lambda n: n > 1}, rounds=4, task=f"a.py:{name}")))
    assert {element.tag for element in root.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "g", "path", "rect", "line", "text", "tspan")
    }
    assert any(label.endswith(name) for label in labels(root))
    assert any(name in text for text in texts(root) if text.startswith("task "))


@pytest.mark.parametrize("history", [alike(), unlike(12, quota=20), unlike(200)], ids=["alike", "unlike", "fan"])
def test_a_drawing_can_be_put_into_any_page(history):
    """No script, style, link or id, and no colour that a dark page could not replace."""
    svg = to_svg(run_figure(history))
    assert set(re.findall(r"#[0-9a-fA-F]{3,8}\b", svg)) <= set(DARK)
    assert set(re.findall(r'(?:fill|stroke)="([^"]*)"', svg)) <= {*DARK, "none"}
    assert not re.search(r"<(script|style|image|a|use)\b|\s(style|id|href|on\w+)=", svg)
    assert set(re.findall(r"https?://[^\"\s]*", svg)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


@pytest.mark.parametrize("history", [alike(), unlike(12, quota=20), unlike(200)], ids=["alike", "unlike", "fan"])
def test_the_run_figure_is_about_1200_px_wide(history):
    assert 1100 <= width(drawn(run_figure(history))) <= 1300


def test_a_png_has_the_size_of_the_figure_times_its_scale(tmp_path):
    chart = run_figure(alike())
    root = drawn(chart)
    for scale in (1.0, 2.0):
        save_png(chart, tmp_path / "figure.png", scale)
        data = (tmp_path / "figure.png").read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        size = struct.unpack(">II", data[16:24])
        assert size == pytest.approx((scale * width(root), scale * float(root.get("height"))), abs=1)


def test_the_same_run_draws_the_same_bytes(tmp_path):
    for name in ("first.png", "second.png"):
        save_png(run_figure(unlike(12)), tmp_path / name)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()


def test_texts_and_lines_stand_out_on_light_and_dark_pages():
    """Contrast of at least 4.5 to 1, what WCAG 2.2 asks of small text."""
    for colour in (INK, MUTED, SPENDING, EXHAUSTED):
        assert contrast(colour, PAPER) >= 4.5
        assert contrast(DARK[colour], DARK[PAPER]) >= 4.5


def contrast(one, other):
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_task_from_a_file_is_called_by_its_name():
    assert task_name(alike(rounds=1, task="studies/wards.py:readmission")) == "readmission"


def test_a_run_without_a_finished_round_is_refused():
    with pytest.raises(ValueError, match="no finished round"):
        run_figure(alike(rounds=0))
