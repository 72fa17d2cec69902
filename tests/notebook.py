"""A notebook's questions to an object: how does it show itself?"""

METHODS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
"""Names that Jupyter's protocol gives to the methods, by the type of what they return."""


def shown(value, kind="text/html"):
    """Return what a notebook shows of a value."""
    return getattr(value, METHODS[kind])()
