"""The terminal shows names as they are: neither emoji nor markup is made of a user's text."""

import ast
from pathlib import Path

import pytest
import typer

from fedprivacy.commands.terminal import ERR, OUT, plain_errors
from fedprivacy.ledger import Ledger
from tests.commands.running import fedprivacy, unwrapped

HOUSE = Path(__file__).parents[2] / "fedprivacy"


@pytest.mark.parametrize("name", ["patients.py:Hospital:", "patients.py:heart:", "[old] runs", "[red]x[/]", "[/]"])
def test_an_error_names_a_file_as_it_is(name, capsys):
    with pytest.raises(typer.Exit), plain_errors(ValueError, code=2):
        error = ValueError(f"app {name} epsilon(0) fails")
        error.add_note(f"see {name} again")
        raise error
    assert capsys.readouterr().err == f"error: app {name} epsilon(0) fails\nsee {name} again\n"


def test_a_file_s_name_in_brackets_is_printed_whole(tmp_path):
    folder = tmp_path / "[red] old :heart: runs"
    folder.mkdir()
    with Ledger(f"sqlite:///{folder}/led.db") as ledger:
        ledger.open_run("spring", "digits", "ten hospitals")
    told = fedprivacy("ledger", "export", folder / "out.jsonl", "--ledger", folder / "led.db", cwd=folder).output
    assert unwrapped(told).endswith(f"fedprivacy ledger verify {folder / 'out.jsonl'}")


def test_no_console_makes_emoji_of_text():
    assert [console.render_str("a:heart:b").plain for console in (OUT, ERR)] == ["a:heart:b"] * 2
    for path in HOUSE.rglob("*.py"):
        code = path.read_text()
        for call in ast.walk(ast.parse(code)) if "Console(" in code or "from_markup(" in code else ():
            made = getattr(call, "func", None)
            if getattr(made, "id", None) == "Console" or getattr(made, "attr", None) == "from_markup":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert given.get("emoji") == "False", f"{path}:{call.lineno}"
