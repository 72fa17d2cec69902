"""Strategies: how the server averages, by name, and which settings of a run each takes.

Flower implements them, and this floor knows no Flower: a strategy is named by its source, as a task is, and the server
loads it (`fedprivacy.server.strategies`). What it takes is written down here, because a configuration refuses what its
strategy would ignore before anything starts. To add a strategy is to add an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fedprivacy._support.settings import LEAST, KnownSettings, LeftOpen, SettingsGroup, key_of, setting
from fedprivacy.training.algorithms import ALGORITHMS
from fedprivacy.training.optimizers import LARGEST_LEARNING_RATE, MOMENTA

SERVER_SETTINGS = ("server_learning_rate", "server_momentum", "proximal_mu")
"""The settings of strategies. A strategy of the user's own takes those that are arguments of what makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStrategy:
    """A strategy that has a name here.

    Attributes:
        source: `package.module:name` of what makes it.
        defaults: each of `SERVER_SETTINGS` that it takes, with the value where the setting is left open.
        arguments: what its maker calls a setting, where that is something else.
        fixed: further arguments of its maker.
        fewest_clients: in each round; with fewer, it is no better than the plain average, or makes no sense.
        fewest_local_steps: in each round; with fewer, it is the plain average.
        averages: whether all it needs of a round is the clients' average; else it looks at each client's update.
    """

    source: str
    defaults: Mapping[str, float] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)
    fewest_clients: int = 1
    fewest_local_steps: int = 1
    averages: bool = True


STRATEGIES = {
    "fedavg": KnownStrategy(source="flwr.serverapp.strategy:FedAvg"),
    # Hsu et al. 2019. In the long run a momentum m makes steps 1 / (1 - m) times as long, which 1 - m makes up for.
    "fedavgm": KnownStrategy(
        source="flwr.serverapp.strategy:FedAvgM", defaults={"server_learning_rate": 0.1, "server_momentum": 0.9}
    ),
    # Both Reddi et al. 2021: beta 2 is .99, tau .001.
    "fedadam": KnownStrategy(
        source="flwr.serverapp.strategy:FedAdam",
        defaults={"server_learning_rate": 0.03, "server_momentum": 0.9},
        arguments={"server_learning_rate": "eta", "server_momentum": "beta_1"},
    ),
    "fedyogi": KnownStrategy(
        source="flwr.serverapp.strategy:FedYogi",
        defaults={"server_learning_rate": 0.03, "server_momentum": 0.9},
        arguments={"server_learning_rate": "eta", "server_momentum": "beta_1"},
    ),
    # Li et al. 2020. The first local step starts where the pull leads to.
    "fedprox": KnownStrategy(
        source="flwr.serverapp.strategy:FedProx", defaults={"proximal_mu": 0.01}, fewest_local_steps=2
    ),
    # Yin et al. 2018. Of fewer than five values, a fifth at each end is none.
    "fedtrimmedavg": KnownStrategy(
        source="flwr.serverapp.strategy:FedTrimmedAvg", fixed={"beta": 0.2}, fewest_clients=5, averages=False
    ),
    # Blanchard et al. 2017: f malicious clients need 2 f + 3 in all.
    "krum": KnownStrategy(
        source="flwr.serverapp.strategy:Krum", fixed={"num_malicious_nodes": 1}, fewest_clients=5, averages=False
    ),
}
"""By the name that configurations have for them."""

DEFAULT_STRATEGY = "fedavg"


WEIGHTINGS = ("size", "inverse-variance")
"""How much a client's update counts in the average."""


def _default_words(setting: str) -> str:
    """The strategies that take a setting, and what it is for each where it is left open, for people."""
    taking = {name: known.defaults[setting] for name, known in STRATEGIES.items() if setting in known.defaults}
    return ", ".join(f"{value:g} for {name}" for name, value in taking.items())


@dataclass(frozen=True, kw_only=True)
class StrategySettings(SettingsGroup):
    """How the server makes the next global model of the clients' updates."""

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


def _compares_what_is_averaged(
    strategy: str, algorithm: str, asynchronous: bool, user_level: bool, weighting: str
) -> Iterator[str]:
    known = STRATEGIES.get(strategy)
    remedy = f"choose one of {', '.join(name for name, each in STRATEGIES.items() if each.averages)}."
    if ALGORITHMS[algorithm].server is not None and (known is None or not known.averages):
        controls = f"algorithm is '{algorithm}', whose controls are told by the average"
        yield f"{controls}, and strategy is '{strategy}'; {remedy}"
    if known is None or known.averages:
        return
    compares = f"strategy is '{strategy}', which compares the clients' updates, and"
    if asynchronous:
        yield f"{compares} an asynchronous round gives it the mean of a buffer; {remedy}"
    if user_level:
        yield f"{compares} with user-level noise there is nothing but their noisy average; {remedy}"
    elif weighting != "size":
        yield f"weighting is '{weighting}', and strategy '{strategy}' weighs no update; {remedy}"
