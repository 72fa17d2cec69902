"""Altair, imported without a second or two of work that no figure needs.

Altair checks figures by jsonschema. Where Jupyter is installed, too, jsonschema imports rfc3987_syntax, to check web
addresses with letters beyond ASCII, and that builds 39 grammars at once. Here jsonschema is given a function that
imports it when it first checks such an address.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

_GRAMMARS = "rfc3987_syntax"


class _Later(ModuleType):
    """The one function of rfc3987_syntax that jsonschema takes."""

    @staticmethod
    def is_valid_syntax(term: str, value: str) -> bool:
        """Return what the function itself does."""
        return bool(import_module(_GRAMMARS).is_valid_syntax(term, value))


if find_spec(_GRAMMARS) and _GRAMMARS not in sys.modules:
    sys.modules[_GRAMMARS] = _Later(_GRAMMARS)
    with suppress(ModuleNotFoundError):
        import_module("jsonschema")  # which keeps the function
    del sys.modules[_GRAMMARS]

import altair as alt  # noqa: E402 - jsonschema first
from altair.utils.schemapi import debug_mode  # noqa: E402

__all__ = ["alt", "debug_mode"]
