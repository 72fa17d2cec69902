"""Numbers for people: the form of epsilons, budgets and metrics in tables, figures and reports.

>>> epsilon_text(2.9912)  # never rounded down
'3.00'
>>> epsilon_text(0.00123)
'0.0013'
"""

from __future__ import annotations

import json
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np

from fedprivacy.values.attempt import QUESTIONS
from fedprivacy.values.events import UNNAMED
from fedprivacy.values.unit import RECORD

NO_PRIVACY = "no privacy"
"""Text that replaces an epsilon for a run without clipping and noise: nothing bounds what it reveals."""

OUT_OF_SCOPE = (
    "Out of scope: a client that lies, timing on the client's host, and a server that tampers with the code that "
    "clients run."
)
"""Limits of every guarantee, as reports, dossiers and the threat model state them."""

TRUSTED = "Trusted with records are the hosts that hold them, with the program that their owners installed there."
"""Trust on which every epsilon rests; the same."""

TAMPERED_CODE = "A guard limits the cost of tampered grants, not of tampered code."
"""Limit of what a client's own book can do; the same."""


def reading_text(budget: float) -> str:
    """Explain an epsilon that was read when the number of rounds had not been fixed before (Rogers et al. 2016)."""
    bound = "what is guaranteed is the budget" if math.isfinite(budget) else "there is no budget to guarantee"
    return f"Epsilon is an odometer's reading; {bound}."


def unit_text(unit: str) -> str:
    """Format a unit of privacy to follow the neighbouring relation; a record needs no words.

    >>> "zero-out" + unit_text("record"), "zero-out" + unit_text("patient (at most 8 rows)")
    ('zero-out', 'zero-out, unit patient (at most 8 rows)')
    """
    return "" if unit == str(RECORD) else f", unit {unit}"


def epsilon_text(epsilon: float, budget: float = math.inf, decimals: int = 2) -> str:
    """Format an epsilon for people: never rounded down, and never above a budget that it keeps.

    >>> epsilon_text(6.4321e175)
    '6.5e175'
    """
    if not math.isfinite(epsilon):
        return "∞"
    rounded = _round(epsilon, ROUND_CEILING, decimals)
    return budget_text(budget) if epsilon <= budget < rounded else written_out(rounded)


def proved_text(epsilon: float) -> str:
    """Format an epsilon that is a lower bound: never rounded up.

    >>> proved_text(2.9988)
    '2.99'
    """
    return written_out(_round(epsilon, ROUND_FLOOR))


def _round(epsilon: float, rounding: str, decimals: int = 2) -> Decimal:
    """Round to so many decimals, or to two significant digits if decimals would show fewer or mean nothing."""
    exact = Decimal(repr(float(epsilon)))
    two_digits = exact.adjusted() - 1
    last_digit = -decimals if not exact else two_digits if exact >= _HUGE else min(-decimals, two_digits)
    return exact.quantize(Decimal(1).scaleb(last_digit), rounding)


def written_out(number: Decimal) -> str:
    """Write a number in full, or as a power of ten from a million on."""
    return f"{number:f}" if number < _HUGE else f"{number.normalize():e}".replace("e+", "e")


_HUGE = 10**6
"""Numbers from here on are powers of ten with two digits: nobody compares epsilons of a million."""


def budget_text(budget: float) -> str:
    """Format a finite epsilon budget as it was set."""
    return np.format_float_positional(budget, trim="-") if budget < _HUGE else written_out(Decimal(repr(float(budget))))


def words_of_what_is_left(epsilon: float, runs: int | None, steps: int, *, charged: bool = False) -> str:
    """Describe what is left of a budget: its epsilon, and the number of further runs like the last one.

    Args:
        epsilon: remaining epsilon; infinite: no budget was set.
        runs: number of further runs; None: none has trained.
        steps: steps of the last run.
        charged: whether something was charged, by questions for example, even if no run has trained.

    >>> words_of_what_is_left(1.0, 2, 40)
    'left: epsilon 1.00, which allows 2 more runs like the last one (40 steps, the same noise)'
    >>> words_of_what_is_left(0.004, 0, 40)
    'left: no more run like the last one (40 steps, the same noise)'
    >>> words_of_what_is_left(0.804, None, 0, charged=True)
    'left: epsilon 0.80, and no run has trained yet'
    """
    if not math.isfinite(epsilon):
        return "left: no budget was set, so nothing runs out"
    if runs is None:
        return f"left: epsilon {proved_text(epsilon)}, and no run has trained yet" if charged else "left: all of it"
    like = f"like the last one ({count_text(steps, 'step')}, the same noise)"
    if runs == 0:
        return f"left: no more run {like}"
    return f"left: epsilon {proved_text(epsilon)}, which allows {count_text(runs, 'more run')} {like}"


def at_most_text(share: float) -> str:
    """Format a share that is an upper bound in percent, never rounded down: to one decimal, or to two digits.

    >>> at_most_text(0.02914), at_most_text(0.0005475), at_most_text(1.0)
    ('3.0\xa0%', '0.055\xa0%', '100\xa0%')
    """
    rounded = _round(100.0 * share, ROUND_CEILING, 1)
    return f"{rounded:f}\N{NO-BREAK SPACE}%" if rounded < 100 else "100\N{NO-BREAK SPACE}%"


