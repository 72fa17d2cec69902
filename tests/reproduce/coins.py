"""A reproduction that takes no time: rows of every kind, and a moment at which somebody may end it."""

import math
from dataclasses import dataclass, field

from simulations.reproduce.experiment import Measured, Row


@dataclass
class Coins:
    name: str = "coins"
    title: str = "Coins"
    source: str = "Bernoulli 1713, Ars conjectandi"
    delta: float = 1e-3
    data: dict[str, str] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=lambda: {"tosses": 10, "sides": (0, 1)})
    rows: tuple[Row, ...] = (
        Row("heads", "share of heads", goal=0.5, published=0.5, metric="accuracy"),
        Row("error", "mean squared error", goal=0.25, published=0.2, at_least=False),
        Row("beside", "without privacy"),
    )
    seeds: int = 3
    ended_at: int | None = None
    measured: list[int] = field(default_factory=list)

    def measure(self, seed, place):
        place.tell("tossing")
        yield "heads", Measured(0.5 + seed / 10, 1.0 + seed, {"accuracy": 0.5 + seed / 10, "loss": 2.0 - seed / 10})
        (place.runs / "a-run").mkdir()
        if seed == self.ended_at:
            raise KeyboardInterrupt
        self.measured.append(seed)
        yield "error", Measured(0.2 + seed / 100, 2.0, {"loss": 1.0, "each_auc": math.nan})
        yield "beside", Measured(0.9)


COINS = Coins()
