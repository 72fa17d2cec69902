"""What docs/how-to/questions.md tells to type and to write, typed and written; its tables against the code."""

import math
import re

import pytest

import fedprivacy as fp
from fedprivacy.questions.figures import Noisy
from fedprivacy.questions.questionnaire import KINDS
from fedprivacy.questions.release import deviation
from fedprivacy.runs.plans.plan import questions_in
from tests.commands.running import fedprivacy, unwrapped
from tests.written import ROOT, alike, pages, unproved

HOW_TO = ROOT / "docs" / "how-to" / "questions.md"
PAGE = HOW_TO.read_text()
ERRORS = {
    "1": 1.0,
    "8": 8.0,
    "√2": math.sqrt(2.0),
    "√3": math.sqrt(3.0),
    "√(1 + 2 columns)": math.sqrt(5.0),
    "√6 for two columns": math.sqrt(6.0),
    "3.05 with 512 points": 3.05,
}
"""Of a count, as the page words it, for the page's own examples."""

ROWS = re.findall(r"^\| `([a-z].*?)` \| `(\w+\(.*?\))` \| .*? \| (.*?) ?\|$", PAGE, re.MULTILINE)
"""What is typed, the same in Python, and the standard error of its count."""


@pytest.mark.exhaustive
def test_the_page_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = pages.Page.run(HOW_TO)
    alike("\n".join(page.said), "\n".join(page.printed))
    assert len(page.printed) == 5 and page.printed.count("") == 2  # two parts of tasks print nothing


def test_its_numbers_are_those_of_its_code():
    known = {"3.05", "0.1", "0.9"}  # the table's, which is tested below
    assert set(unproved(PAGE)) == known


@pytest.mark.parametrize(("text", "call", "error"), ROWS)
def test_what_it_lists_can_be_typed_or_made_and_is_as_noisy_as_it_says(text, call, error):
    asked = questions_in(text).questions
    if "..." not in call:
        made = eval(f"fp.ask.{call}", {"fp": fp})
        assert asked == (made if isinstance(made, tuple) else (made,))
    if error in ERRORS:
        (question,) = asked
        assert question.per_count * deviation(question, 1.0) == pytest.approx(ERRORS[error], abs=0.005)


def test_it_lists_every_kind_and_says_how_noisy_most_are():
    assert {question.kind for text, _, _ in ROWS for question in questions_in(text).questions} == KINDS.keys()
    assert sum(error in ERRORS for _, _, error in ROWS) == len(ROWS) - 2  # a sum's and a table's
    (total,) = questions_in("sum stay 0 60").questions
    exact = total.totals(fp.Table({"stay": [3.0]}))[0].astype(float)
    assert total.figures(Noisy(exact, deviation(total, 1.0)))[1].error == pytest.approx(60.0)


LEFT_OUT = (
    "Left out are records with a cell that is empty, cannot be read or is in no group that was named. Their number is "
    "private: ask 'count' as well, and take a figure's own count off, for a noisy one."
)


@pytest.mark.parametrize(
    ("question", "said"), [("table 'mean radius=5:30' diagnosis=malignant,benign", True), ("count", False)]
)
def test_a_table_says_what_it_leaves_out(tmp_path, question, said):
    asked = ("ask", question, "--task", "cancer", "--clients", "3", "--spend", "0.5")
    assert (LEFT_OUT in unwrapped(fedprivacy(*asked, cwd=tmp_path).stdout)) is said
