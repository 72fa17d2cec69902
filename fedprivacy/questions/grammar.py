"""Grammar of typed questions: `mean age 0 120 where sex=f by ward=a,b`; several are separated by semicolons.

| question | what follows |
|---|---|
| `count` | |
| `rows` | how many of each person are counted, at most |
| `categories` | column, levels |
| `heavy-hitters` | column, how many to report, levels |
| `histogram` | column, low, high, and maybe how many intervals |
| `sum`, `mean`, `variance` | column, low, high |
| `spread`, `covariance` | column, low, high; as often as one likes |
| `median` | column, low, high |
| `quantiles` | column, low, high, probabilities |
| `table` | column=low:high for a number, column=level,level for a category; as often as one likes |

After `where` come conditions, column=level,level or column=least:below; after `by` one column=level,level. A name with
a space is put in quotes, as a shell's.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.conditions import Level
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.question import Question

_CLAUSES = ("where", "by")


def parse(text: str) -> tuple[Question, ...]:
    """Parse the questions of a text.

    >>> [question.words for question in parse("count; mean age 0 120 where sex=f")]
    ['number of records', 'mean of age']

    Raises:
        QuestionError: a part cannot be read; the error names it.
    """
    found = [question for part in _parts(text) for question in _parse_one(part)]
    if not found:
        raise QuestionError("no question is asked; write one, for example: count")
    return tuple(found)


def _parts(text: str) -> list[list[str]]:
    """Return the words of each question."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";")
    lexer.whitespace_split, lexer.commenters = True, ""
    parts: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word and not word.strip(";"):
                parts.append([])
            else:
                parts[-1].append(word)
    except ValueError as error:
        raise QuestionError(f"the questions cannot be read ({error}); close every quote.") from error
    return [part for part in parts if part]


def _parse_one(words: list[str]) -> Sequence[Question]:
    kind, *rest = words
    if kind not in _FORMS:
        raise QuestionError(f"'{kind}' is no question; ask one of {', '.join(_FORMS)}.")
    given, options = _clauses(rest)
    try:
        made = _FORMS[kind](given, options)
    except (ValueError, IndexError, TypeError) as error:
        if isinstance(error, QuestionError):
            raise
        raise QuestionError(f"'{shlex.join(words)}' cannot be read ({error}); see `fedprivacy ask --help`.") from error
    return made if isinstance(made, tuple) else (made,)


def _clauses(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Split words into those before any clause, and each clause's parsed value."""
    parts: dict[str, list[str]] = {"": []}
    clause = ""
    for word in words:
        if word not in _CLAUSES:
            parts[clause].append(word)
        elif word in parts:
            raise QuestionError(f"'{word}' is there twice; say all of it after one.")
        else:
            clause = word
            parts[clause] = []
    options = {clause: _by_column(said) for clause, said in parts.items() if clause}
    for clause, said in options.items():
        if not said:
            raise QuestionError(f"nothing follows '{clause}'; write column=level,level after it.")
    if any(isinstance(levels, tuple) for levels in options.get("by", {}).values()):
        raise QuestionError("by names two bounds; write by column=level,level.")
    return parts[""], options


def _by_column(words: Sequence[str]) -> dict[str, Any]:
    """Parse words about columns, each of which is named once."""
    return _each_once([_parse_column(word) for word in words])


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise QuestionError(
            f"a column is named twice among {', '.join(column for column, _ in pairs)}; name each once."
        )
    return found


def _parse_column(word: str) -> tuple[str, Any]:
    """Parse column=level,level or column=least:below."""
    column, equals, value = word.partition("=")
    if not equals:
        raise QuestionError(f"'{word}' names no value; write column=level,level or column=least:below.")
    least, colon, below = value.partition(":")
    if not colon:
        return column, list[Level](value.split(","))
    try:
        return column, (float(least), float(below))
    except ValueError as error:
        raise QuestionError(f"'{word}' has no two numbers around its colon.") from error


def _bounds(words: list[str]) -> dict[str, tuple[float, float]]:
    if not words or len(words) % 3:
        raise QuestionError(f"'{shlex.join(words)}' is no list of columns, each with low and high.")
    return _each_once([(words[n], (float(words[n + 1]), float(words[n + 2]))) for n in range(0, len(words), 3)])


def _numbers(words: Sequence[str]) -> tuple[str, float, float]:
    if len(words) != 3:
        raise QuestionError(f"'{shlex.join(words)}' is no column with its low and high.")
    return words[0], float(words[1]), float(words[2])


def _bare(words: list[str], options: dict[str, Any]) -> Question:
    if words:
        raise QuestionError(f"count is followed by {shlex.join(words)}; a condition comes after 'where'.")
    return Questions.count(**options)


_FORMS: dict[str, Callable[[list[str], dict[str, Any]], Question | tuple[Question, ...]]] = {
    "count": _bare,
    "rows": lambda w, o: Questions.rows(*map(int, w), **o),
    "categories": lambda w, o: Questions.categories(w[0], w[1:], **o),
    "heavy-hitters": lambda w, o: Questions.heavy_hitters(w[0], w[2:], int(w[1]), **o),
    "histogram": lambda w, o: Questions.histogram(*_numbers(w[:3]), *map(int, w[3:]), **o),
    "sum": lambda w, o: Questions.sum(*_numbers(w), **o),
    "mean": lambda w, o: Questions.mean(*_numbers(w), **o),
    "variance": lambda w, o: Questions.variance(*_numbers(w), **o),
    "spread": lambda w, o: Questions.mean_and_scale(_bounds(w), **o),
    "covariance": lambda w, o: Questions.covariance(_bounds(w), **o),
    "median": lambda w, o: Questions.median(*_numbers(w), **o),
    "quantiles": lambda w, o: Questions.quantiles(*_numbers(w[:3]), tuple(map(float, w[3:])), **o),
    "table": lambda w, o: Questions.table_one(_by_column(w), **o),
}
