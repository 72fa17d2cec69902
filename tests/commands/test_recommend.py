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


def test_an_algorithm_is_recommended_with_its_pull_and_planned_in_silence(tmp_path, caplog):
    printed = fedprivacy("recommend", "cancer", "--algorithm", "mr-mtl", cwd=tmp_path, columns=80).stdout
    assert "the share of its own way that a client forgets in a step" in unwrapped(printed.replace("│", ""))
    line = next(line for line in printed.splitlines() if "simulate --task cancer" in line)
    assert "--algorithm mr-mtl" in line and "--pull" in line
    fedprivacy("plan", *shlex.split(line.partition(" simulate ")[2]), cwd=tmp_path)
    assert caplog.messages == []


def test_an_unknown_size_is_asked_for_as_an_option(tmp_path):
    (tmp_path / "task.py").write_text(
        "import torch\nimport fedprivacy as fp\n"
        "class Far(fp.Task):\n"
        "    def model(self):\n        return torch.nn.Linear(3, 2)\n"
        "    def shard(self, source):\n        raise OSError\n"
    )
    refused = unwrapped(fedprivacy("recommend", "task.py:Far", cwd=tmp_path, code=2).stderr)
    assert "give a guess of the shard size" in refused
    found = fedprivacy("recommend", "task.py:Far", "--shard-size", "300", cwd=tmp_path).stdout
    assert "about 3,000 records in 10 clients" in unwrapped(found)
