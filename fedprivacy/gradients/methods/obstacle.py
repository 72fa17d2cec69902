"""Obstacle to book-keeping: the line of the model at which it gave up, and how to rewrite it."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from fedprivacy._support.native import matrix_library
from fedprivacy.gradients.selfcheck import PlaceError
from fedprivacy.gradients.watch import ValueDependentError

log = logging.getLogger(__name__)

_NOT_THE_MODEL = (Path(torch.__file__).parent, Path(__file__).parents[1])
_TRANSFORMERS_MASKS = Path("transformers", "masking_utils.py")

_COSTS = {"loop": "6 to 600", "vmap": "2 to 30"}
_COST_OF_SINGLE_ROWS = "1 to 6"
"""Slowdown of a step compared with one without privacy: docs/explanation/speed.md#processors."""

_MASK = (
    "give a causal model attn_implementation='eager', and others an attention mask of four axes; "
    "see docs/how-to/transformers.md"
)
_BY_VALUE = "compute both branches and choose with torch.where, and keep records in their places"
_OWN_LAYER = "see docs/how-to/own-layer.md"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a model's gradients are computed by a slower method.

    Attributes:
        what: text of the error that the model raised on made-up records.
        place: file and line of the model's code, "model.py:12"; "": no single line is at fault.
        remedy: the advised change.
    """

    what: str
    place: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place or 'the model'}: {self.what.rstrip('.')}; {self.remedy}."


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type's name if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def obstacle_of(error: Exception, *, on_gpu: bool) -> Obstacle:
    """Describe the obstacle behind an error that a method raised on made-up records."""
    if isinstance(error, PlaceError) and on_gpu:
        return Obstacle(first_line(error), "", "nothing is wrong; a CPU may treat all rows alike, and be faster")
    if isinstance(error, PlaceError):  # no line of the model is at fault
        return Obstacle(f"products here ({matrix_library()}) do not treat all rows alike", "", matrix_library().remedy)
    calls = [call for call in traceback.extract_tb(error.__traceback__) if _in_model(call.filename)]
    what = first_line(error)
    place = f"{calls[-1].filename}:{calls[-1].lineno}" if calls else ""
    if calls and Path(*Path(calls[-1].filename).parts[-2:]) == _TRANSFORMERS_MASKS:
        return Obstacle(what, place, _MASK)
    return Obstacle(what, place, _BY_VALUE if isinstance(error, ValueDependentError) else _OWN_LAYER)


def _in_model(file: str) -> bool:
    """Return whether a file is neither torch's nor ours; a name in angle brackets is no file."""
    return not file.startswith("<") and not any(Path(file).is_relative_to(folder) for folder in _NOT_THE_MODEL)


@cache
def warn_of(method: str, obstacle: Obstacle | None) -> None:
    """Log, once in a process, that gradients are computed by a slow method; no obstacle, no log."""
    if obstacle is not None:
        times = _COSTS.get(method, _COST_OF_SINGLE_ROWS)
        log.warning(
            "Gradients are exact, but slow (%s): a step takes %s times as long as without privacy. %s",
            method,
            times,
            obstacle,
        )
