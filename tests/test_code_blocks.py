"""Every code block of the pages: its Python names what is there and runs, its commands are parsed, its data is read."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import fedprivacy as fp
from fedprivacy.commands.app import app
from fedprivacy.commands.dossier import ABOUT
from fedprivacy.flower.client.node import NodeSettings
from fedprivacy.runs.settings.run_file import settings_in
from tests.blocks import BLOCK, PAGES, SHELL, Python, blocks, commands, mistyped, not_made, place_of, program_of
from tests.house import ROOT
from tests.terminal import CliRunner

KINDS = {*SHELL, "python", "toml", "json", "yaml", "text", "diff", "pycon"}
"""Kinds of blocks; the last are examples of docstrings, which run there."""

WITH_PYTHON = {place_of(page): page for page in PAGES if blocks(page, "python")}

BY_TESTS = {
    "README.md": "tests/test_readme.py",
    "explanation/sharp-edges.md": "tests/test_tutorial.py",
    "how-to/algorithms.md:2": "tests/test_extending.py",
    "how-to/audit.md:2": "tests/commands/test_audit.py",
    "how-to/audit.md:3": "tests/audit/apps/test_opacus.py",
    "how-to/choose-epsilon.md": "tests/accounting/test_risk.py",
    "how-to/flower-app.md": "tests/test_readme.py",
    "how-to/images.md": "tests/tasks/test_images_page.py",
    "how-to/in-python.md": "tests/test_readme.py",
    "how-to/ledger.md": "tests/ledger/test_commands.py",
    "how-to/metrics.md:1": "tests/flower/test_measured.py",
    "how-to/own-layer.md": "tests/gradients/test_parameters.py",
    "how-to/own-loop.md": "tests/single/test_own_loop_page.py",
    "how-to/own-task.md": "tests/tasks/test_loading.py",
    "how-to/questions.md": "tests/commands/test_questions_page.py",
    "how-to/strategies.md": "tests/server/test_strategies.py",
    "how-to/sweep.md:1": "tests/commands/test_sweep.py",
    "how-to/tables.md": "tests/tasks/test_odd_tables.py",
    "how-to/transformers.md": "tests/gradients/test_transformers.py",
}
"""Pages, or single Python blocks of them, that tests of their own run; each names its page. All others run here."""

NOT_RUN = {
    "how-to/runs.md:2": "is a part of a Flower app, whose server calls it with a grid",
    "how-to/sweep.md:3": "reads public records of the reader's own",
}

SMALLER = {"how-to/user-level.md": ("clients=1000, rounds=60", "clients=50, rounds=2")}
"""Pages that run with smaller numbers, which replace those of the page."""

MARKS = {
    "explanation/is-your-model-private.md": "exhaustive",
    "how-to/audit.md": "soak",  # a whole audit
    "how-to/dashboard.md": "exhaustive",
    "how-to/metrics.md": "exhaustive",
    "how-to/populations.md": "exhaustive",
    "how-to/recommend.md": "soak",  # a recommendation and a long run; recommend's own example is exhaustive
    "how-to/runs.md": "exhaustive",
    "how-to/sweep.md": "exhaustive",
    "how-to/user-level.md": "exhaustive",
}


def run_here(place):
    """The Python blocks of a page that no other test runs, with their numbers."""
    if place in BY_TESTS or place.startswith(("tutorial/", "notebooks/")):
        return {}
    numbered = {f"{place}:{number}": code for number, code in enumerate(blocks(WITH_PYTHON[place], "python"), 1)}
    return {name: code for name, code in numbered.items() if name not in BY_TESTS}


HERE = [
    pytest.param(place, marks=[getattr(pytest.mark, MARKS[place])] if place in MARKS else [])
    for place in WITH_PYTHON
    if run_here(place)
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with the run that pages open: runs/digits-1."""
    folder = tmp_path_factory.mktemp("reader")
    settings = {"clients": 4, "rounds": 2, "epsilon": 3.0, "speeds": "lognormal:1:60", "tags": "pilot"}
    fp.simulate("cancer", **settings, out=folder / "runs" / "digits-1", progress=False, drawn=False)
    return folder


