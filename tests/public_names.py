"""Public names: those of `fedprivacy` with their parameters, settings, and commands with their options.

python -m tests.public_names > tests/public_names.txt     # at a release, or when names were added
"""

import inspect
from enum import Enum

import typer

import fedprivacy as fp
from fedprivacy.commands.app import app
from fedprivacy.runs.settings.configuration import FIELDS


def public_names():
    """Every public name, a line each, sorted."""
    return sorted(
        {*_python(), *(f"setting {key}" for key in FIELDS), *_commands("fedprivacy", typer.main.get_command(app))}
    )


def _python():
    for name in fp.__all__:
        yield f"fp.{name}"
        value = getattr(fp, name)
        if callable(value) and not (inspect.isclass(value) and issubclass(value, Exception | Enum)):
            yield from (f"fp.{name}({parameter})" for parameter in inspect.signature(value).parameters)
        if inspect.isclass(value):
            members = (member for member in vars(value) if not member.startswith("_"))
            yield from (f"fp.{name}.{member}" for member in members)


def _commands(name, command):
    yield name
    for parameter in command.params:
        yield from (f"{name} {option}" for option in parameter.opts if option.startswith("--"))
    for own, each in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {own}", each)


if __name__ == "__main__":
    print("\n".join(public_names()))  # noqa: T201
