"""The proved bound stands beside the stated one; a broken promise cannot be overlooked."""

import math
from dataclasses import replace

import pytest

from fedprivacy.figures import audit_figure
from fedprivacy.figures.style import EXHAUSTED, SPENDING
from fedprivacy.values.runs import AuditResult, Verdict
from tests.figures.reading import coloured, drawn, height, marks, place, text_called, texts, written

ABOUT = "run digits"
SOUND = AuditResult(1.7e9, "canaries", "client-3", 1.2, 0.95, 2.9912, 1e-4, "PLD", "server")
BROKEN = replace(SOUND, lower=4.519, at=1.6e9)


def test_a_bound_that_is_reached_is_consistent_and_one_that_is_passed_is_violated():
    assert replace(SOUND, lower=2.9912).verdict is Verdict.CONSISTENT
    assert BROKEN.verdict == "violated"
    assert replace(BROKEN, upper=math.inf).verdict == "consistent"


def test_a_sound_audit_shows_both_bounds_rounded_to_the_safe_side():
    root = drawn(audit_figure([replace(SOUND, lower=1.2999)], ABOUT, 440))
    assert "1 audit: none proved more than is stated" in texts(root)
    assert {"consistent: canaries, client-3", "≥ 1.29", "≤ 3.00"} <= set(texts(root))
    assert "95 % confidence, δ = 1e-4, PLD, seen by the server" in texts(root) and "run digits" in written(root)
    assert not coloured(root.iter(), EXHAUSTED)
    (disc,) = marks(root, "symbol")
    assert place(disc)[0] == pytest.approx(60 + 320 * 1.2999 / 2.9912, abs=0.1)


def test_a_violation_is_said_twice_has_its_own_colour_and_shape_and_comes_first():
    root = drawn(audit_figure([SOUND, BROKEN], ABOUT))
    assert "VIOLATED: 1 of 2 audits proved more than is stated" in texts(root)
    violated, sound = (text_called(root, f"{word}: canaries, client-3") for word in ("VIOLATED", "consistent"))
    assert height(violated) < height(sound)
    assert violated.get("fill") == EXHAUSTED
    shapes = [coloured(marks(root, "symbol"), colour) for colour in (EXHAUSTED, SPENDING)]
    assert [len(found) for found in shapes] == [1, 1]
    assert shapes[0][0].get("d") != shapes[1][0].get("d")
