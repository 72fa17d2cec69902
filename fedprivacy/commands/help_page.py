"""The help of a command: its options grouped by the question that they answer, the basic ones first."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterable

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperOption

from fedprivacy._support.settings import fields_of, key_of
from fedprivacy.runs.settings.configuration import BASIC, FIELDS, GROUPS

HELP_ALL = "--help-all"
"""Option that shows every option."""

QUESTIONS = {key: group.question for group in GROUPS for key in fields_of(group)}
"""The question that each setting answers, in the order in which people ask."""

OUTPUT = "What to print?"
"""The question that options of the output answer."""

_OTHERS = "What else?"

_RARE = (FIELDS.keys() - BASIC) | {"workers", "ray-address", "traceback"}
"""Keys of options that only `HELP_ALL` shows, if a command has more than a few of them."""

_FEW = 3


def has_more(command: click.Command) -> bool:
    """Return whether only `HELP_ALL` shows some of a command's options."""
    return sum(_key(option) in _RARE for option in _options(command.params)) > _FEW


def show(command: click.Command, ctx: click.Context, *, everything: bool) -> None:
    """Print a command's help: its use, its text, and its basic options or all of them."""
    console = Console(emoji=False, highlight=False)
    console.print(f"Usage: {ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}\n", markup=False)
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        console.print(Padding(Text.from_markup(" ".join(paragraph.split("\n")), emoji=False), (0, 0, 1, 2)))
    if arguments := [each for each in command.params if isinstance(each, click.Argument)]:
        _print_group(console, "Arguments", [(each.make_metavar(ctx), _words(each)) for each in arguments])
    options = _options(command.get_params(ctx))
    everything = everything or not has_more(command)
    wanted = [option for option in options if everything or _key(option) not in _RARE]
    for question in [*dict.fromkeys(QUESTIONS.values()), _OTHERS, OUTPUT]:
        if some := [option for option in wanted if _question(option) == question]:
            _print_group(console, question, [(_names(option), _described(option, ctx)) for option in some])
    if not everything:
        console.print(f"{len(options) - len(wanted)} more options: {ctx.command_path} {HELP_ALL}", markup=False)


def _options(parameters: Iterable[click.Parameter]) -> list[click.Option]:
    return [each for each in parameters if isinstance(each, click.Option) and not each.hidden]


def _key(option: click.Option) -> str:
    return key_of(option.name or "")


def _question(option: click.Option) -> str:
    return QUESTIONS.get(_key(option)) or getattr(option, "rich_help_panel", None) or _OTHERS


def _names(option: click.Option) -> str:
    short_first = sorted(option.opts, key=len)
    return "/".join([", ".join(short_first), *option.secondary_opts])


def _described(option: click.Option, ctx: click.Context) -> str:
    """The kind of an option's value, in capital letters, before its words."""
    kind = "" if option.is_flag else f"{option.make_metavar(ctx).removesuffix(' RANGE')}  "
    return kind.replace("[", "\\[") + _words(option)


def _words(parameter: click.Parameter) -> str:
    words, default = getattr(parameter, "help", None) or "", parameter.default
    if parameter.required:
        return f"{words} Required." if isinstance(parameter, click.Option) else words
    if isinstance(parameter, TyperOption) and parameter.show_default and default not in (None, False, "", ()):
        return f"{words} Default: {default.value if isinstance(default, enum.Enum) else default}."
    return words


def _print_group(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    """Print rows in two columns; no name is ever cut."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=max(len(name) for name, _ in rows))
    table.add_column()
    for name, words in rows:
        table.add_row(Text(name, style="cyan"), Text.from_markup(words, emoji=False))
    console.print(title, style="bold", markup=False)
    console.print(Padding(table, (0, 0, 1, 2)))
