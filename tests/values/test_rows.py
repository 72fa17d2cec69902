"""Results as rows, as a notebook shows them."""

import fedprivacy as fp
from fedprivacy.values.runs import Rows
from tests.notebook import shown


def test_rows_are_a_table_whose_cells_are_escaped_and_which_is_not_too_long():
    rows = Rows({"client_id": f"<b>{number}", "epsilon": 1 / 3, "budget": None} for number in range(60))
    page = shown(rows)
    assert page.startswith("<table><tr><th>client_id</th><th>epsilon</th><th>budget</th></tr>")
    assert "<tr><td>&lt;b&gt;7</td><td>0.333333</td><td>None</td></tr>" in page
    assert page.count("<tr>") == 51 and page.endswith("<p>and 10 more</p>")
    assert shown(Rows([])) == "<table><tr></tr></table>"


def test_answers_are_the_table_of_their_figures(tmp_path):
    asked = fp.ask("cancer", fp.ask.count(), clients=2, spend=1.0, ledger=str(tmp_path / "asked.db"))
    assert repr(asked) == "<Answers of 2 clients to 1 question>"
    assert shown(asked) == shown(asked.federation) and "<td>count</td>" in shown(asked)
