"""Figures of attacks: what was found beside what is allowed, and pictures."""

import re

import numpy as np
import pytest

from benchmarks.attacks.figures import AttackCurve, Picture, picture_figure, roc_figure
from fedprivacy.figures import to_svg
from fedprivacy.figures.style import DARK, INK, MUTED, RUNS
from tests.figures.reading import coloured, drawn, marks, place, rows, text_called, texts, written

pytestmark = pytest.mark.exhaustive

RATES = np.linspace(0.0, 1.0, 101)
STRONG = AttackCurve("strong", RATES, np.sqrt(RATES), "AUC 0.67", limit=np.minimum(1.0, 3.0 * RATES), limit_at=RATES)
WEAK = AttackCurve("weak", RATES, RATES)


def path(line):
    """The points of a drawn line, in px."""
    numbers = line.get("d").replace("M", " ").replace("L", " ").replace(",", " ").split()
    return np.array(numbers, dtype=float).reshape(-1, 2)


def test_both_axes_are_logarithmic_and_in_percent():
    root = drawn(roc_figure([WEAK], "title", ["about"], width=300))
    assert [text for text in texts(root) if text.endswith(" %")] == ["0.1 %", "1 %", "10 %", "100 %"]
    (guess, _) = marks(root, "line")
    assert path(guess) == pytest.approx(np.array([[0.0, 300.0], [300.0, 0.0]]), abs=0.01)


def test_every_curve_has_a_colour_dashes_a_name_and_a_note_and_its_limit_the_same_colour():
    root = drawn(roc_figure([STRONG, WEAK], "title", ["about"]))
    assert {"strong", "AUC 0.67", "weak"} <= set(texts(root))
    lines = marks(root, "line")
    limit, strong = coloured(lines, RUNS[0])
    (weak,) = coloured(lines, RUNS[1])
    assert float(limit.get("stroke-width")) < float(strong.get("stroke-width"))
    assert strong.get("stroke-dasharray") != weak.get("stroke-dasharray")
    assert [rule.get("stroke") for rule in marks(root, "rule")] == [RUNS[0], RUNS[1]]
    assert "thin: the most that differential privacy allows" in written(root)
    assert "thin" not in written(drawn(roc_figure([WEAK], "title", ["about"])))


def test_a_curve_is_as_high_as_the_best_threshold_and_never_higher():
    """Three thresholds: between two of them nothing more is found."""
    steps = AttackCurve("steps", [0.0, 0.01, 0.1, 1.0], [0.0, 0.2, 0.5, 1.0])
    figure = roc_figure([steps], "title", ["about"])
    heights = {row["tpr"] for row in rows(figure, "tpr") if row["tpr"] not in {0.001, 1.0}}
    assert heights == {0.2, 0.5}
    first = min(row["fpr"] for row in rows(figure, "tpr") if row["tpr"] == 0.5)
    assert 0.0999 < first < 0.102


def test_a_picture_is_drawn_in_ink_on_paper_upright_and_in_its_place():
    shades = np.array([[-3.0, 7.0], [1.0, 1.0], [0.0, 0.0]])  # beyond ink and paper are ink and paper
    figure = picture_figure([Picture("first", shades), Picture("second", 1.0 - shades, "note")], "title", ["about"])
    root = drawn(figure)
    assert {"title", "about", "first", "second", "note"} <= set(texts(root))
    inked = {(row["left"], row["top"]) for row in rows(figure, "ink") if row["ink"] == 1.0}
    assert inked == {(56, 0), (0, 56), (56, 56)} | {(196, 0), (196, 112), (252, 112)}
    opacities = [element.get("fill-opacity") for element in coloured(marks(root, "rect"), INK)]
    assert sorted(opacities) == ["0"] * 6 + ["1"] * 6
    assert len(coloured(marks(root, "rect"), MUTED)) == 2  # frames
    assert place(text_called(root, "second"))[0] > place(text_called(root, "first"))[0]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: roc_figure([STRONG, WEAK], "title", ["about"]),
        lambda: picture_figure([Picture("one", [[0.5]])], "title", ["about"]),
    ],
)
def test_a_drawing_can_be_put_into_any_page(figure):
    """No script, style, link or id, and no colour that a dark page could not replace."""
    svg = to_svg(figure())
    assert set(re.findall(r"#[0-9a-fA-F]{3,8}\b", svg)) <= set(DARK)
    assert not re.search(r"<(script|style|image|a|use)\b|\s(style|id|href|on\w+)=", svg)
    figure().to_dict(validate=True)


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: picture_figure([], "title", ["about"]), "nothing to draw"),
        (lambda: roc_figure([], "title", ["about"]), "give 1 to"),
    ],
)
def test_of_nothing_nothing_is_drawn(draw, said):
    with pytest.raises(ValueError, match=said):
        draw()
