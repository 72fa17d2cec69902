"""The lines of clients: how they are called, where they turn, which of them somebody chose."""

from __future__ import annotations

from fedprivacy.figures.style import Rows
from fedprivacy.values.series import Curve, RunSeries
from fedprivacy.values.wording import count_text


def whose(curve: Curve) -> str:
    """Whose curve it is: a client's own name, or how many share it."""
    return curve.client_ids[0] if len(curve.client_ids) == 1 else count_text(len(curve.client_ids), "client")


def state_in(curve: Curve, number: int) -> str:
    """'spending', or 'exhausted' from the round on after which no step was left."""
    return "exhausted" if curve.exhausted_in is not None and number >= curve.exhausted_in else "spending"


def last_state(curve: Curve) -> str:
    """In the end."""
    return state_in(curve, curve.rounds[-1])


def points(curve: Curve) -> Rows:
    """Every round, its epsilon and the state after it."""
    pairs = zip(curve.rounds, curve.epsilons, strict=True)
    return [{"round": number, "epsilon": epsilon, "state": state_in(curve, number)} for number, epsilon in pairs]


def strokes(curve: Curve) -> Rows:
    """The part that grows and, from exhaustion on, the flat part; they share the point between them."""
    found = [row | {"part": f"{row['state']} {curve.client_ids[0]}"} for row in points(curve)]
    if curve.turn is not None:
        number, epsilon = curve.turn
        row = {"round": number, "epsilon": epsilon, "state": "spending", "part": f"spending {curve.client_ids[0]}"}
        found.insert(curve.rounds.index(number), row)
    return found


def drawn(series: RunSeries) -> tuple[Curve, ...]:
    """The curves that are lines whether or not somebody chose a client: all, or those at the edges of a fan."""
    return series.outer if series.curves is None else series.curves


def added(series: RunSeries) -> list[Curve]:
    """Curves of chosen clients that have no line of their own among `drawn`."""
    alone = {curve.client_ids for curve in drawn(series)}
    return [curve for curve in series.chosen if curve.client_ids not in alone]
