"""`fedprivacy recommend`: a table with reasons, and a line that trains as it says."""

import json
import shlex

from fedprivacy.runs.recommendation import STEPS
from tests.commands.running import fedprivacy, unwrapped


def test_a_table_with_reasons_and_a_line_to_paste(tmp_path):
    printed = fedprivacy("recommend", "cancer", "--epsilon", "2", "--clients", "5", cwd=tmp_path).stdout
    words = unwrapped(printed)
    assert "For cancer at epsilon 2, delta 0.0001" in words and "455 records in 5 clients" in words
    assert f"│ rounds │ {STEPS} │" in words and "clipping-norm" in words and "less noise than the last" in words
    line = next(line for line in printed.splitlines() if "simulate --task cancer" in line)
    arguments = shlex.split(line.partition(" simulate ")[2])
    planned = fedprivacy("plan", *arguments, "--json", cwd=tmp_path).stdout
    assert json.loads(planned)["clients"][0]["epsilon_by_round"][-1] <= 2.0
    assert not (tmp_path / "runs").exists()


def test_json_has_settings_and_reasons(tmp_path):
    told = json.loads(fedprivacy("recommend", "digits", "--json", cwd=tmp_path).stdout)
    assert told["settings"]["epsilon"] == 3.0 and told["facts"]["parameters"] == 2986
    assert {choice["key"].replace("-", "_") for choice in told["choices"]} <= told["settings"].keys()
    assert all(choice["why"] for choice in told["choices"])
    assert told["call"].startswith('fp.simulate("digits"') and " simulate --task digits " in told["command"]
