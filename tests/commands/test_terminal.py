"""The terminal shows names as they are: neither emoji nor markup is made of a user's text."""

import ast
from pathlib import Path

import pytest
import typer

from fedprivacy.commands.terminal import ERR, OUT, plain_errors

HOUSE = Path(__file__).parents[2] / "fedprivacy"


@pytest.mark.parametrize("name", ["patients.py:heart:", "[red]x[/]"])
def test_an_error_names_a_file_as_it_is(name, capsys):
    with pytest.raises(typer.Exit), plain_errors(ValueError, code=2):
        error = ValueError(f"app {name} epsilon(0) fails")
        error.add_note(f"see {name} again")
        raise error
    assert capsys.readouterr().err == f"error: app {name} epsilon(0) fails\nsee {name} again\n"


def test_no_console_makes_emoji_of_text():
    assert [console.render_str("a:heart:b").plain for console in (OUT, ERR)] == ["a:heart:b"] * 2
    for path in HOUSE.rglob("*.py"):
        code = path.read_text()
        for call in ast.walk(ast.parse(code)) if "Console(" in code or "from_markup(" in code else ():
            made = getattr(call, "func", None)
            if getattr(made, "id", None) == "Console" or getattr(made, "attr", None) == "from_markup":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert given.get("emoji") == "False", f"{path}:{call.lineno}"