def share_text(share: float) -> str:
    """Format a share that was chosen, in percent.

    >>> share_text(0.001), share_text(0.5)
    ('0.1\xa0%', '50\xa0%')
    """
    return f"{100.0 * share:.6g}\N{NO-BREAK SPACE}%"


def delta_text(delta: float) -> str:
    """Format a delta for people, with all its digits: 1e-5."""
    return f"{Decimal(repr(float(delta))).normalize():e}"


def noise_text(least: float, most: float = 0.0, digits: int = 4) -> str:
    """Format a run's noise multiplier; the smallest and the largest, where clients have their own.

    >>> noise_text(1.25, 1.25), noise_text(0.75, 2.5)
    ('1.25', '0.75 to 2.5')
    """
    return f"{least:.{digits}g}" + (f" to {most:.{digits}g}" if most > least else "")


def metric_text(metric: str, value: float | None) -> str:
    """Format a metric's value; in percent if it is an accuracy."""
    if value is None:
        return "not measured"
    if not math.isfinite(value):
        return "not a number"
    return f"{100 * value:.1f}\N{NO-BREAK SPACE}%" if is_share(metric, value) else f"{value:.4g}"


def metric_name(metric: str) -> str:
    """Return a metric's name in words instead of as a key."""
    return metric.replace("_", " ").replace("-", " ")


def is_share(metric: str, value: float) -> bool:
    """Return whether a metric's value is a share of the records, to be shown in percent."""
    return "accuracy" in metric.lower() and 0.0 <= value <= 1.0


def less_is_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better, by its name: a loss, an error, a perplexity."""
    words = metric_name(metric.lower()).split()
    return any(word in _MISTAKES or word.endswith(("loss", "error")) for word in words)


_MISTAKES = frozenset({"mse", "rmse", "mae", "nll", "perplexity", "brier"})


def change_text(change: float, *, percent: bool) -> str:
    """Format the change of a metric, with its sign; a share of the records in percentage points.

    >>> change_text(-0.0312, percent=True)
    '-3.1 points'
    """
    return f"{100 * change:+.1f} points" if percent else f"{change:+.3g}"


def count_text(count: int, noun: str) -> str:
    """'1 client', '10 clients'."""
    return f"{count} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun by the rules of spelling; a task's word for a record may be any.

    >>> plural("record"), plural("patient"), plural("case study"), plural("eye"), plural("class")
    ('records', 'patients', 'case studies', 'eyes', 'classes')
    """
    if noun.endswith("y") and not noun.endswith(("ay", "ey", "oy", "uy")):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"


def time_text(seconds: float) -> str:
    """Format simulated seconds in their two largest units.

    >>> time_text(7.25), time_text(3725.0), time_text(200_000.0)
    ('7.25 s', '1 h 2 min', '2 d 7 h')
    """
    units = {"d": 86_400, "h": 3600, "min": 60, "s": 1}
    if seconds < 60:
        return f"{seconds:.3g} s"
    names = list(units)
    large = next(name for name in names if seconds >= units[name])
    small = names[names.index(large) + 1]
    most, rest = divmod(int(seconds), units[large])
    return f"{most} {large} {rest // units[small]} {small}"


def run_text(run_id: str) -> str:
    """Return a run's id in table form: eight characters tell runs apart, and a prefix marks runs that only asked.

    >>> run_text("0f8c2b7e11d34c06"), run_text("questions-0f8c2b7e11d34c06")
    ('0f8c2b7e', 'questions-0f8c2b7e')
    >>> run_text(UNNAMED)
    'not named'
    """
    if run_id == UNNAMED:
        return "not named"
    asking = QUESTIONS if run_id.startswith(QUESTIONS) else ""
    return asking + run_id.removeprefix(asking)[:8]


def question_text(question: str, most: int = 120) -> str:
    """Describe a question, given as JSON: its kind, its columns, its bounds, then all other fields.

    >>> question_text('{"column":"age","high":120,"kind":"mean","low":0}')
    'mean of age, from 0 to 120'
    >>> question_text('{"columns":["age","bmi"],"edges":[0,10,20,30,40,50],"kind":"joint_histogram"}')
    'joint histogram of age and bmi, edges 0 10 20 … 50'

    Args:
        question: JSON; any other text is shown as it is.
        most: maximum number of characters shown.
    """
    try:
        fields = json.loads(question)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return _cut(question, most)
    kind = metric_name(_value_text(fields.pop("kind", "question")))
    columns = fields.pop("columns", fields.pop("column", []))
    words = [f"{kind} of {_names_text(columns)}" if columns else kind]
    if {"low", "high"} <= fields.keys():
        words.append(f"from {_value_text(fields.pop('low'))} to {_value_text(fields.pop('high'))}")
    words += [f"{metric_name(name)} {_value_text(value)}" for name, value in fields.items() if value is not None]
    return _cut(", ".join(words), most)


def _names_text(names: Any) -> str:
    *most, last = map(_value_text, names if isinstance(names, list) else [names])
    return f"{', '.join(most)} and {last}" if most else last


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        shown = [*value[:3], "…", value[-1]] if len(value) > 4 else value
        return " ".join(map(_value_text, shown))
    return value if isinstance(value, str) else json.dumps(value)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
