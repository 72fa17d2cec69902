"""Pages that carry everything in themselves: they run no script and ask the network for nothing.

The content security policy of a page allows one style sheet, named by its hash; every name in a page is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import jinja2

from fedprivacy import figures
from fedprivacy._support.altair import alt
from fedprivacy.values import wording

_NARROW = 230
"""Width of a plot on a phone, in px: with its axis it is as wide as the page there."""


def page(template: str, room: str = "runs/records", **known: Any) -> str:
    """A template as an HTML document; it knows the figures' colours and how numbers are written.

    Args:
        template: file name.
        room: the package's folder that holds it. It may include the templates of this one.
        known: what else it knows.
    """
    return _templates(room).get_template(template).render(figures=figures, wording=wording, **known)


def for_every_screen(draw: Callable[..., alt.LayerChart], width: int) -> str:
    """Draw a figure twice, for wide screens and paper and for a phone; a page's style sheet shows one of them.

    Args:
        draw: makes it from the width of its plot in px and `below`, whether labels stand below the plot or beside it.
        width: that of the plot on wide screens, in px.
    """
    wide, narrow = figures.to_svg(draw(width, below=False)), figures.to_svg(draw(_NARROW, below=True))
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


@cache
def _templates(room: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("fedprivacy", name) for name in (room, "runs/records")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["csp_hash"] = _csp_hash
    return environment


def _csp_hash(text: str) -> str:
    """The source expression that allows an inline element with this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
