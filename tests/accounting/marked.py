"""Settings that `make test` leaves to `make test-all`, and that both leave to `make soak`."""

from typing import Any

import pytest


def exhaustive(*settings: Any) -> list[Any]:
    """Parameters that are marked so; a setting is one value, or a tuple of several."""
    return _marked(pytest.mark.exhaustive, settings)


def soak(*settings: Any) -> list[Any]:
    """Parameters that are marked so."""
    return _marked(pytest.mark.soak, settings)


def _marked(mark: pytest.MarkDecorator, settings: tuple[Any, ...]) -> list[Any]:
    return [pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=mark) for each in settings]
