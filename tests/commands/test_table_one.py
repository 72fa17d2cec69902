"""A Table 1 says which records it leaves out, and that their number is asked for like any other."""

import pytest

import fedprivacy as fp
from fedprivacy.questions.figures import Noisy
from tests.commands.running import fedprivacy

ASK = ("--task", "cancer", "--clients", "3", "--spend", "0.5")
SAID = (
    "Left out are records with a cell that is empty, cannot be read or is in no group that was named. Their number is "
    "private: ask 'count' as well, and take a figure's own count off, for a noisy one."
)


@pytest.mark.parametrize(
    ("question", "said"), [("table 'mean radius=5:30' diagnosis=malignant,benign", True), ("count", False)]
)
def test_what_it_leaves_out_is_said(tmp_path, question, said):
    printed = fedprivacy("ask", question, *ASK, cwd=tmp_path).stdout
    assert (SAID in " ".join(printed.split())) is said


def test_a_count_less_a_variable_s_own_count_is_the_number_without_a_value():
    table = fp.Table({"age": [70, None, "?", 50, 30], "sex": ["f", "m", "f", "", "x"]})
    questions = fp.ask.count(), *fp.ask.table_one({"age": (0, 120), "sex": ["f", "m"]})
    counted = [question.records(Noisy(question.totals(table)[0].astype(float), 0.0)) for question in questions]
    assert counted == pytest.approx([5, 3, 4])  # "x" is a category besides
