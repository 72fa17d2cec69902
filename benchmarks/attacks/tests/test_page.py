"""The page about attacks: its script runs as typed."""

import re
from pathlib import Path

import pytest

import fedprivacy as fp
from benchmarks.attacks.membership import OFFLINE, ONLINE, QUANTILE

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "is-your-model-private.md"


@pytest.mark.exhaustive
def test_the_script_attacks_a_task_with_privacy_and_without(capsys):
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(script, names := {"fp": fp})
    shown = capsys.readouterr().out
    assert all(shown.count(f"{name}: area 0.") == 2 for name in (QUANTILE, OFFLINE, ONLINE))
    assert shown.splitlines()[-1] == "above what privacy allows: []"
    assert names["shadows"].members.shape == (9, len(names["records"]))
