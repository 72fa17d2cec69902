"""Code blocks of the pages, and what is wrong with their Python and their commands, without running them."""

import ast
import importlib
import inspect
import re
import shlex
from functools import cache

import click

from tests.house import ROOT
from tests.terminal import built

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "clients/*.md", "server/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"  # which tells of what is gone
)

BLOCK = re.compile(r"^( *)```([\w-]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "bash")

LOOKED_INTO = {"fedprivacy", "benchmarks", "flwr", "torch", "numpy"}
"""Packages whose names in Python blocks must be there."""


def place_of(page):
    """The path of a page, as lists here name it."""
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


@cache
def blocks(page, *kinds):
    """The code of a page's blocks of some kinds, or of all, in order."""
    found = BLOCK.findall(page.read_text())
    return [
        "".join(f"{line.removeprefix(indent)}" for line in code.splitlines(keepends=True))
        for indent, kind, code in found
        if not kinds or kind in kinds
    ]


# --- Python ---


class Python:
    """The names that a page's Python blocks import, and what is wrong with their use.

    Followed are modules, and functions and classes in them; what a call returns is seen when a block runs.
    """

    def __init__(self, codes):
        tree = ast.parse("\n".join(codes))
        self._known, self.imported, self.problems = {}, set(), []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias.name, alias.asname)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._import(node.module, alias.asname or alias.name, alias.name)
        for node in ast.walk(tree):  # a name that is bound otherwise may be anything
            bound = node.arg if isinstance(node, ast.arg) else getattr(node, "id", None)
            if isinstance(node, ast.arg) or isinstance(getattr(node, "ctx", None), ast.Store):
                self._known.pop(bound, None)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                self._member(self._meant(node.value), node.attr)
            elif isinstance(node, ast.Call):
                self._call(self._meant(node.func), node)

    def _import(self, module, known_as, member=None):
        first = module.partition(".")[0]
        if first not in LOOKED_INTO:
            return
        try:
            found = importlib.import_module(module)
        except ImportError:
            self.problems.append(f"there is no module {module}")
            return
        if member:
            found = self._member(found, member)
            self.imported.add(f"{module}.{member}")
        self._known[known_as or first] = found if known_as else importlib.import_module(first)

    def _meant(self, node):
        """The module, function or class that an expression is; None: something else."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        owner = self._meant(node.value) if isinstance(node, ast.Attribute) else None
        return None if owner is None else getattr(owner, node.attr, None)

    def _member(self, owner, name):
        if owner is not None and not hasattr(owner, name):
            self.problems.append(f"{getattr(owner, '__name__', owner)} has no {name}")
        return getattr(owner, name, None)

    def _call(self, function, node):
        words = {word.arg for word in node.keywords}
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # nothing is known of it, or it is a function in C
            return
        if any(isinstance(each, ast.Starred) or ast.unparse(each) == "..." for each in node.args):
            words.add(None)
        bind = signature.bind_partial if None in words else signature.bind
        try:
            bind(*(node.args if None not in words else ()), **dict.fromkeys(words - {None}))
        except TypeError as error:
            self.problems.append(f"{ast.unparse(node.func)}: {error}")


# --- commands ---

PROGRAM = re.compile(r"(?:.*/)?(fedprivacy|flwr|make)$")


def commands(text):
    """The commands of a shell's text, each as its words, without redirections and what comments say."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words = [[]]
        for word in lexer:
            if word and set(word) <= set(";|&()"):
                words.append([])
            else:
                words[-1].append(word)
        for command in words:
            while redirected := [at for at, word in enumerate(command) if word and set(word) <= set("<>")]:
                del command[redirected[0] : redirected[0] + 2]
            while command and re.match(r"\w+=|sudo$", command[0]):
                del command[0]
            if command:
                yield command


def program_of(words):
    """The program that a command starts, if it is one that is looked into; else ""."""
    found = PROGRAM.match(words[0])
    return found[1] if found else ""


def command_line(program):
    """The real commands of `fedprivacy` or of Flower."""
    if program == "flwr":
        from flwr.cli.app import app
    else:
        from fedprivacy.commands.app import app
    return built(app)


def mistyped(words, *, whole=True):
    """Say what is wrong with a typed command; "": nothing. Not `whole`: what must be given may be left out."""
    program, rest = program_of(words), [_example(word) for word in words[1:] if word != "..."]
    command = command_line(program)
    context = click.Context(command, info_name=program)
    while rest and isinstance(command, click.Group) and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return f"{context.command_path} has no command {name}"
        command = command.commands[name]
        context = click.Context(command, info_name=name, parent=context)
    if not whole and rest and any(rest[-1] in each.opts and not each.is_flag for each in _options(command)):
        del rest[-1]  # an option that is only named
    try:
        return _unfit(command, context, rest, whole=whole)
    except click.ClickException as error:
        return f"{context.command_path}: {error.format_message()}"


def _example(word):
    """A word, or what could stand for it where it says only NODE_ID."""
    return "1" if re.fullmatch(r"[A-Z][A-Z_]*", word) else word


def _options(command):
    return [each for each in command.params if each.param_type_name == "option"]


def _unfit(command, context, words, *, whole):
    given, extra, _ = command.make_parser(context).parse_args(words)
    if extra and not isinstance(command, click.Group):
        return f"{context.command_path} does not take {' '.join(extra)}"
    taken = {
        name: value for name, value in given.items() if isinstance(value, str | tuple | list | bool) and value != ()
    }
    missing = [each.name for each in command.params if each.required and each.name not in taken]
    if missing and whole and not isinstance(command, click.Group):
        return f"{context.command_path} wants {', '.join(missing)}"
    for each in command.params:
        if each.name in taken and not getattr(each.type, "exists", False):  # there may not be the reader's file
            taken[each.name] = each.type_cast_value(context, taken[each.name])
    return _unsettable(command.name, taken)


SETTLED = {"simulate", "plan", "sweep", "ask", "recommend", "audit"}
"""Commands whose options are settings of a run."""


def _unsettable(name, taken):
    """Say what is wrong with the values of options that are settings."""
    from fedprivacy._support.settings import ConfigError, kind_of, not_allowed
    from fedprivacy.runs.plans.plan import questions_in
    from fedprivacy.runs.settings.configuration import FIELDS, parse_settings

    problems = {}
    try:
        for text in taken.pop("questions", ()) if name == "ask" else ():
            questions_in(text)
        for key, field in FIELDS.items() if name in SETTLED else ():
            value = taken.get(field.name)
            kind = {"int": click.INT, "float": click.FLOAT}.get(kind_of(field), click.STRING)
            values = (
                [kind.convert(one, None, None) for one in value.split(",")] if name == "sweep" and value else [value]
            )
            for each in values:
                settings, wrong = parse_settings({key: each})
                problems |= wrong | not_allowed(FIELDS, settings)
    except ConfigError as error:
        return str(error)
    return "\n".join(problems.values())


@cache
def makefile():
    return (ROOT / "Makefile").read_text()


def not_made(words):
    """Say what is wrong with a typed `make`; "": nothing."""
    targets = re.findall(r"^([\w-]+)(?:[\w -]*):(?!=)", makefile(), re.MULTILINE)
    for word in words[1:]:
        variable, given, _ = word.partition("=")
        if not (re.search(rf"\$\({variable}[:)]", makefile()) if given else word in targets):
            return f"make knows no {word}"
    return ""
