"""Gathers the site's pages for Sphinx: the documents, the files of the repository that they link to, the Python names.

python docs/site/pages.py FOLDER    # `make docs` does, and builds the site from the folder
"""

from __future__ import annotations

import inspect
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import notebooks
from contents import CONTENTS

import fedprivacy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

_PLACES = {"README.md": "index.md", "docs/README.md": "what-you-can-do.md"}
"""Where pages of the repository stand in the site that cannot stand where they are."""

_OUTSIDE = "repository"
"""Folder of the site for files of the repository that are no documents."""

_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_KINDS = {".py": "python", ".toml": "toml", ".json": "json", ".cff": "yaml"}


def gather(folder: Path) -> None:
    """Write all that Sphinx needs into an empty folder."""
    for path, text in pages().items():
        file = folder / _in_site(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for pattern in ("docs/**/*.png", "docs/**/*.svg"):
        for image in ROOT.glob(pattern):
            there = folder / image.relative_to(ROOT / "docs")
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(image, there)
    with (folder / "index.md").open("a") as index:
        index.writelines(_listed(title, places) for title, places in CONTENTS.items())
    notebooks.write(folder / "notebooks")
    for page in notebooks.PAGES:
        _offer(folder / "notebooks" / page.name)
    (folder / "reference" / "python.md").write_text(_python())
    (folder / "_static").mkdir()
    shutil.copyfile(HERE / "site.css", folder / "_static" / "site.css")
    shutil.copyfile(HERE / "conf.py", folder / "conf.py")


def _offer(page: Path) -> None:
    """Let a page offer itself as a notebook, below its title."""
    title, text = page.read_text().split("\n", 1)
    page.write_text(f"{title}\n\n{{download}}`This page as a notebook <{page.stem}.ipynb>`\n{text}")


def pages() -> Mapping[str, str]:
    """The text of every page, by the file of the repository that it shows: documents, and whatever they link to."""
    documents = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    waiting, found = ["README.md", *documents], dict[str, str]()
    while waiting:
        path = waiting.pop()
        if path not in found:
            text = (ROOT / path).read_text()
            found[path] = _with_links(path, text) if path.endswith(".md") else _listing(path, text)
            waiting += [there for there in _linked(path, text) if not there.endswith((".png", ".svg"))]
    return found


def _linked(path: str, text: str) -> Iterator[str]:
    """Yield the files that a document links to."""
    if path.endswith(".md"):
        yield from (there for _, link, _ in _LINK.findall(text) if (there := _target(path, link)) is not None)


def _with_links(path: str, text: str) -> str:
    """Let a document's links lead to where files stand in the site."""
    here = posixpath.dirname(_in_site(path)) or "."

    def moved(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        there = _target(path, link)
        return found.group() if there is None else before + posixpath.relpath(_in_site(there), here) + after

    return _LINK.sub(moved, text)


def _target(path: str, link: str) -> str | None:
    """Return the file, from the repository's root, that a document's link leads to; None: it leads elsewhere."""
    if "://" in link or link.startswith("mailto:"):
        return None
    there = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{there}/__init__.py" if (ROOT / there).is_dir() else there


def _in_site(path: str) -> str:
    """Return where a file of the repository stands in the site."""
    if path in _PLACES:
        return _PLACES[path]
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return inside if inside.endswith((".md", ".png", ".svg")) else f"{inside}.md"
    return f"{_OUTSIDE}/{path}" + ("" if path.endswith(".md") else ".md")


def _listing(path: str, text: str) -> str:
    return f"---\norphan: true\n---\n\n# {path}\n\n````{_KINDS.get(Path(path).suffix, 'text')}\n{text}\n````\n"


def _listed(title: str, places: list[str]) -> str:
    entries = "\n".join(places)
    return f"\n```{{toctree}}\n:caption: {title}\n:hidden:\n\n{entries}\n```\n"


def _python() -> str:
    """Write the page of the public Python names; Sphinx puts their docstrings in."""
    parts = ["# Python\n\nEvery public name: `import fedprivacy as fp`, then `fp.simulate(...)`.\n"]
    for name in sorted(fedprivacy.__all__, key=str.casefold):
        value = getattr(fedprivacy, name)
        if directive := _directive(name, value):
            parts.append(f"## {name}\n\n```{{eval-rst}}\n{directive}\n```\n")
    return "\n".join(parts)


def _directive(name: str, value: object) -> str:
    """Return the words that tell Sphinx to document a public name; "": a text, or a module with names of its own."""
    if isinstance(value, type):
        return f".. auto{'exception' if issubclass(value, Exception) else 'class'}:: fedprivacy.{name}\n   :members:"
    if inspect.isroutine(value):
        return f".. autofunction:: fedprivacy.{name}"
    if callable(value):  # a function with methods, such as `ask`
        home = f"{type(value).__module__}.{type(value).__qualname__}"
        return f".. autoclass:: {home}\n   :members:\n   :special-members: __call__\n   :inherited-members:"
    return ""


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
