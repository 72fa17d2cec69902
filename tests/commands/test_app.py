"""The command line as a whole: its version, its completion, its help."""

import re
import subprocess
import sys

import pytest
import typer

import fedprivacy as fp
from fedprivacy.commands.app import app
from tests.commands.running import ENVIRONMENT, commands, fedprivacy, unwrapped
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
