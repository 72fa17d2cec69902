"""Nothing public disappears without a word: scripts and run files of the version before go on working."""

import importlib
import inspect
from functools import cached_property
from pathlib import Path
from types import FunctionType

import fedprivacy as fp
from tests.blocks import PAGES, Python, blocks
from tests.public_names import public_names

FILE = Path(__file__).parent / "public_names.txt"


def test_every_public_name_of_before_is_there_and_new_ones_are_written_down():
    """To take a name away, deprecate it first: CONTRIBUTING.md says how. New names: python -m tests.public_names."""
    before, now = parts(FILE.read_text().splitlines()), parts(public_names())
    assert (sorted(before - now), sorted(now - before)) == ([], [])


def parts(lines):
    """Each name, and each name with each of its parts."""
    split = [line.partition(":") for line in lines]
    return {f"{name} {part}" for name, _, parts in split for part in ["", *parts.split()]}


WITHOUT_EXAMPLE = {
    "fedprivacy.audit.apps.App": "an audit takes half a minute; docs/how-to/audit.md has two, which tests run",
    "fedprivacy.audit.apps.Settings": "an app states them there",
    "fedprivacy.audit.apps.audit_app": "the audit of docs/notebooks/8-audit-and-attack.md, which a test runs",
    "fedprivacy.training.algorithms.LocalRound": "an argument in the example of Algorithm",
    "fedprivacy.training.algorithms.LocalUpdate": "the result in the example of Algorithm",
}
"""Public names whose use another example shows, and which."""


def offered():
    """Public functions and classes: those of the front door, of its rooms, and what pages import from elsewhere."""
    for door, value in {"fp": fp, "fp.tasks": fp.tasks}.items():
        yield from ((f"{door}.{name}", getattr(value, name)) for name in value.__all__)
    yield from ((f"fp.ask.{name}", getattr(fp.ask, name)) for name in dir(fp.ask) if not name.startswith("_"))
    for name in Python(code for page in PAGES for code in blocks(page, "python")).imported:
        if name.startswith("fedprivacy."):
            module, _, own = name.rpartition(".")
            yield name, getattr(importlib.import_module(module), own)


def test_every_public_function_and_class_has_an_example_which_is_run_with_the_tests():
    """An example that trains goes into SLOW of conftest.py."""
    explained = {
        name: value
        for name, value in offered()
        if callable(value) and not (inspect.isclass(value) and issubclass(value, Exception))
    }
    assert len(explained) > 60
    assert {name for name, value in explained.items() if ">>> " not in value.__doc__} == WITHOUT_EXAMPLE.keys()


def described():
    """Everything public that can have a docstring: functions, classes, and methods and properties of these."""
    for name, value in offered():
        if callable(value):
            yield name, value
        if inspect.isclass(value):
            own = (member for member in dir(value) if not member.startswith("_"))
            kinds = (FunctionType, classmethod, staticmethod, property, cached_property)
            yield from (
                (f"{name}.{member}", getattr(value, member))
                for member in own
                if isinstance(inspect.getattr_static(value, member), kinds)
            )


def test_everything_public_has_a_docstring():
    """A base class's docstring counts for a method; the text that Python makes of a class's fields does not."""
    public = dict(described())
    assert {"fp.ask.count", "fp.simulate", "fp.Task", "fp.Task.shard", "fp.Run.clients"} < public.keys()
    texts = {name: inspect.getdoc(value) or "" for name, value in public.items()}
    assert [name for name, text in texts.items() if not text or text.startswith(f"{name.rpartition('.')[2]}(")] == []
