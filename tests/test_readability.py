"""Pages are written in plain words: `docs/site/readability.py` finds the sentences that must be read twice."""

import importlib.util
import sys

import pytest

from tests.house import ROOT

LONGEST_MEAN = 17
"""Maximum mean length of a page's sentences, in words."""


@pytest.fixture(scope="module")
def readability():
    """The program that reads the pages."""
    spec = importlib.util.spec_from_file_location("readability", ROOT / "docs/site/readability.py")
    module = sys.modules["readability"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_sentence_of_a_page_breaks_a_rule(readability):
    pages = readability.pages()
    assert [str(fault) for name, text in pages.items() for fault in readability.faults(name, text)] == []


def test_no_page_s_sentences_are_long_on_average(readability):
    rows = readability.figures(readability.pages())
    assert {row.name: row.mean_length for row in rows if row.mean_length > LONGEST_MEAN} == {}


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("A" + " word" * 35 + ".", "36 words"),
        ("The folder of which a copy is kept is read.", "write 'two sentences' for 'of which'"),
        ("Whoever reads it learns nothing.", "write 'anybody who' for 'whoever'"),
        ("What the client ran is its own word.", "begins with a clause as its subject"),
        ("That the end was cut off shows nowhere.", "begins with a clause as its subject"),
        ("Whether a step fails must not depend on one record.", "begins with a clause as its subject"),
    ],
)
@pytest.mark.parametrize("page", ["# Title\n\n{}\n", "One. {} Another one.\n", "- an item\n- {}\n", "| a | {} |\n"])
def test_a_sentence_that_must_be_read_twice_is_found(readability, page, sentence, rule):
    assert rule in [fault.rule for fault in readability.faults("made.md", page.format(sentence))]


@pytest.mark.parametrize(
    "page",
    [
        "What does it cost? That is one charge.\n",
        "```python\nthe folder of which a copy is kept\n```\n",
        "    $ run\n\n# A title in which a word is avoided\n",
        "Read [this](of-which.md), e.g. `in which`.\n",
        "---\ntitle: of which\n---\nText.\n",
        "| " + " | ".join(["number"] * 50) + " |\n",
    ],
)
def test_questions_code_headings_and_numbers_are_left_alone(readability, page):
    assert readability.faults("made.md", page) == []
