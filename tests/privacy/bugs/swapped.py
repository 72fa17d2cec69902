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
            function = _function(import_module(module), name)
            codes = _codes(compile(modules[module], function.__code__.co_filename, "exec", dont_inherit=True))
            (code,) = (code for code in codes if code.co_qualname == function.__code__.co_qualname)
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        yield bug


def _function(holder: Any, name: str) -> FunctionType:
    """The outermost function of a qualified name."""
    for part in name.split("."):
        holder = inspect.getattr_static(holder, part)
        holder = getattr(holder, "fget", getattr(holder, "__func__", holder))
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
