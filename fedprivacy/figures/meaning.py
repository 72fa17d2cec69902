"""What an epsilon is, in the words that stand under every figure that shows one."""

from __future__ import annotations

from fedprivacy.values.wording import delta_text

COMPOSED = ("composed over all rounds and runs", "an odometer's reading")
"""How an epsilon came about."""


def seen(whose: str, *deltas: float) -> list[str]:
    """Whose epsilon it is, for whose eyes, at which delta (or deltas, of several runs) and by which accountant."""
    shown = " and ".join(delta_text(delta) for delta in sorted(set(deltas)))
    return [f"{whose} as seen by the server", f"δ = {shown}", "PLD accountant"]
