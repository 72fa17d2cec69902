"""Federated algorithms, each on one page that reads like its paper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache, lru_cache

from fedprivacy.training.algorithms.algorithm import (
    LARGEST_PULL,
    Algorithm,
    LocalRound,
    LocalUpdate,
    RoundTurnout,
    ServerHalf,
    StepsExceededError,
)
from fedprivacy.training.algorithms.ditto import Ditto
from fedprivacy.training.algorithms.fedavg import FEDAVG, FedAvg
from fedprivacy.training.algorithms.local import LocalTraining
from fedprivacy.training.algorithms.mr_mtl import MeanRegularised
from fedprivacy.training.algorithms.scaffold import Scaffold
from fedprivacy.training.algorithms.shared_body import FedPer, FedRep, OwnNormalisation

__all__ = [
    "ALGORITHMS",
    "ALGORITHM_SETTINGS",
    "DEFAULT_ALGORITHM",
    "FEDAVG",
    "LARGEST_PULL",
    "Algorithm",
    "Ditto",
    "FedAvg",
    "FedPer",
    "FedRep",
    "LocalRound",
    "LocalTraining",
    "LocalUpdate",
    "MeanRegularised",
    "OwnNormalisation",
    "RoundTurnout",
    "Scaffold",
    "ServerHalf",
    "StepsExceededError",
    "algorithm_of",
    "arguments_of",
    "text_of",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "local": LocalTraining,
    "mr-mtl": MeanRegularised,
    "ditto": Ditto,
    "scaffold": Scaffold,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbn": OwnNormalisation,
}
"""Algorithms by the name that configurations and grants have for them.

To add one is to add its page and its entry. Its arguments are set by the run's settings of these names.
"""

DEFAULT_ALGORITHM = "fedavg"

ALGORITHM_SETTINGS = ("pull", "personal_steps")
"""Names of the settings of algorithms."""

_MOST_STEPS = 10**9


@cache
def arguments_of(algorithm: str) -> frozenset[str]:
    """Return the names of the settings that an algorithm takes."""
    return frozenset(each.name for each in fields(ALGORITHMS[algorithm]) if each.init)  # type: ignore[arg-type]


def text_of(algorithm: Algorithm) -> str:
    """Write a known algorithm with its settings as a grant names it: JSON, of which there is one text for each."""
    name = next(name for name, kind in ALGORITHMS.items() if type(algorithm) is kind)
    return json.dumps({"name": name, **asdict(algorithm)}, sort_keys=True)  # type: ignore[call-overload]


@lru_cache(maxsize=64)
def algorithm_of(text: str) -> Algorithm:
    """Return the algorithm that `text_of` wrote.

    Raises:
        ValueError: the text is none that `text_of` writes, or a setting is out of range.
    """
    try:
        named = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("algorithm is no JSON.") from error
    if not isinstance(named, Mapping) or not isinstance(named.get("name"), str) or named["name"] not in ALGORITHMS:
        raise ValueError(f"algorithm must name one of {', '.join(ALGORITHMS)}.")
    given = {setting: value for setting, value in named.items() if setting != "name"}
    if given.keys() != arguments_of(named["name"]):
        raise ValueError(f"algorithm must have the settings of '{named['name']}', and no others.")
    pull, steps = given.get("pull", 0.0), given.get("personal_steps", 0)
    if type(pull) is not float or not 0.0 <= pull <= LARGEST_PULL:
        raise ValueError(f"pull must be a number from 0 to {LARGEST_PULL:g}.")
    if type(steps) is not int or not 0 <= steps <= _MOST_STEPS:
        raise ValueError(f"personal_steps must be an integer from 0 to {_MOST_STEPS}.")
    algorithm = ALGORITHMS[named["name"]](**given)
    if text_of(algorithm) != text:
        raise ValueError("algorithm is not written as it would be here.")
    return algorithm
