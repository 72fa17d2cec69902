"""Code blocks of the pages, and what is wrong with their Python and their commands, without running them."""

import ast
import importlib
import inspect
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import click

from tests.house import ROOT, tree
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

OURS = {"fedprivacy", "benchmarks"}
"""Packages whose objects are followed: what a call returns, what that has."""


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


@dataclass(frozen=True)
class Instance:
    """An object of a class, of which no more is known."""

    kind: type


@dataclass(frozen=True)
class Method:
    """A function whose first parameter is bound."""

    function: object


@dataclass(frozen=True)
class Keys:
    """A dictionary, of which the keys are known."""

    names: frozenset


class Python(ast.NodeVisitor):
    """Follows the names of a page's Python blocks; each visit returns the object that an expression is, or None."""

    def __init__(self):
        self.known, self.imported, self.problems = {}, set(), []

    def read(self, code):
        self.visit(ast.parse(code))

    # names

    def visit_Import(self, node):
        for alias in node.names:
            module = self._module(alias.name)
            root = module and importlib.import_module(alias.name.partition(".")[0])
            self._bind(alias.asname or alias.name.partition(".")[0], module if alias.asname else root)

    def visit_ImportFrom(self, node):
        module = self._module(node.module)
        for alias in node.names:
            self._bind(alias.asname or alias.name, self._member(module, alias.name) if module else None)
            if module and module.__name__.partition(".")[0] in OURS:
                self.imported.add(f"{node.module}.{alias.name}")

    def _module(self, name):
        if name.partition(".")[0] not in LOOKED_INTO:
            return None
        try:
            return importlib.import_module(name)
        except ImportError:
            self.problems.append(f"there is no module {name}")
            return None

    def _bind(self, name, value):
        self.known.pop(name, None)
        if value is not None:
            self.known[name] = value

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load):
            return self.known.get(node.id)
        return self._bind(node.id, None)

    def visit_Assign(self, node):
        value = self.visit(node.value)
        for target in node.targets:
            self.visit(target)
            if isinstance(target, ast.Name):
                self._bind(target.id, value)

    def _in_a_scope(self, parameters, *nodes):
        outer = self.known
        self.known = {name: value for name, value in outer.items() if name not in parameters}
        for node in nodes:
            self.visit(node)
        self.known = outer

    def _function(self, node, *body):
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        self.visit(node.args)
        self._in_a_scope({each.arg for each in every if each}, *body)

    def visit_FunctionDef(self, node):
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._bind(node.name, None)
        self._function(node, *node.body)

    def visit_Lambda(self, node):
        self._function(node, node.body)

    def visit_ClassDef(self, node):
        for part in (*node.bases, *node.keywords, *node.decorator_list):
            self.visit(part)
        self._bind(node.name, None)
        self._in_a_scope((), *node.body)

    def _comprehension(self, node):
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        self._in_a_scope((), *node.generators, *parts)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815 - as ast names them

    # expressions

    def visit_Expr(self, node):
        return self.visit(node.value)

    def visit_Dict(self, node):
        self.generic_visit(node)
        whole = all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys)
        return Keys(frozenset(key.value for key in node.keys)) if whole else None

    def visit_Attribute(self, node):
        base = self.visit(node.value)
        return None if base is None or isinstance(base, Keys | Method) else self._member(base, node.attr)

    def visit_Call(self, node):
        called = self.visit(node.func)
        partly = any(isinstance(each, ast.Starred) or _is_ellipsis(each) for each in node.args)
        for argument in node.args:
            self.visit(argument)
        words = {}
        for word in node.keywords:
            value = self.visit(word.value)
            if word.arg or isinstance(value, Keys):
                words |= dict.fromkeys([word.arg] if word.arg else value.names)
            else:
                partly = True
        if called is None or isinstance(called, Instance | Keys):
            return None
        return self._called(called, ast.unparse(node.func), len(node.args), words, partly=partly)

    def _called(self, called, name, positions, words, *, partly):
        function = called.function if isinstance(called, Method) else called
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of a function in C, nobody knows
            return None
        bind = signature.bind_partial if partly else signature.bind
        try:
            bind(*[None] * ((0 if partly else positions) + isinstance(called, Method)), **words)
        except TypeError as error:
            self.problems.append(f"{name}: {error}")
        return _instance(called if inspect.isclass(called) else _stated(function, signature.return_annotation))

    def _member(self, base, name):
        if not isinstance(base, Instance):
            if not hasattr(base, name):
                self.problems.append(f"{_called_by(base)} has no {name}")
                return None
            return getattr(base, name)
        member = inspect.getattr_static(base.kind, name, None)
        if isinstance(member, property):
            return _instance(_stated(member.fget, inspect.signature(member.fget).return_annotation))
        if hasattr(member, "func"):  # a property that is computed once
            return _instance(_stated(member.func, inspect.signature(member.func).return_annotation))
        if inspect.isfunction(member):
            return Method(member)
        if member is None and not _has_in_objects(base.kind, name):
            self.problems.append(f"{_called_by(base.kind)} has no {name}")
        return None


def _is_ellipsis(node):
    return isinstance(node, ast.Constant) and node.value is ...


def _called_by(value):
    return value.__name__ if isinstance(value, ModuleType | type) else type(value).__name__


def _stated(function, annotation):
    """The class that an annotation means; None: it is of another kind."""
    if not isinstance(annotation, str):
        return annotation
    module = function.__module__
    for names in (vars(importlib.import_module(module)), _for_type_checkers(module)):
        if inspect.isclass(found := names.get(annotation)):
            return found
    return None


@cache
def _for_type_checkers(module):
    """Names that a module imports for type checkers alone."""
    source = Path(importlib.import_module(module).__file__)
    found = [node for node in ast.walk(tree(source)) if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {
        alias.asname or alias.name: getattr(importlib.import_module(node.module), alias.name, None)
        for node in found
        if node.module.partition(".")[0] in OURS
        for alias in node.names
    }


def _instance(kind):
    ours = inspect.isclass(kind) and kind.__module__.partition(".")[0] in OURS
    return Instance(kind) if ours and kind is not inspect.Signature.empty else None


def _has_in_objects(kind, name):
    """Tell whether objects of a class have what the class itself has not: a field, or what a method sets."""
    if hasattr(kind, "__getattr__"):
        return True
    parts = [each for each in kind.__mro__ if each.__module__.partition(".")[0] in OURS]
    return any(name in vars(each).get("__annotations__", ()) or f"self.{name}" in _source(each) for each in parts)


@cache
def _source(kind):
    return inspect.getsource(kind)


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
