"""Holds queries of Prometheus against real samples: what they select, and which labels their answer has."""

import re

import promql_parser as promql

ADDED = {"job", "instance"}
"""Labels that Prometheus puts on whatever it scrapes."""

KEEPS_LABELS = {"topk", "bottomk"}

COMPARISONS_AND_SETS = {"==", "!=", ">", "<", ">=", "<=", "and", "or", "unless"}


def selectors(query):
    """Every selector of an expression, also those with a range."""
    found = []

    def visit(node):
        if isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(promql.parse(query), visit)
    return found


def matches(matcher, labels):
    """Whether a sample with these labels passes; regular expressions match the whole value."""
    value = labels.get(matcher.name, "")
    if matcher.op in (promql.MatchOp.Equal, promql.MatchOp.NotEqual):
        return (value == matcher.value) is (matcher.op == promql.MatchOp.Equal)
    return bool(re.fullmatch(matcher.value, value)) is (matcher.op == promql.MatchOp.Re)


def selected(selector, samples):
    """The samples of a selector, which may only name labels that its metric has."""
    named = [sample for sample in samples if sample.name == selector.name]
    assert named, f"there is no metric {selector.name}"
    for matcher in selector.matchers.matchers:
        assert all(matcher.name in s.labels or matcher.name in ADDED for s in named), f"{selector.name}: {matcher.name}"
    found = [s for s in named if all(matches(matcher, s.labels) for matcher in selector.matchers.matchers)]
    assert found, f"{selector.prettify()} selects nothing"
    return found


def labels_of(node, samples):
    """The labels of an expression's answer. Whatever it groups by, joins on or fetches must be there."""
    match node:
        case promql.VectorSelector():
            return set(selected(node, samples)[0].labels) | ADDED
        case promql.MatrixSelector():
            return labels_of(node.vector_selector, samples)
        case promql.ParenExpr() | promql.UnaryExpr():
            return labels_of(node.expr, samples)
        case promql.Call():
            return set().union(*(labels_of(argument, samples) for argument in node.args))
        case promql.AggregateExpr():
            return _of_aggregate(node, labels_of(node.expr, samples))
        case promql.BinaryExpr():
            return _of_pair(node, labels_of(node.lhs, samples), labels_of(node.rhs, samples))
        case promql.NumberLiteral():
            return set()
    raise AssertionError(f"this test does not know {type(node).__name__}")


def _of_aggregate(node, inner):
    if node.modifier is None:
        return inner if str(node.op) in KEEPS_LABELS else set()
    assert node.modifier.type == promql.AggModifierType.By, "this test does not know 'without'"
    assert set(node.modifier.labels) <= inner, f"{node.prettify()} groups by labels that are not there"
    return inner if str(node.op) in KEEPS_LABELS else set(node.modifier.labels)


def _of_pair(node, left, right):
    matching = node.modifier.matching if node.modifier else None
    if matching is None:
        # without 'on', series meet only if all their labels are the same
        assert left == right or not left or not right or str(node.op) == "or", f"{node.prettify()} pairs nothing"
        return left or right
    on = set(matching.labels)
    assert matching.type == promql.LabelModifierType.Include, "this test does not know 'ignoring'"
    assert on <= left & right, f"{node.prettify()} joins on labels that are not there"
    if node.modifier.card == promql.VectorMatchCardinality.ManyToOne:
        assert set(node.modifier.group_labels) <= right, f"{node.prettify()} fetches labels that are not there"
        return left | set(node.modifier.group_labels)
    return left if str(node.op) in COMPARISONS_AND_SETS else on
