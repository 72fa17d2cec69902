"""Sphinx's configuration of the site; `docs/site/pages.py` copies it beside the pages."""

from typing import Any

from sphinx.application import Sphinx

from fedprivacy import __version__

project = "fedprivacy"
author = "the fedprivacy authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
default_role = "code"  # docstrings mark code by single backticks

myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"fedprivacy {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False  # the licence says whose it is
copybutton_exclude = ".linenos, .gp"


def accessible(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Give the sidebar's headings a level, and let the keyboard scroll what is wider than the screen (WCAG 2.1)."""
    for part in ("furo_navigation_tree", "body"):
        text = str(context.get(part, ""))
        text = text.replace('role="heading"', 'role="heading" aria-level="2"').replace("<pre>", '<pre tabindex="0">')
        text = text.replace('<table class="docutils', '<table tabindex="0" class="docutils')
        context[part] = text.replace("<dl>\n<dd>", '<dl role="presentation">\n<dd>')  # the lines of a signature


def setup(app: Sphinx) -> None:
    """Sphinx calls it."""
    app.connect("html-page-context", accessible, priority=900)  # after the theme's own
