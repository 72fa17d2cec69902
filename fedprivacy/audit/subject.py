"""What an audit looks at."""

from __future__ import annotations

import enum
import secrets


class Effort(enum.StrEnum):
    """How long an audit may take: seconds, or minutes for more positions, records and parameters."""

    QUICK = "quick"
    FULL = "full"


def drawn(seed: int | None) -> int:
    """The seed of an audit; None: one that nobody knows before, so that no code can be made for what it asks."""
    return secrets.randbelow(2**31) if seed is None else seed
