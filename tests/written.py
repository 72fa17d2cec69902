"""What a page says, held against what its code and commands do."""

import importlib.util
import math
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.figures.reading import texts

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "tutorial"
NUMBER = r"\d+(?:\.\d+)?"

AS_LARGE = 0.01
"""Relative tolerance of a number: other versions of numpy and torch round otherwise."""


ON_ANOTHER_PROCESSOR = 0.03
"""Relative tolerance of a number of a training: three of a hundred test records, by other rounding."""


def script(name):
    """A script of the tutorial, which is no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TUTORIAL / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


FIGURES, pages = script("figures").FIGURES, script("pages")


def alike(said, printed, within=AS_LARGE):
    """The same words, and nearly the same numbers."""
    assert re.sub(NUMBER, "#", said) == re.sub(NUMBER, "#", printed)
    pairs = zip(re.findall(NUMBER, said), re.findall(NUMBER, printed), strict=True)
    assert [(a, b) for a, b in pairs if not math.isclose(float(a), float(b), rel_tol=within)] == []


def check_notebook(path):
    """A notebook's page, run in the folder where we are, prints and draws what it says."""
    page = pages.Page.run(path)
    alike("\n".join(page.said), "\n".join(page.printed), ON_ANOTHER_PROCESSOR)
    alike(page.text, page.corrected(), ON_ANOTHER_PROCESSOR)
    for name, drawn in zip(page.shown, page.drawn, strict=True):
        kept = (ROOT / "docs" / "images" / f"{name}.svg").read_text()
        said, shown = ("\n".join(texts(ElementTree.fromstring(svg))) for svg in (kept, drawn))
        alike(said, shown, ON_ANOTHER_PROCESSOR)


def unproved(text):
    """Numbers with decimals that stand in a page's prose, and neither in its code nor in what that prints."""
    blocks = re.findall(r"```.*?```", text, re.DOTALL)
    prose = re.sub(r"\]\(\S+\)", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return sorted(set(re.findall(r"\d+\.\d+", prose)) - set(re.findall(NUMBER, "\n".join(blocks))))
