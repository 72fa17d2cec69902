"""Commands that name a mistyped option's nearest, by its name and by what its help says, and a missing extra."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import click
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import CommandFunctionType

from fedprivacy._support.imports import MissingExtraError, needing_extras
from fedprivacy._support.settings import key_of
from fedprivacy.commands.terminal import PLAIN, plain_errors
from fedprivacy.runs.settings.configuration import BASIC, FIELDS

_RARE = (FIELDS.keys() - BASIC) | {"workers", "ray-address", "traceback"}
"""Keys of options that only --help-all shows, if a command has more than a few of them."""

_FEW = 3


def _show_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        TyperCommand.format_help(cast(TyperCommand, ctx.command), ctx, ctx.make_formatter())
        ctx.exit()


_HELP_ALL = TyperOption(
    param_decls=["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show every option.",
)

_MOST = 3
"""Options that are named."""

_REMEDIES = {"float": "give a number", "integer": "give a whole number"}
"""Remedies for values that are not of a type, or of a range of it."""


class _Forgiving(click.Command):
    """Options whose usage errors say what to type instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as always; an option that there is not, or a value of another type, comes with the remedy."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            words: dict[str, Any] = {
                name.removeprefix("--"): getattr(option, "help", None) or ""
                for option in self.params
                for name in option.opts
                if name.startswith("--")
            }
            typed = error.option_name.lstrip("-")
            if any(isinstance(param, click.Argument) and typed == param.name for param in self.params):
                message = f"{error.message} Write its value alone, without {error.option_name}."
            elif meant := nearest(typed, words):
                message = f"{error.message} Did you mean {' or '.join(f'--{name}' for name in meant)}?"
            else:
                raise
            raise click.NoSuchOption(error.option_name, message, ctx=error.ctx) from None
        except click.BadParameter as error:
            kind = error.param.type.name.removesuffix(" range") if error.param else ""
            if "is not a valid" not in error.message or not (remedy := _REMEDIES.get(kind)):
                raise
            raise click.BadParameter(
                f"{error.message.removesuffix('.').replace(' range', '')}; {remedy}.", ctx=error.ctx, param=error.param
            ) from None


class ForgivingGroup(_Forgiving, TyperGroup):
    """A group whose own options are forgiving."""


class ForgivingCommand(_Forgiving, TyperCommand):
    """A command whose usage errors say what to type instead, and whose help is of the basic options, or of all."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the help at once, as Typer does, without rare options where there are many."""
        rare = self._rare()
        for option in rare:
            option.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            for option in rare:
                option.hidden = False
        if rare:
            PLAIN.print(f"{len(rare)} more options: {ctx.command_path} --help-all")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; one that needs an extra which is not installed ends with the remedy."""
        with plain_errors(MissingExtraError, code=2), needing_extras():
            return super().invoke(ctx)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all parameters, with an option for the rest of the help where there is more of it."""
        found = super().get_params(ctx) + [_HELP_ALL] * bool(self._rare())
        for option in found:
            if isinstance(option, click.Option) and not getattr(option, "rich_help_panel", None):
                option.rich_help_panel = "What else?"  # type: ignore[attr-defined]
        return found

    def _rare(self) -> list[click.Option]:
        """The options that only --help-all shows; none where there are few."""
        options = [each for each in self.params if isinstance(each, click.Option) and not each.hidden]
        rare = [option for option in options if key_of(option.name or "") in _RARE]
        return rare if len(rare) > _FEW else []


class Commands(typer.Typer):
    """A group of commands, each of which is forgiving."""

    def __init__(self, **given: Any) -> None:
        super().__init__(cls=ForgivingGroup, suggest_commands=False, **given)  # click names the nearest by itself

    def command(  # type: ignore[override]  # its other options no command here needs
        self, name: str | None = None
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Add a command, as Typer does; the lines of a paragraph of its text are joined."""

        def add(function: CommandFunctionType) -> CommandFunctionType:
            paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
            text = "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
            return super(Commands, self).command(name, cls=ForgivingCommand, help=text)(function)

        return add


def nearest(typed: str, options: Mapping[str, str]) -> list[str]:
    """The options that may have been meant, the likeliest first.

    >>> options = {"learning-rate": "Step size of the local steps.", "noise-multiplier": "Sigma; left open: the least."}
    >>> nearest("lr", options), nearest("sigma", options), nearest("noise", options), nearest("colour", options)
    (['learning-rate'], ['noise-multiplier'], ['noise-multiplier'], [])

    Args:
        typed: without dashes.
        options: the help of each, by name without dashes.
    """
    found = _parts(typed)
    by_name = [name for name in options if _alike(found, _parts(name)) or typed == _initials(name)]
    if by_name:
        return sorted(by_name, key=lambda name: len(_parts(name)))[:_MOST]  # longer names qualify the shortest
    places = {name: _place(found, _parts(words)) for name, words in options.items()}
    said = {name: place for name, place in places.items() if place is not None}
    return sorted(said, key=said.__getitem__)[:_MOST]


def _initials(name: str) -> str:
    """The first letters of a name of several words; of one word none, for a letter alone is rather a symbol."""
    parts = _parts(name)
    return "".join(part[0] for part in parts) if len(parts) > 1 else ""


def _alike(typed: list[str], name: list[str]) -> bool:
    """True if a word of one begins as a word of the other does."""
    return any(len(min(a, b, key=len)) >= 3 and (a.startswith(b) or b.startswith(a)) for a in typed for b in name)


def _place(typed: list[str], words: list[str]) -> int | None:
    """The first place in a text that names something of what was typed."""
    return next((place for place, word in enumerate(words) if word in typed or word.removesuffix("s") in typed), None)


def _parts(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())
