"""Sources: user objects named by their place of definition, `path/to/file.py:name` or `package.module:name`.

The person who chooses the name chooses what is imported and run. Where such code handles secrets, what it prints and
most of what its errors say is hidden.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any


class SourceError(ValueError):
    """The source names nothing, or another file than expected; the error says what to write instead."""


def is_source(text: str) -> bool:
    """Return whether a text has the form of a source."""
    return all(text.rpartition(":"))


def names_file(text: str) -> bool:
    """Return whether a text has the form `path/to/file.py:name`."""
    return text.rpartition(":")[0].endswith(".py")


def load(setting: str, source: str, sha256: str | None = None) -> Any:
    """Load the object that a source names.

    Args:
        setting: its name in error messages.
        source: `path/to/file.py:name` or `package.module:name`.
        sha256: expected digest of the file, in hexadecimal; None: any file will do.

    Raises:
        SourceError: says what was looked for and what to write instead.
    """
    module_name, _, attribute = source.rpartition(":")
    module = _run(setting, Path(module_name), sha256) if names_file(source) else _import(setting, module_name)
    if not hasattr(module, attribute):
        raise SourceError(f"{setting} is '{source}', but {module_name} defines no '{attribute}'; name what it defines.")
    return getattr(module, attribute)


def describe_error(error: BaseException, file: str | None = None) -> str:
    """Describe an error in one line: its kind, its text, and where in a file it came from.

    Args:
        error: with its traceback.
        file: the line is the innermost one of this file, if there is one; None: the innermost of all.
    """
    words = f"{type(error).__name__}: {error}".rstrip(": ").rstrip(".")
    if isinstance(error, SyntaxError):  # its text ends with file and line
        return words
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    own = [frame for frame in frames if file is None or Path(frame.filename).resolve() == Path(file).resolve()]
    return f"{words} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else words


def _import(setting: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise SourceError(
            f"{setting} names module '{name}', which cannot be imported: {describe_error(error)}."
        ) from error


def _run(setting: str, path: Path, sha256: str | None) -> ModuleType:
    if not path.is_file():
        raise SourceError(f"{setting} names file '{path}', which does not exist; give its path from here.")
    source = path.read_bytes()
    if sha256 is not None and sha256 != (found := hashlib.sha256(source).hexdigest()):
        raise SourceError(
            f"{setting} names file '{path}' with SHA-256 {sha256}, but the file's is {found}; look who changed it."
        )
    module_name = f"fedprivacy_{setting}_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # true for every .py path
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    # What was hashed is what runs: a loader would read the file again, or take older bytecode that lies beside it.
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[module_name]
        raise SourceError(
            f"{setting} names file '{path}', which cannot be run: {describe_error(error, str(path))}."
        ) from error
    return module


@contextmanager
def hushed() -> Iterator[None]:
    """Hide everything that the block prints or warns of: it may reveal what the code has read."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def kind_and_place(error: BaseException) -> str:
    """Describe an error by its kind and the place where it was raised; its text may hold values and is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
