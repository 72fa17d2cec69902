"""Pages that carry everything in themselves: they run no script and ask the network for nothing.

The content security policy of a page allows one style sheet, named by its hash; every name in a page is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

import jinja2

from fedprivacy import figures
from fedprivacy.values import wording


def page(template: str, room: str = "runs/records", **known: Any) -> str:
    """A template as an HTML document; it knows the figures' colours and how numbers are written.

    Args:
        template: file name.
        room: the package's folder that holds it. It may include the templates of this one.
        known: what else it knows.
    """
    return _templates(room).get_template(template).render(figures=figures, wording=wording, **known)


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
