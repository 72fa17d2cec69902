"""Build the Flower strategy that a configuration names. The budget decides who can be chosen."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from flwr.serverapp.strategy import Strategy

from fedprivacy._support.settings import ConfigError, key_of
from fedprivacy._support.sources import SourceError, load
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.runs.settings.strategies import SERVER_SETTINGS, STRATEGIES, KnownStrategy


def build_strategy(config: RunConfig) -> Strategy:
    """The configured strategy. Servers alone come here: a client imports nothing that a server names.

    A round needs as few clients as the strategy can do with: the others may have spent their budgets.

    Raises:
        ConfigError: the configuration names a source that makes no strategy, or none with these settings.
    """
    known = STRATEGIES.get(config.strategy, KnownStrategy(source=config.strategy))
    fewest = known.fewest_clients
    sampling = {"fraction_evaluate": 0.0, "min_train_nodes": fewest, "min_available_nodes": fewest}
    chosen = {name: value for name in SERVER_SETTINGS if (value := getattr(config, name)) is not None}
    fraction = 1.0 if config.user_level else config.fraction_train  # the wrapper samples clients, then
    (sampling if fraction == 1.0 else chosen)["fraction_train"] = fraction
    chosen = {known.arguments.get(name, name): value for name, value in chosen.items()}
    try:
        return _made(known.source, {**chosen, **known.fixed}, sampling)
    except SourceError as error:
        raise ConfigError([str(error)]) from error


def _made(source: str, chosen: Mapping[str, float], offered: Mapping[str, float]) -> Strategy:
    """The strategy that a source names, or that its class or function makes; what is offered, it need not take.

    Raises:
        SourceError: it does not take the chosen ones, needs others, or makes something else.
    """
    found = load("strategy", source)
    signature = inspect.signature(found) if callable(found) else inspect.Signature()
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    taken = {name: value for name, value in {**offered, **chosen}.items() if any_name or name in signature.parameters}
    if ignored := chosen.keys() - taken.keys():
        keys = ", ".join(sorted(map(key_of, ignored)))
        raise SourceError(
            f"strategy is '{source}', which takes no {keys}; leave that open, or let it take the argument."
        )
    try:
        signature.bind(**taken)
    except TypeError as error:
        raise SourceError(f"strategy is '{source}', but {error}; give every argument a default.") from error
    made = found(**taken) if callable(found) else found
    if not isinstance(made, Strategy):
        kind = type(made).__name__
        raise SourceError(f"strategy is '{source}', which makes a value of type {kind}; let it make a Flower Strategy.")
    return made
