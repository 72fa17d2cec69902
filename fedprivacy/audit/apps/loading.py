"""Load the app that `path/to/file.py:name` names, made anew for each training that the audit asks for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from fedprivacy._support import sources
from fedprivacy.audit.apps.adapter import App, AppError

Maker = Callable[[], App]
"""Makes the app, with nothing left in it of an earlier training."""


def load_app(name: str) -> Maker:
    """Return the maker of the app that `path/to/file.py:name` or `package.module:name` names.

    The name is that of a class, a function or an object.

    Raises:
        AppError: there is none of that name, or it is no app.
    """
    if not sources.is_source(name):
        raise AppError(f"app is '{name}'; write path/to/file.py:name.")
    try:
        found = sources.load("app", name)
    except sources.SourceError as error:
        raise AppError(str(error)) from error
    return maker_of(found, name)


def maker_of(found: Any, name: str) -> Maker:
    """Return the maker of an app: a class or function without arguments, or a function that copies an object.

    Raises:
        AppError: it makes none.
    """
    if isinstance(found, App):
        return lambda: copy.deepcopy(found)
    try:
        made = found()
    except Exception as error:
        raise AppError(f"app is '{name}', which cannot be made: {sources.told(error)}.") from error
    if not isinstance(made, App):
        raise AppError(f"app is '{name}', a {type(made).__name__}; make it a subclass of fedprivacy.audit.apps.App.")
    if not hasattr(made, "settings"):
        raise AppError(f"app is '{name}', which lacks settings; see fedprivacy.audit.apps.Settings.")
    return found  # type: ignore[no-any-return]  # a call of it was an app