@pytest.mark.parametrize("place", HERE)
@pytest.mark.usefixtures("undrawn")
def test_the_python_of_a_page_runs_in_order_as_a_reader_types_it(place, tmp_path, monkeypatch, request):
    needs_a_run = any(re.search('"runs["/]', code) for code in run_here(place).values())
    monkeypatch.chdir(request.getfixturevalue("finished") if needs_a_run else tmp_path)
    names = {"fp": fp}
    for name, code in run_here(place).items():
        large, small = SMALLER.get(place, ("", ""))
        assert large in code
        if name in NOT_RUN:
            with pytest.raises(NameError):
                exec(code, dict(names))
        else:
            exec(code.replace(large, small), names)


@pytest.mark.exhaustive
def test_the_task_of_patients_trains_as_its_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = WITH_PYTHON["how-to/patients.md"]
    (task,), (typed,) = blocks(page, "python"), commands("".join(blocks(page, *SHELL)))
    Path("visits.py").write_text(task)
    done = CliRunner().invoke(app, typed[1:])
    assert done.exit_code == 0, done.output


def test_what_other_tests_run_and_what_is_not_run_is_there():
    for name, test in BY_TESTS.items():
        place, _, number = name.partition(":")
        assert place.rpartition("/")[2] in (ROOT / test).read_text(), name
        assert int(number or 1) <= len(blocks(WITH_PYTHON[place], "python")), name
    assert NOT_RUN.keys() <= {name for place in WITH_PYTHON for name in run_here(place)}
    assert MARKS.keys() | SMALLER.keys() <= {place for place in WITH_PYTHON if run_here(place)}


def shell_problems(text, *programs, whole=True):
    """List what is wrong with the commands in a text that start one of some programs."""
    typed = [words for words in commands(text) if program_of(words) in programs and words[1:2] != ["..."]]
    found = [not_made(words) if program_of(words) == "make" else mistyped(words, whole=whole) for words in typed]
    return [problem for problem in found if problem]


def wrong(problems_of):
    return {place_of(page): found for page in PAGES if (found := problems_of(page))}


def test_python_names_what_is_there_and_calls_it_as_it_can_be_called():
    assert wrong(lambda page: Python(blocks(page, "python")).problems) == {}


def inline(page):
    """The commands in a page's prose, but for those of the reference, which say where options go."""
    prose = BLOCK.sub("", page.read_text())
    return [typed for typed in re.findall(r"`((?:fedprivacy|flwr|make) [^`\n]+)`", prose) if " [" not in typed]


def in_blocks_and_prose(page, *programs):
    found = [problem for text in blocks(page, *SHELL) for problem in shell_problems(text, *programs)]
    return found + [problem for text in inline(page) for problem in shell_problems(text, *programs, whole=False)]


def test_commands_and_targets_exist_with_their_options_and_take_the_values_that_are_typed():
    assert wrong(lambda page: in_blocks_and_prose(page, "fedprivacy", "make")) == {}


@pytest.mark.exhaustive  # Flower's commands take a second to import
def test_flower_s_commands_exist_with_their_options():
    assert wrong(lambda page: in_blocks_and_prose(page, "flwr")) == {}


def test_extras_that_are_installed_exist():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = [words for page in PAGES for words in re.findall(r"fedprivacy\[([\w,]+)\]", page.read_text())]
    assert {"simulation", "postgres"} <= {extra for words in found for extra in words.split(",")} <= known.keys()


def test_a_block_says_of_which_kind_it_is():
    assert wrong(lambda page: [kind for _, kind, _ in BLOCK.findall(page.read_text()) if kind not in KINDS]) == {}


