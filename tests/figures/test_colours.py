"""Colours can be read on light pages and dark ones, and by people who see fewer of them."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from fedprivacy.figures import cost_figure, dark, spec_of
from fedprivacy.figures.style import (
    COSTS,
    DARK,
    EXHAUSTED,
    GRID,
    INK,
    MUTED,
    PAPER,
    RUNS,
    SPENDING,
    SPENT,
    layer,
    make_title,
)
from tests.runs.histories import run_history

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)
SIGHTS = {
    "all colours": np.eye(3),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
}
"""Matrices from linear RGB to the colours that people with a deficiency see (Machado, Oliveira, Fernandes 2009)."""


def light(colour):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    high, low = sorted(((TO_XYZ @ light(colour))[1] for colour in (one, other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(colour, sight="all colours"):
    """CIE L*a*b*: its distances are about what people see."""
    share = TO_XYZ @ np.clip(SIGHTS[sight] @ light(colour), 0, 1) / WHITE
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def on_dark(colours):
    return [DARK[colour] for colour in colours]


@pytest.mark.parametrize("page", [list, on_dark], ids=["light", "dark"])
def test_texts_stand_out_and_so_do_the_lines_of_runs(page):
    """At least 4.5 to 1 for small texts and 3 to 1 for lines, what WCAG 2.2 asks."""
    (paper,) = page([PAPER])
    assert min(contrast(colour, paper) for colour in page([INK, MUTED, SPENDING, SPENT, EXHAUSTED])) >= 4.5
    assert min(contrast(colour, paper) for colour in page(RUNS)) >= 3


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("page", [list, on_dark], ids=["light", "dark"])
def test_no_two_runs_look_alike(page, sight):
    distances = [np.linalg.norm(lab(a, sight) - lab(b, sight)) for a, b in combinations(page(RUNS), 2)]
    assert min(distances) > 12


@pytest.mark.parametrize("page", [list, on_dark], ids=["light", "dark"])
def test_a_larger_cost_is_further_from_the_page(page):
    paper, grid = (lab(colour)[0] for colour in page([PAPER, GRID]))
    steps = [abs(lab(colour)[0] - paper) for colour in page(COSTS)]
    assert all(farther - nearer > 8 for nearer, farther in pairwise([abs(grid - paper), *steps]))


def test_no_two_colours_become_one_on_a_dark_page():
    assert len(set(DARK.values())) == len(DARK)
    assert set(RUNS) | set(COSTS) <= set(DARK)


def test_what_is_called_like_a_colour_keeps_its_name():
    history = run_history({PAPER: lambda n: True}, 3)
    cost = dark(spec_of(cost_figure(history.costs(), history.series().facts)))
    assert {row["client"] for rows in cost["datasets"].values() for row in rows if "client" in row} == {PAPER}
    title = dark(spec_of(layer([], make_title(PAPER, [[INK]], 400), 400)))["title"]
    assert (title["text"], title["subtitle"]) == ([PAPER], [INK])
