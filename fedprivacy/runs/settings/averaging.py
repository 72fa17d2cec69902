"""The choice of a strategy: how the server averages, and what a strategy needs of its rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedprivacy._support.settings import LEAST, KnownSettings, LeftOpen, SettingsGroup, key_of, setting
from fedprivacy.runs.settings.strategies import DEFAULT_STRATEGY, SERVER_SETTINGS, STRATEGIES
from fedprivacy.training.algorithms import ALGORITHMS
from fedprivacy.training.optimizers import LARGEST_LEARNING_RATE, MOMENTA

WEIGHTINGS = ("size", "inverse-variance")
"""Rules for the weight of a client's update in the average."""


def _default_words(setting: str) -> str:
    """The strategies that take a setting, and what it is for each where it is left open, for people."""
    taking = {name: known.defaults[setting] for name, known in STRATEGIES.items() if setting in known.defaults}
    return ", ".join(f"{value:g} for {name}" for name, value in taking.items())


@dataclass(frozen=True, kw_only=True)
class StrategySettings(SettingsGroup, question="How does the server average?", basic=("strategy",)):
    """Strategy of the server, which makes the next global model of the clients' updates."""

    strategy: str = setting(
        f"Flower strategy that averages: {', '.join(STRATEGIES)}; or path/to/file.py:name of one of your own.",
        DEFAULT_STRATEGY,
        choices=STRATEGIES,
        or_source=True,
    )
    server_learning_rate: float | None = setting(
        f"Step size of a strategy that takes steps of its own. Left open: {_default_words('server_learning_rate')}.",
        None,
        bounds=(LEAST, LARGEST_LEARNING_RATE),
    )
    server_momentum: float | None = setting(
        f"Momentum of its steps. Left open: {_default_words('server_momentum')}.", None, bounds=MOMENTA
    )
    proximal_mu: float | None = setting(
        "How much a strategy pulls local steps back towards the global model. Left open: "
        f"{_default_words('proximal_mu')}.",
        None,
        bounds=(0.0, LARGEST_LEARNING_RATE),
    )
    weighting: str = setting(
        f"How much an update counts in the average: {', '.join(WEIGHTINGS)}. size: as its client's public shard size, "
        "all alike where sizes are private. inverse-variance: the less noise it holds, the more.",
        WEIGHTINGS[0],
        choices=WEIGHTINGS,
    )

    @classmethod
    def problems(cls, known: KnownSettings) -> list[str]:
        """Find settings that the strategy does not take, and rounds that it cannot use."""
        return known.problems(
            _not_taken,
            _too_few_clients,
            _too_few_steps,
            _compares_what_is_averaged,
            LeftOpen(
                ("weighting",),
                "with user-level noise all clients count alike; leave weighting open.",
                conflict="user_level",
            ),
        )


def _not_taken(
    strategy: str,
    server_learning_rate: float | None = None,
    server_momentum: float | None = None,
    proximal_mu: float | None = None,
) -> Iterator[str]:
    known = STRATEGIES.get(strategy)  # None: one of the user's own, which says itself what it takes
    for name, value in zip(SERVER_SETTINGS, (server_learning_rate, server_momentum, proximal_mu), strict=True):
        if known is not None and value is not None and name not in known.defaults:
            able = " or ".join(other for other, able in STRATEGIES.items() if name in able.defaults)
            yield (
                f"{key_of(name)} is {value}, which strategy {strategy} does not take; leave it open, or choose {able}."
            )


def _too_few_clients(
    *,
    strategy: str,
    clients: int,
    fraction_train: float,
    cohort_size: int | None,
    cohort_sampling: str,
    availability: str,
) -> Iterator[str]:
    fewest = STRATEGIES[strategy].fewest_clients if strategy in STRATEGIES else 1
    asked = max(int(clients * fraction_train), 1) if cohort_size is None else cohort_size
    needs = f"strategy is '{strategy}', which needs {fewest} clients in each round, and"
    if asked < fewest:
        said = "clients times fraction-train" if cohort_size is None else "cohort-size"
        yield f"{needs} {said} is {asked}; give more clients, or choose another strategy."
    elif fewest > 1:
        fewer = [f"availability '{availability}'"] if availability else []
        fewer += ["cohort-sampling 'poisson'"] if cohort_sampling == "poisson" else []
        for words in fewer:
            yield f"{needs} {words} may leave fewer; leave that open, or choose another strategy."


def _too_few_steps(strategy: str, local_steps: int) -> Iterator[str]:
    if strategy in STRATEGIES and local_steps < (fewest := STRATEGIES[strategy].fewest_local_steps):
        yield (
            f"strategy is '{strategy}', which is fedavg when local-steps is {local_steps}; give local-steps from "
            f"{fewest}, or choose another strategy."
        )


def _compares_what_is_averaged(strategy: str, algorithm: str, user_level: bool, weighting: str) -> Iterator[str]:
    known = STRATEGIES.get(strategy)
    remedy = f"choose one of {', '.join(name for name, each in STRATEGIES.items() if each.averages)}."
    if ALGORITHMS[algorithm].server is not None and (known is None or not known.averages):
        controls = f"algorithm is '{algorithm}', whose controls are told by the average"
        yield f"{controls}, and strategy is '{strategy}'; {remedy}"
    if known is None or known.averages:
        return
    compares = f"strategy is '{strategy}', which compares the clients' updates, and"
    if user_level:
        yield f"{compares} with user-level noise there is nothing but their noisy average; {remedy}"
    elif weighting != "size":
        yield f"weighting is '{weighting}', and strategy '{strategy}' weighs no update; {remedy}"
