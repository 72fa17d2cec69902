"""The command line as a whole: its version, its completion, its help, its exit codes, and names as they are."""

import ast
import re
import subprocess
import sys

import pytest
import typer

import fedprivacy as fp
from fedprivacy.commands.app import app
from fedprivacy.commands.terminal import ERR, OUT, plain_errors
from tests.commands.running import ENVIRONMENT, commands, fedprivacy, unwrapped
from tests.house import ROOT
from tests.runs.rounds import rounds_of
from tests.terminal import CliRunner


def test_the_version_is_shown(tmp_path):
    assert fedprivacy("--version", cwd=tmp_path).stdout == f"fedprivacy {fp.__version__}\n"


def completed(*words):
    """What the shell offers after these words, the last one of them unfinished."""
    code = "import sys; sys.argv = ['fedprivacy']; from fedprivacy.commands.app import app; app()"
    asked = {"_FEDPRIVACY_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return subprocess.check_output([sys.executable, "-c", code], env=ENVIRONMENT | asked, text=True).split()


def test_the_shell_completes_settings():
    assert completed("fedprivacy", "simulate", "--strat") == ["--strategy"]


COMMANDS = dict(commands(typer.main.get_command(app)))


def page(*names, columns=80, option="--help"):
    """A command's help: its basic options, or with --help-all the others, too."""
    if option == "--help-all" and not any("--help-all" in each.opts for each in parameters(names)):
        option = "--help"
    shown = CliRunner().invoke(app, [*names, option], env=ENVIRONMENT | {"COLUMNS": str(columns)})
    assert shown.exit_code == 0, shown.output
    return shown.output


def parameters(names):
    command = COMMANDS[names]
    return command.get_params(typer.Context(command))


def bare(text):
    return re.sub(r"[\s│╭╮╰╯─]", "", text)


@pytest.mark.exhaustive
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_shows_every_word_of_every_option_and_fits_a_terminal_of_80_columns(names):
    """Brackets, too: rich takes them for markup."""
    options = [each for each in COMMANDS[names].params if not getattr(each, "hidden", False)]
    wide = bare(page(*names, columns=1000, option="--help-all"))
    assert all(bare((getattr(each, "help", None) or "").replace("\\[", "[")) in wide for each in options)
    basic, whole = page(*names), page(*names, option="--help-all")
    for text in (basic, whole):
        assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
        assert not re.search(r"(^|\s)--[\w-]*…", text, re.MULTILINE)
    spelt = {name for each in options for name in (*each.opts, *each.secondary_opts) if name.startswith("-")}
    assert [name for name in spelt if not re.search(rf"(?<![\w-]){name}(?![\w-])", whole)] == []


MEANT = {
    "simulate --sigma 1": "--noise-multiplier",
    "sweep --seed 3": "--seeds",
    "dashboard --interface x": "--host",
    "ledger show --led x": "--ledger",
}
"""Options that there are not, by other tools' words or with a slip, and those that were meant."""


@pytest.mark.parametrize("typed", MEANT)
def test_an_option_that_there_is_not_names_the_one_that_was_meant(typed, tmp_path):
    refused = fedprivacy(*typed.split(), cwd=tmp_path, code=2)
    assert re.search(rf"Did you mean .*{MEANT[typed]}\b", unwrapped(refused.stderr)), refused.stderr


def test_an_argument_that_is_written_as_an_option_is_named(tmp_path):
    refused = fedprivacy("recommend", "--task", "digits", cwd=tmp_path, code=2)
    assert "Write its value alone, without --task." in unwrapped(refused.stderr)


CODES = (ROOT / "docs/reference/exit-codes.md").read_text()
ROWS = dict(re.findall(r"^\| `fedprivacy ([a-z -]+)` \| (.+) \|$", CODES, re.MULTILINE))
TYPED = {" ".join(names): command for names, command in COMMANDS.items() if not hasattr(command, "commands")}


def test_the_table_of_exit_codes_names_commands_and_all_of_those_whose_help_tells_one():
    telling = {name for name, command in TYPED.items() if re.search(r"\b1:", command.help or "")}
    assert len(telling) >= 8 and telling <= set(ROWS) <= set(TYPED)


def test_a_mistyped_option_ends_every_command_with_2():
    codes = {name: CliRunner().invoke(app, [*name.split(), "--no-such-option"]).exit_code for name in TYPED}
    assert codes == dict.fromkeys(TYPED, 2)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_a_run_that_nobody_joined_ends_with_1_and_says_so_unless_user_level_noise_hides_who_joins(tmp_path):
    """An empty sample. With noise the round moves the model all the same, and an exit code is bounded by no account."""
    given = ["simulate", "--task", "cancer", "--rounds", "1", "-q"]
    poisson = [*given, "--clients", "10", "--cohort-sampling", "poisson", "--cohort-size", "1", "--seed"]
    assert "nobody trained" in ROWS["simulate"]
    idle = fedprivacy(*poisson, "2", cwd=tmp_path, code=1).stdout
    assert "Nobody trained: the model is the one that the run began with. No client joined a round." in idle
    assert "Nobody" not in fedprivacy(*poisson, "1", cwd=tmp_path, code=0).stdout
    noisy = [*given, "--clients", "4", "--fraction-train", "0.1", "--user-level-noise-multiplier", "2", "--seed", "1"]
    hidden = fedprivacy(*noisy, "--out", "hidden", cwd=tmp_path, code=0).stdout
    assert "Nobody" not in hidden and not any(each["participants"] for each in rounds_of(tmp_path / "hidden"))


@pytest.mark.parametrize("name", ["patients.py:heart:", "[red]x[/]"])
def test_an_error_names_a_file_as_it_is(name, capsys):
    """Neither emoji nor markup is made of a user's text."""
    with pytest.raises(typer.Exit), plain_errors(ValueError, code=2):
        error = ValueError(f"app {name} epsilon(0) fails")
        error.add_note(f"see {name} again")
        raise error
    assert capsys.readouterr().err == f"error: app {name} epsilon(0) fails\nsee {name} again\n"


def test_no_console_makes_emoji_of_text():
    assert [console.render_str("a:heart:b").plain for console in (OUT, ERR)] == ["a:heart:b"] * 2
    for path in (ROOT / "fedprivacy").rglob("*.py"):
        code = path.read_text()
        for call in ast.walk(ast.parse(code)) if "Console(" in code or "from_markup(" in code else ():
            made = getattr(call, "func", None)
            if getattr(made, "id", None) == "Console" or getattr(made, "attr", None) == "from_markup":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert given.get("emoji") == "False", f"{path}:{call.lineno}"
