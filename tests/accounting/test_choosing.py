"""The figures of docs/how-to/choose-epsilon.md: its own program, run, and the definition's closed forms."""

import math
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/how-to/choose-epsilon.md").read_text()
PROGRAM = re.search(r"```python\n(.*?)```", PAGE, flags=re.S)[1]
ROWS = {int(epsilon): re.findall(r"([\d.]+) %", row) for epsilon, row in re.findall(r"\| \*\*(\d)\*\* (.*)", PAGE)}


def percent(share):
    return f"{100 * share:.1f}"


@pytest.mark.parametrize("epsilon", [1, 3, 8])
def test_the_page_says_what_its_program_computes(epsilon):
    computed = {}
    exec(PROGRAM.replace("epsilon=3", f"epsilon={epsilon}"), computed)
    e, delta = math.exp(epsilon), 1e-5
    most = min(1.0, e * 0.01 + delta, 1 - (0.99 - delta) / e)
    of_definition = (e + delta) / (1 + e), most, 0.01 * most / (0.01 * most + 0.99 * 0.01)
    here = computed["right"], float(computed["found"]), computed["alarms"]
    pairs = [(percent(bound), percent(found)) for bound, found in zip(of_definition, here, strict=True)]
    assert ROWS[epsilon] == [figure for pair in pairs for figure in pair]
    assert all(found <= bound for bound, found in zip(of_definition, here, strict=True))
