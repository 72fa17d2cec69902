"""What a question must have, and what to tell a user who asks it otherwise."""

from __future__ import annotations

from fedprivacy.accounting import UNLIMITED

_EXAMPLES = {"epsilon": "1", "delta": "1e-5", "sampling-rate": "0.01", "noise-multiplier": "1", "steps": "1000"}


class AskingError(ValueError):
    """Everything that is wrong with a question, one line each."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def missing(**settings: object) -> AskingError:
    """What to raise when settings that are needed are None: one line for each."""
    names = [name.replace("_", "-") for name, value in settings.items() if value is None]
    return AskingError(*(f"{name} is not set; add it, for example --{name} {_EXAMPLES[name]}." for name in names))


def refuse_beside(history: str, **settings: object) -> None:
    """Refuse settings that a history file states itself.

    Raises:
        AskingError: one of them is set.
    """
    names = [name.replace("_", "-") for name, value in settings.items() if value is not None]
    if names:
        raise AskingError(f"history is '{history}', and {', '.join(names)} beside it; leave out the one or the other.")


def check_steps(steps: int) -> None:
    """Refuse what is no number of steps that accountants can compose.

    Raises:
        AskingError: it is none.
    """
    if not 1 <= steps <= UNLIMITED:
        raise AskingError(f"steps is {steps}; choose an integer from 1 to {UNLIMITED}.")
