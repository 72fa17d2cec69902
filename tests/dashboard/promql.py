"""Holds queries of Prometheus against real samples: what they select, and which labels their answer has."""

import re

import promql_parser as promql

ADDED = {"job", "instance"}
"""Labels that Prometheus puts on whatever it scrapes."""


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
    """Try a matcher on a sample's labels; regular expressions match the whole value."""
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


def labels_of(query, samples):
    """The labels of an expression's answer. Whatever it groups by, joins on or fetches must be a metric's label."""
    own = set().union(ADDED, *(sample.labels for one in selectors(query) for sample in selected(one, samples)))
    clauses = re.findall(r"\b(by|on|group_left) \(([^)]*)\)", query)
    named = {word: set(re.findall(r"\w+", labels)) for word, labels in clauses}
    assert set().union(*named.values()) <= own, f"{query} names labels that are not there"
    return named.get("by", own) | named.get("group_left", set())


def answer(query, samples, now):
    """Answer the query of an alert as Prometheus does: pairs of labels and value, each an alert that fires."""
    return _evaluated(promql.parse(query), samples, now)


def _evaluated(node, samples, now):
    if isinstance(node, promql.NumberLiteral):
        return node.val
    if isinstance(node, promql.Call):
        assert node.func.name == "time"
        return now
    if isinstance(node, promql.VectorSelector):
        matching = [s for s in samples if s.name == node.name]
        return [(s.labels, s.value) for s in matching if all(matches(m, s.labels) for m in node.matchers.matchers)]
    left, right = (_evaluated(side, samples, now) for side in (node.lhs, node.rhs))
    operator, on = str(node.op), node.modifier and node.modifier.matching and node.modifier.matching.labels
    if operator == "or":
        return left + right
    if operator == "and":
        there = [{name: labels.get(name) for name in on} for labels, _ in right]
        return [(labels, value) for labels, value in left if {name: labels.get(name) for name in on} in there]
    if operator == "-":
        return [(labels, left - value) for labels, value in right]
    compare = {">": float.__gt__, "==": float.__eq__}[operator]
    return [(labels, value) for labels, value in left if compare(float(value), right)]
