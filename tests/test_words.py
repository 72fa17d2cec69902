"""Words of the package: docstrings begin with a subject or an imperative, and names are nouns or verbs."""

import ast
import re
from collections import Counter, defaultdict

import pytest

from tests.house import HOUSE, modules, tree

NO_BEGINNINGS = re.compile(
    r"what|whether|how|who|whom|whose|whoever|whatever|whichever|whenever|wherever|that|which|where|when|of|in|to|with|"
    r"by|as|if|from|for|because|out|than|under|over|at|on|into|between|among|against|without|within|through|beyond|"
    r"before|after|since|until|while|though|although|unless|up|about|upon|beside|besides|instead|not",
    re.IGNORECASE,
)
NO_PARAMETERS = re.compile(  # `where`, `by` and `at` are words of the questions that users type
    r"of|ones|others|are|is|what|who|whose|which|how|why|within|without|between|under|into|said|told|made|meant"
)

FILES = [*HOUSE, *modules("server"), *modules("clients")]


def _texts(path):
    """Docstrings, and strings that stand right after an assignment and describe it."""
    for node in ast.walk(tree(path)):
        body = node.body if isinstance(getattr(node, "body", None), list) else []
        for before, child in zip([None, *body], body, strict=False):
            documents = before is None or isinstance(before, ast.Assign | ast.AnnAssign)
            if documents and isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                yield child.lineno, str(child.value.value)


def _violations(path):
    for line, text in _texts(path):
        first = re.match(r"\W*([\w']*)", text)[1]
        if NO_BEGINNINGS.fullmatch(first):
            yield f"{path}:{line}: begins with '{first}'"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.arg) and NO_PARAMETERS.fullmatch(node.arg):
            yield f"{path}:{node.lineno}: parameter '{node.arg}'"


@pytest.mark.exhaustive
def test_docstrings_begin_with_a_subject_and_parameters_are_no_riddles():
    assert [violation for path in FILES for violation in _violations(path)] == []


def test_no_module_s_name_stands_in_three_rooms():
    places = defaultdict(set)
    for path in HOUSE:
        if not path.stem.startswith("__"):
            places[path.stem].add(path.parent)
    assert {stem: folders for stem, folders in places.items() if len(folders) > 2} == {}


def test_no_public_class_s_name_stands_twice():
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in names.items() if times > 1} == set()
