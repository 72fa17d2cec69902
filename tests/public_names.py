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
    """A line for each public name, sorted: `name: (parameter) .member`, `command: --option`, and all settings."""
    names = dict([*_python(), ("settings", FIELDS), *_commands("fedprivacy", typer.main.get_command(app))])
    return [" ".join([f"{name}:", *sorted({*parts})]) for name, parts in sorted(names.items())]


def _python():
    for name in fp.__all__:
        value, parts = getattr(fp, name), []
        if callable(value) and not (inspect.isclass(value) and issubclass(value, Exception | Enum)):
            parts += [f"({parameter})" for parameter in inspect.signature(value).parameters]
        if inspect.isclass(value):
            parts += [f".{member}" for member in vars(value) if not member.startswith("_")]
        yield f"fp.{name}", parts


def _commands(name, command):
    yield name, [option for each in command.params for option in each.opts if option.startswith("--")]
    for own, each in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {own}", each)


if __name__ == "__main__":
    print("\n".join(public_names()))  # noqa: T201
