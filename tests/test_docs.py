"""What documents and docstrings point to is there: files, tests, modules and their names, links and headings."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.house import ROOT, name_of, tree

FOLDERS = ("fedprivacy", "server", "clients", "simulations", "benchmarks", "tests", "docs")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
SOURCES = sorted(source for folder in FOLDERS for source in (ROOT / folder).rglob("*.py") if source != Path(__file__))
ROOMS = sorted(path.name for path in (ROOT / "fedprivacy").iterdir() if (path / "__init__.py").exists())

PATH = re.compile(r"(?<![\w./-])((?:fedprivacy|tests|benchmarks|simulations|docs)/[\w/.*-]*[\w*])(?:::(\w+))?")
IN_A_ROOM = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w/]+)`")
NAME = re.compile(r"(?<![\w./-])(?:fedprivacy|benchmarks|tests)(?:\.(?!md\b)[A-Za-z_]\w*)+")
LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def defined(module):
    """Every name that a module's text binds, anywhere: a name that moved away is what is looked for."""
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


@cache
def like_modules():
    """Names of loggers and of records on the wire, which are like those of modules."""
    named = re.compile(r'getLogger\("([\w.]+)"\)|^[A-Z_]+ = "(fedprivacy\.[\w.-]+)"$', re.MULTILINE)
    return {name.partition("-")[0] for source in SOURCES for pair in named.findall(source.read_text()) for name in pair}


def missing_path(path, test):
    """What is wrong with a path, and with the test that is named in it; empty: nothing."""
    if not any(ROOT.glob(path)):
        return path
    return f"{path}::{test}" if test and test not in defined(ROOT / path) else ""


def missing_name(dotted):
    """What is wrong with `package.module.name`; empty: nothing."""
    if dotted in like_modules():
        return ""
    first, *rest = dotted.split(".")
    place = ROOT / first
    while rest and ((place / rest[0]).is_dir() or (place / f"{rest[0]}.py").exists()):
        place /= rest.pop(0)
    module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return dotted if rest and rest[0] not in defined(module) else ""


def missing_in(text, prose=None):
    """What a text names and is not there; modules are named in prose, and elsewhere are names of something else."""
    problems = {missing_path(path, test) for path, test in PATH.findall(text)}
    problems |= {missing_name(dotted) for dotted in NAME.findall(text if prose is None else prose)}
    return sorted(problems - {""})


def prose_of(source):
    """The docstrings and comments of a module, and the texts that describe what stands before them."""
    comments = re.findall(r"(?:^|\s)#.*", source.read_text())
    nodes = [node.value for node in ast.walk(tree(source)) if isinstance(node, ast.Expr)]
    return "\n".join([*comments, *(node.value for node in nodes if isinstance(getattr(node, "value", None), str))])


@cache
def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page):
    """Links of a page to files and headings that are not there."""
    for link in LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        there = page.parent / path if path else page
        if "://" not in link and not (there.exists() and (not anchor or anchor in anchors(there))):
            yield link


def rooms_gone(page):
    """Modules that a page names by their room alone, and which are not there."""
    return [name for name in IN_A_ROOM.findall(page.read_text()) if not any((ROOT / "fedprivacy").glob(f"{name}*"))]


def wrong(files, find):
    return {name_of(file): found for file in files if (found := list(find(file)))}


def test_what_a_page_names_is_there():
    assert wrong(PAGES, lambda page: missing_in(page.read_text())) == {}
    assert wrong(PAGES, rooms_gone) == {}


@pytest.mark.exhaustive
def test_what_a_source_names_is_there():
    assert wrong(SOURCES, lambda source: missing_in(source.read_text(), prose_of(source))) == {}


def test_a_page_s_links_lead_somewhere():
    assert wrong(PAGES, dead_links) == {}


def test_what_is_gone_is_noticed():
    gone = "`fedprivacy/guard/gone.py`, `fedprivacy.guard.gone`, tests/gone, `tests/test_docs.py::test_nobody_wrote`"
    assert len(missing_in(f"{gone}, fedprivacy.guard.log, `fedprivacy/guard`, `tests/test_docs.py`")) == 4