def node_settings(given, folder):
    """Read a part of a hospital's node configuration, beside what each must say."""
    made = CliRunner().invoke(app, ["deploy", "client-key", "mine", "--out", str(folder)])
    assert made.exit_code == 0, made.output
    least = {"folder": str(folder), "epsilon": 3.0, "delta": 1e-5, "server-key": "0" * 64}
    return NodeSettings.of({**least, "key": str(folder / "mine.key"), **given})


def test_toml_is_a_run_s_settings_or_what_its_page_says(tmp_path):
    others = {"how-to/ledger.md:1": "about", "how-to/questions.md:1": "node"}
    seen = set()
    for page in PAGES:
        for number, code in enumerate(blocks(page, "toml"), 1):
            name, given = f"{place_of(page)}:{number}", tomllib.loads(code)
            seen.add(name)
            if others.get(name) == "about":
                assert given.keys() <= ABOUT.keys()
            elif others.get(name) == "node":
                assert node_settings(given, tmp_path).answerable.kinds == set(given["questions"].split(","))
            else:
                (tmp_path / "run.toml").write_text(code)
                assert settings_in(tmp_path / "run.toml") == given
    assert others.keys() < seen


def test_json_and_yaml_can_be_read():
    for page in PAGES:
        for code in blocks(page, "json"):
            json.loads(code if code[0] in "{[" else f"{{{code}}}")
        for code in blocks(page, "yaml"):
            assert isinstance(yaml.safe_load(code), dict)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("fp.simulate('cancer', epsilon=1, wrong=1)", "fp.simulate: got an unexpected keyword argument 'wrong'"),
        ("fp.PrivateGradients(..., gone=1)", "'gone'"),
        ("fp.tasks.Gone()", "fedprivacy.tasks has no Gone"),
        ("fp.ask.gone('age', **settings)", "has no gone"),
        ("fp.epsilon(0.1)", "missing a required argument|too many positional"),
        ("from fedprivacy.ledger import Gone", "fedprivacy.ledger has no Gone"),
        ("import fedprivacy.gone", "no module fedprivacy.gone"),
        ("print([fp.gone for each in ()])", "fedprivacy has no gone"),
    ],
)
def test_python_that_is_wrong_is_noticed(code, words):
    (problem,) = Python(["import fedprivacy as fp", code]).problems
    assert re.search(words, problem)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("fedprivacy gone", "no command gone"),
        ("fedprivacy ledger gone --out x", "fedprivacy ledger has no command gone"),
        ("fedprivacy simulate --wrong 1", "--wrong"),
        ("cd here && fedprivacy simulate --rounds two  # a comment", "'two' is not a valid int"),
        ("fedprivacy simulate --rounds \\\n  0", "rounds is 0"),
        ("fedprivacy simulate --weighting gone", "weighting is 'gone'"),
        ("fedprivacy sweep --out s --algorithm fedavg,gone", "algorithm is 'gone'"),
        ("fedprivacy sweep --out s --rounds 2,two", "'two' is not a valid int"),
        ("fedprivacy ask 'mode age' --task cancer", "questions"),
        ("fedprivacy ledger rebind hospital-0", "wants public_key"),
        ("fedprivacy report runs/a runs/b > out.html", "does not take runs/b"),
        ("make gone", "make knows no gone"),
        ("make soak GONE=3", "make knows no GONE=3"),
    ],
)
def test_a_command_that_is_wrong_is_noticed(typed, words):
    (problem,) = shell_problems(typed, "fedprivacy", "make")
    assert words in problem


def test_what_is_right_is_not_noticed():
    right = "sudo /opt/bin/fedprivacy simulate --rounds 3 \\\n --weighting size > out.txt; make soak SLICE=3/10"
    assert len(list(commands(right))) == 2
    assert shell_problems(right, "fedprivacy", "make") == []
    assert shell_problems("fedprivacy audit --node", "fedprivacy", whole=False) == []
    code = "from torch import nn\ndef own(nn):\n    return nn.gone\nrun = fp.simulate('cancer')\nrun.metrics['x'].gone"
    assert Python(["import fedprivacy as fp", code]).problems == []
