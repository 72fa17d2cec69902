"""Logs that stay away from people: those of a run that nobody started, and of refusals that are as they should be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedprivacy.flower.simulated.engine import quiet_flower


@contextmanager
def silence() -> Iterator[None]:
    """Keep the logs of clients, servers and Flower to themselves."""
    logger = logging.getLogger("fedprivacy")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with quiet_flower():
            yield
    finally:
        logger.setLevel(level)
