"""Exit codes: the table in the documents names the commands that there are, and says what they do."""

import re

import pytest
import typer

from fedprivacy.commands.app import app
from tests.commands.running import commands, fedprivacy
from tests.house import ROOT
from tests.runs.rounds import rounds_of
from tests.terminal import CliRunner

PAGE = (ROOT / "docs/reference/exit-codes.md").read_text()
ROWS = dict(re.findall(r"^\| `fedprivacy ([a-z -]+)` \| (.+) \|$", PAGE, re.MULTILINE))


COMMANDS = {
    " ".join(words): each for words, each in commands(typer.main.get_command(app)) if not hasattr(each, "commands")
}


def test_the_table_names_commands_and_all_of_those_whose_help_tells_a_code():
    assert set(ROWS) <= set(COMMANDS)
    telling = {name for name, command in COMMANDS.items() if re.search(r"\b1:", command.help or "")}
    assert len(telling) >= 8 and telling <= set(ROWS)


def test_a_mistyped_option_ends_every_command_with_2():
    codes = {name: CliRunner().invoke(app, [*name.split(), "--no-such-option"]).exit_code for name in COMMANDS}
    assert codes == dict.fromkeys(COMMANDS, 2)


@pytest.mark.exhaustive
def test_a_run_that_nobody_joined_ends_with_1_and_says_so(tmp_path):
    """By an empty sample, which a run bears; others have rounds in which somebody trains."""
    given = ["simulate", "--task", "cancer", "--clients", "10", "--rounds", "1", "-q"]
    given += ["--cohort-sampling", "poisson", "--cohort-size", "1", "--seed"]
    assert "nobody trained" in ROWS["simulate"]
    idle = fedprivacy(*given, "2", cwd=tmp_path, code=1).stdout
    assert "Nobody trained: the model is the one that the run began with. No client joined a round." in idle
    assert "Nobody" not in fedprivacy(*given, "1", cwd=tmp_path, code=0).stdout


@pytest.mark.exhaustive
def test_user_level_noise_hides_whether_anybody_trained(tmp_path):
    """Such a round moves the model by noise; an exit code that told its sample would be bounded by no account."""
    given = ["simulate", "--task", "cancer", "--clients", "4", "--rounds", "1", "-q", "--fraction-train", "0.1"]
    done = fedprivacy(*given, "--user-level-noise-multiplier", "2", "--seed", "1", cwd=tmp_path, code=0)
    assert any(not each["participants"] for each in rounds_of(tmp_path / "runs" / "cancer-1"))
    assert "Nobody" not in done.stdout
