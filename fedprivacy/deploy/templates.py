"""Texts of deployments, made from templates that lie in folders beside this module."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from pathlib import Path

import jinja2


def rendered(folder: str, template: str, facts: Mapping[str, object]) -> str:
    """The text that a template becomes. A fact that it asks for and that is not given is an error."""
    beside = importlib.resources.files("fedprivacy.deploy").joinpath(folder)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: beside.joinpath(name).read_text("utf-8")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    return environment.get_template(f"{template}.jinja").render(facts)


def write_texts(folder: Path, texts: Mapping[str, str], facts: Mapping[str, object]) -> None:
    """Write files into a party's folder, each by its name from the template of that name."""
    for name, template in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(rendered("handout", template, facts))
