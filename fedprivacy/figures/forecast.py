"""What if: how many rounds a client's budget still allows, by noise multiplier."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from fedprivacy.figures.axes import AXIS_ROOM, DASHES, HEADROOM, Scale, loss_scale, shortened
from fedprivacy.figures.style import INK, SPENDING, WIDTH, Rows, chart_of, layered, outlined, seen, styled, titled
from fedprivacy.figures.tables import forecast_rows
from fedprivacy.values.series import RunFacts
from fedprivacy.values.wording import count_text


def forecast_figure(
    forecast: Sequence[tuple[float, int]], facts: RunFacts, client_id: str, width: int = WIDTH
) -> alt.LayerChart:
    """Rounds that a client's budget still allows, by noise multiplier; that of the run is marked.

    Args:
        forecast: (noise multiplier, rounds left), by ascending noise multiplier.
        facts: of the run.
        client_id: the client.
        width: of the plot between its axes, in px.

    Raises:
        ValueError: the forecast is empty.
    """
    if not forecast:
        raise ValueError("the forecast is empty; ask for at least one noise multiplier.")
    rows = forecast_rows(forecast, client_id)
    own = [row for row in rows if math.isclose(row["noise_multiplier"], facts.noise_multiplier)]
    noises = [facts.noise_multiplier, *(noise for noise, _ in forecast)]
    noise, left = _noise_scale(noises), loss_scale(float(rounds) for _, rounds in forecast)
    x, y = noise.x("noise_multiplier").title("noise multiplier"), left.y("rounds_left")
    line = chart_of(rows).encode(x, y, tooltip=["noise_multiplier:Q", "rounds_left:Q"])
    ours = chart_of([{"noise_multiplier": facts.noise_multiplier, "text": f"this run: {facts.noise_multiplier:.4g}"}])
    ours = ours.encode(x)
    layers = [
        ours.mark_rule(color=INK, strokeDash=DASHES),
        line.mark_line(color=SPENDING),
        line.mark_point(color=SPENDING, size=30),
        chart_of(own).mark_point(color=INK, size=80).encode(x, y),
        *_name(ours, left=facts.noise_multiplier > (noise.low + noise.high) / 2),
    ]
    return styled(layered(layers, _title(own, facts, client_id, width), width))


def _name(ours: alt.Chart, *, left: bool) -> list[alt.Chart]:
    """Of the run's own noise, at the top of its line, on the side that has more room."""
    return outlined(ours.encode(y=alt.value(6), text="text:N"), align="right" if left else "left", dx=-6 if left else 6)


def _noise_scale(noises: Sequence[float]) -> Scale:
    """From a little below the least to a little above the largest."""
    margin = HEADROOM * (max(noises) - min(noises)) or HEADROOM * max(noises)
    return Scale(max(0.0, min(noises) - margin), max(noises) + margin)


def _title(own: Rows, facts: RunFacts, client_id: str, width: int) -> alt.TitleParams:
    name = shortened(client_id)
    noise = f"{facts.noise_multiplier:.4g}"
    left = [f"{count_text(row['rounds_left'], 'round')} left at noise multiplier {noise}" for row in own]
    steps = count_text(facts.local_steps, "local step")
    what = [f"rounds of {steps} that its budget still allows if the run goes on with another noise multiplier"]
    title = f"{name}: {left[0] if left else 'rounds left by noise multiplier'}"
    return titled(title, [what, seen("ε", facts.delta)], width + AXIS_ROOM)
