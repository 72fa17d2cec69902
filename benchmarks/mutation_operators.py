"""The changes that `benchmarks.mutation` makes: operators of cosmic-ray, and two of our own.

Of cosmic-ray's many replacements those are taken that differ in what a test must know: `<` becomes `<=` and `>=`, but
not `is`. Left out is what nothing reads: annotations, and options of decorators such as `slots`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

_PAIRS = (
    "Add_Sub Sub_Add Mul_Div Div_Mul Pow_Mul FloorDiv_Mul Mod_FloorDiv LShift_RShift RShift_LShift "
    "BitOr_BitAnd BitAnd_BitOr"
)
_COMPARISONS = "Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt"
_OF_COSMIC_RAY = (
    *(f"ReplaceBinaryOperator_{pair}" for pair in _PAIRS.split()),
    *(f"ReplaceComparisonOperator_{pair}" for pair in _COMPARISONS.split()),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer"),
    *("RemoveDecorator", "ZeroIterationForLoop"),
)


class RemoveStatement(Operator):
    """Puts `pass` in the place of a statement: a check that is not made, a charge that is not written."""

    def mutation_positions(self, node):
        """Every simple statement that does something."""
        if node.type == "simple_stmt" and not _says_nothing(node.children[0]):
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        """`pass`, as far to the right as the statement stood."""
        return parso.python.tree.Name(f"{node.get_first_leaf().prefix}pass\n", node.start_pos)

    @classmethod
    def examples(cls):
        """One."""
        return (Example("x = 1\n", "pass\n"),)


class DropKeyword(Operator):
    """Calls a function without one of its keyword arguments: the default counts."""

    def mutation_positions(self, node):
        """Every `name=value` of a call."""
        if node.type == "argument" and node.children[1].get_code().strip() == "=":
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        """No argument, in a form that fits between two commas."""
        return parso.python.tree.Name("**{}", node.start_pos)

    @classmethod
    def examples(cls):
        """One."""
        return (Example("f(x=1)", "f(**{})"),)


def _says_nothing(statement) -> bool:
    """Whether a statement does nothing that could be left out: imports, texts, `pass`, declarations."""
    if statement.type in ("import_from", "import_name", "string", "strings", "keyword", "operator"):
        return statement.type != "keyword" or statement.value == "pass"
    return (
        statement.type == "expr_stmt"
        and statement.children[1].type == "annassign"
        and len(statement.children[1].children) == 2
    )


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        operator: its name.
        lines: first and last line that it touches.
        text: of the whole file with the change.
    """

    operator: str
    lines: tuple[int, int]
    text: str


def mutants_of(source: str, share: float = 1.0) -> Iterator[Mutant]:
    """Every change of a file's text, but for annotations and what comes to the same text; or a random share of them."""
    drawn = random.Random(source)
    provider = OperatorProvider()
    operators = [*(provider[name]() for name in _OF_COSMIC_RAY), RemoveStatement(), DropKeyword()]
    nodes = list(ast_nodes(get_ast(source)))
    seen = {source}
    for operator in operators:
        places = [(node, where) for node in nodes for where in operator.mutation_positions(node)]
        for occurrence, (node, (start, end)) in enumerate(places):
            if _changes_nothing_that_runs(node) or drawn.random() >= share:
                continue
            text = mutate_code(source, operator, occurrence)
            if text is None or text in seen:
                continue
            seen.add(text)
            last = end[0] - 1 if end[1] == 0 else end[0]
            yield Mutant(type(operator).__name__, (start[0], max(start[0], last)), text)


def _changes_nothing_that_runs(node) -> bool:
    """Whether a node is part of an annotation, an option of a decorator (`slots`) or a `*` between parameters."""
    if node.type == "operator" and node.parent.type == "parameters":
        return True
    while node.parent is not None:
        parent = node.parent
        if parent.type in ("tfpdef", "annassign") and node is parent.children[2 if parent.type == "tfpdef" else 1]:
            return True
        if parent.type == "decorator" or (parent.type == "funcdef" and parent.annotation is node):
            return True
        node = parent
    return False


def lines_of_bodies(source: str) -> set[int]:
    """Lines inside functions; the others are run by importing the file."""
    bodies = [node.children[-1] for node in ast_nodes(get_ast(source)) if node.type in ("funcdef", "lambdef")]
    return {line for body in bodies for line in range(body.start_pos[0] + 1, body.end_pos[0])}
