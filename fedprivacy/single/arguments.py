"""Checks of arguments of `fedprivacy.train` and `PrivateGradients`, before anything is read or charged.

Each raises a ValueError that names the argument, its value and what to give instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from numbers import Integral
from os import PathLike

from torch import nn

from fedprivacy._support.settings import range_words
from fedprivacy.values.numbers import number_of


def check_numbers(
    arguments: Mapping[str, object], *, whole: Collection[str] = (), optional: Collection[str] = ()
) -> None:
    """Refuse what is no number: texts, truth values, None.

    Args:
        arguments: by name.
        whole: names of those that must be whole numbers.
        optional: names of those that may be None.
    """
    for name, value in arguments.items():
        if value is None and name in optional:
            continue
        number = None if isinstance(value, bool) else number_of(value)
        if number is None or (name in whole and not isinstance(number, Integral)):
            raise ValueError(f"{name} is {value!r}; give a {'whole ' * (name in whole)}number.")


def check_within(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside [low, high], and NaN."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; choose a number {range_words(low, high, value)}.")


def argument_text(given: object) -> str:
    """Return a wrong argument for an error; of what may hold records, such as a tensor, the type alone."""
    plain = given is None or isinstance(given, str | int | float) or inspect.isroutine(given) or inspect.isclass(given)
    return repr(given) if plain else f"a {type(given).__name__}"


def check_function(name: str, given: object, remedy: str, *taken: object) -> None:
    """Refuse what cannot be called, or not with so many arguments; `remedy` describes the function to give."""
    if not callable(given):
        raise ValueError(f"{name} is {argument_text(given)}; give {remedy}.")
    if not taken:
        return
    try:
        inspect.signature(given).bind(*taken)
    except TypeError as error:
        raise ValueError(
            f"{name} is {argument_text(given)}, which cannot be called so ({error}); give {remedy}."
        ) from error
    except ValueError:  # a built-in function without a signature
        pass


def check_trainable(model: object, loss: object) -> None:
    """Refuse what is no model and what is no loss."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is {argument_text(model)}; give a torch.nn.Module.")
    check_function("loss", loss, "a function of outputs and targets that returns one value for each record")


def check_path(name: str, given: object) -> None:
    """Refuse what names no file or folder."""
    if not isinstance(given, str | PathLike) or not str(given):
        raise ValueError(f"{name} is {argument_text(given)}; give a path.")
