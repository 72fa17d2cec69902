"""Texts and marks of a figure, once it is drawn."""

import re
from xml.etree import ElementTree

from fedprivacy.figures import spec_of, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart):
    return ElementTree.fromstring(to_svg(chart))


def content(element):
    """The text of an element; lines are joined as they are read."""
    return " ".join(part for part in element.itertext() if part).replace("\N{NO-BREAK SPACE}", " ")


def texts(root):
    """Every text once, in the order in which it is drawn: outlines lie under their texts."""
    return list(dict.fromkeys(content(element) for element in root.iter(f"{SVG}text")))


def written(root):
    """All texts as one."""
    return "\n".join(texts(root))


def labels(root):
    """Labels beside the plot, as 'epsilon name', from top to bottom."""
    found = [(height(e), content(e)) for e in root.iter(f"{SVG}text") if "\N{EN SPACE}" in content(e)]
    return [text.replace("\N{EN SPACE}", " ") for _, text in sorted(found)]


def place(element):
    """x and y of an element in its plot, in px."""
    return tuple(float(part) for part in re.fullmatch(r"translate\((.*),(.*)\)", element.get("transform")).groups())


def height(element):
    return place(element)[1]


def text_called(root, text):
    """The last element with a text: the one on top."""
    return [element for element in root.iter(f"{SVG}text") if content(element) == text][-1]


def marks(root, kind):
    """Drawn elements of all marks of a kind: line, area, symbol, rule, rect, text; axes and titles are not marks."""
    groups = [g for g in root.iter(f"{SVG}g") if {f"mark-{kind}", "role-mark"} <= set((g.get("class") or "").split())]
    return [element for group in groups for element in group]


def coloured(elements, colour):
    return [element for element in elements if colour in (element.get("fill"), element.get("stroke"))]


def dashed(root):
    return [element for element in marks(root, "rule") if element.get("stroke-dasharray")]


def rows(chart, *fields):
    """Every row of a chart's data that has these fields."""
    datasets = spec_of(chart)["datasets"].values()
    return [row for dataset in datasets for row in dataset if set(fields) <= set(row)]
