"""Sphinx's configuration of the site; `docs/site/pages.py` copies it beside the pages."""

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
copybutton_exclude = ".linenos, .gp"
