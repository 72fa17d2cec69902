"""Checks of the arguments that every bound shares."""

from __future__ import annotations


def check_confidence(confidence: float) -> None:
    """Raises `ValueError` unless it is a probability in (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; choose a probability in (0, 1).")


def check_guesses(correct: int, guesses: int, canaries: int) -> None:
    """Raises `ValueError` unless so many of so many guesses about so many canaries can be right."""
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} of {guesses} guesses about {canaries} canaries cannot be right.")
