"""The command line as a whole: its version, its completion, its help."""

import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import fedprivacy as fp
from fedprivacy._support.settings import fields_of
from fedprivacy.commands.app import app
from fedprivacy.runs.settings.configuration import BASIC, FIELDS, GROUPS, OF_TRAINING, words_of
from tests.commands.running import ENVIRONMENT, fedprivacy, unwrapped


def test_the_version_is_shown(tmp_path):
    assert fedprivacy("--version", cwd=tmp_path).stdout == f"fedprivacy {fp.__version__}\n"


def completed(*words):
    """What the shell offers after these words, the last one of them unfinished."""
    code = "import sys; sys.argv = ['fedprivacy']; from fedprivacy.commands.app import app; app()"
    asked = {"_FEDPRIVACY_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return subprocess.check_output([sys.executable, "-c", code], env=ENVIRONMENT | asked, text=True).split()


def test_the_shell_completes_commands_and_settings(tmp_path):
    assert completed("fedprivacy", "led") == ["ledger"]
    assert completed("fedprivacy", "simulate", "--strat") == ["--strategy"]


def test_completion_is_installed_for_the_shell_of_the_user(tmp_path):
    home = {"HOME": str(tmp_path), "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "fedprivacy", "--install-completion", "bash"]
    run = subprocess.run(command, env=os.environ | home, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "completion" in (tmp_path / ".bashrc").read_text()


def commands(command, *names):
    """Every command, with the words that call it."""
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)


COMMANDS = dict(commands(typer.main.get_command(app)))


def page(*names, columns=80, option="--help"):
    """The options that a command's help shows: the basic ones, or with --help-all the others, too."""
    if option == "--help-all" and not any("--help-all" in each.opts for each in parameters(names)):
        option = "--help"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        shown = CliRunner().invoke(app, [*names, option], env=ENVIRONMENT | {"COLUMNS": str(columns)})
    assert shown.exit_code == 0, shown.output
    return shown.output


def parameters(names):
    command = COMMANDS[names]
    return command.get_params(typer.Context(command))


def helped(*names):
    """All of a command's help, without spaces and boxes, which depend on the terminal."""
    return bare(page(*names, columns=1000, option="--help-all"))


def bare(text):
    return re.sub(r"[\s│╭╮╰╯─]", "", text)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_shows_every_word_of_every_option_brackets_too(names):
    page = helped(*names)
    for parameter in COMMANDS[names].params:
        words = getattr(parameter, "help", None) or ""
        if not getattr(parameter, "hidden", False):
            assert bare(words.replace("\\[", "[")) in page


@pytest.mark.parametrize("option", ["--help", "--help-all"])
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_fits_a_terminal_of_80_columns_and_cuts_no_name(names, option):
    text = page(*names, option=option)
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert not re.search(r"(^|\s)--[\w-]*…", text, re.MULTILINE)
    if option == "--help-all":
        shown = [each for each in parameters(names) if not getattr(each, "hidden", False)]
        spelt = {name for each in shown for name in (*each.opts, *each.secondary_opts) if name.startswith("-")}
        assert [name for name in spelt if not re.search(rf"(?<![\w-]){name}(?![\w-])", text)] == []


@pytest.mark.parametrize("command", ["simulate", "plan", "audit", "sweep"])
def test_help_is_basic_first_and_says_where_the_rest_is(command):
    basic, whole = page(command), page(command, option="--help-all")
    assert 40 <= basic.count("\n") <= 90 < whole.count("\n") <= 240
    assert "--epsilon" in basic and "--user-level-epsilon" not in basic and "--user-level-epsilon" in whole
    assert re.search(r"\d+ more options: .* --help-all", basic) and "more options" not in whole
    questions = [group.question for group in GROUPS]
    for text in (basic, whole):
        lines = [line for line in text.splitlines() if line in questions]
        assert lines == [question for question in questions if question in lines] and len(lines) >= 6
    assert all(BASIC & fields_of(group).keys() == set(group.basic) for group in GROUPS)
    assert all(questions) and len(set(questions)) == len(GROUPS)


@pytest.mark.parametrize("command", ["simulate", "plan"])
def test_help_shows_what_every_setting_means_as_it_is_written(command):
    page = helped(command)
    assert "pipinstall'fedprivacy[tensorboard]'" in page
    for key in OF_TRAINING:
        assert bare(words_of(FIELDS[key])) in page


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("simulate --lr 0.1", "--learning-rate"),
        ("simulate --eps 1", "--epsilon"),
        ("simulate --budget 1", "--epsilon"),
        ("simulate --sigma 1", "--noise-multiplier"),
        ("simulate --noise 1", "--noise-multiplier"),
        ("simulate --q 0.1", "--sampling-rate"),
        ("simulate --C 1", "--clipping-norm"),
        ("simulate --max-grad-norm 1", "--clipping-norm"),
        ("simulate --num-clients 3", "--clients"),
        ("simulate --local-epochs 3", "--local-steps"),
        ("simulate --gpu", "--device"),
        ("simulate --output x", "--out"),
        ("simulate --batchsize 3", "--batch-size"),
        ("sweep --seed 3", "--seeds"),
        ("reproduce digits --seed 3", "--seeds"),
        ("report run --folder x", "--out"),
        ("dashboard --interface x", "--host"),
        ("deploy demo --round 2", "--rounds"),
        ("ledger show --led x", "--ledger"),
    ],
)
def test_an_option_that_there_is_not_names_the_one_that_was_meant(typed, meant, tmp_path):
    refused = fedprivacy(*typed.split(), cwd=tmp_path, code=2)
    assert re.search(rf"Did you mean .*{meant}\b", unwrapped(refused.stderr)), refused.stderr


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("simulate", "--epsilon", "abc"), "'--epsilon': 'abc' is not a valid float; give a number."),
        (("sigma", "--steps", "2.5"), "'--steps': '2.5' is not a valid integer; give a whole number."),
        (("simulate", "--engine", "gpu"), "'--engine': 'gpu' is not one of 'in-process', 'ray'."),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_remedy(typed, words, tmp_path):
    assert words in unwrapped(fedprivacy(*typed, cwd=tmp_path, code=2).stderr)
