"""Plants bugs for a while in code that runs already, for tests of what an audit says of them: in functions alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

from tests.privacy.bugs import BUGS
from tests.privacy.bugs.bug import Bug
from tests.privacy.bugs.planting import changed


def the(meaning: str) -> Bug:
    """The bug of this meaning."""
    (bug,) = (bug for bug in BUGS if bug.meaning == meaning)
    return bug


@contextmanager
def planted(meaning: str) -> Iterator[Bug]:
    """Plant the bug of this meaning: every reference to a changed function runs changed code."""
    bug = the(meaning)
    modules = changed(bug.changes)
    with ExitStack() as stack:
        for change in bug.changes:
            module, _, name = change.place.partition(":")
            stack.enter_context(swapped(module, name, modules[module]))
        yield bug


@contextmanager
def swapped(module: str, name: str, source: Any) -> Iterator[None]:
    """Let the function of this qualified name run its code in another source, or syntax tree, of its module."""
    function = _function(import_module(module), name)
    before = function.__code__
    codes = _codes(compile(source, before.co_filename, "exec", dont_inherit=True))
    (function.__code__,) = (code for code in codes if code.co_qualname == before.co_qualname)
    try:
        yield
    finally:
        function.__code__ = before


_WRAPPED = ("fget", "__func__", "func")
"""Attributes by which properties, methods of classes and cached properties hold their function."""


def _function(holder: Any, name: str) -> FunctionType:
    """The outermost function of a qualified name."""
    for part in name.split("."):
        holder = inspect.getattr_static(holder, part)
        holder = next((getattr(holder, inner) for inner in _WRAPPED if hasattr(holder, inner)), holder)
        if not inspect.isclass(holder):
            break
    function = inspect.unwrap(holder)
    assert isinstance(function, FunctionType), f"{name} is no function: {function}"
    return function


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for held in code.co_consts:
        if isinstance(held, CodeType):
            yield from _codes(held)
