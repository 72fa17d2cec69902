"""What keeps a model from book-keeping: the line of the model at which it gave up, and how to write it otherwise."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from fedprivacy._support.blas import matrix_library
from fedprivacy.gradients.selfcheck import PlaceError
from fedprivacy.gradients.watch import ValueDependentError

log = logging.getLogger(__name__)

_NOT_THE_MODEL = (Path(torch.__file__).parent, Path(__file__).parents[1])
_TRANSFORMERS_MASKS = Path("transformers", "masking_utils.py")

_COSTS = {"loop": "6 to 600", "vmap": "2 to 30"}
_COST_OF_SINGLE_ROWS = "1 to 6"
"""Times that a step takes, in those of one without privacy: docs/explanation/gradients.md#processors."""

_MASK = (
    "give a causal model attn_implementation='eager', and others an attention mask of four axes; "
    "see docs/how-to/transformers.md"
)
_BY_VALUE = "compute both branches and choose with torch.where, and keep records in their places"
_OWN_LAYER = "see docs/how-to/own-layer.md"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a model's gradients are computed by slower means.

    Attributes:
        what: in the words of the error that it raised on made-up records.
        place: file and line of the model's code, "model.py:12"; "": it is not one line's fault.
        remedy: what to write instead.
    """

    what: str
    place: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place or 'the model'}: {self.what.rstrip('.')}; {self.remedy}."


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its type's name if it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def obstacle_of(error: Exception) -> Obstacle:
    """What an error says that the means raised on made-up records."""
    if isinstance(error, PlaceError):  # which no line of the model is to blame for
        return Obstacle(f"products here ({matrix_library()}) do not treat all rows alike", "", matrix_library().remedy)
    calls = [call for call in traceback.extract_tb(error.__traceback__) if _in_model(call.filename)]
    what = first_line(error)
    place = f"{calls[-1].filename}:{calls[-1].lineno}" if calls else ""
    if calls and Path(*Path(calls[-1].filename).parts[-2:]) == _TRANSFORMERS_MASKS:
        return Obstacle(what, place, _MASK)
    return Obstacle(what, place, _BY_VALUE if isinstance(error, ValueDependentError) else _OWN_LAYER)


def _in_model(file: str) -> bool:
    """Whether a file is neither torch's nor ours; what stands in angle brackets is none."""
    return not file.startswith("<") and not any(Path(file).is_relative_to(folder) for folder in _NOT_THE_MODEL)


@cache
def warn_of(means: str, obstacle: Obstacle | None) -> None:
    """Log, once in a process, that gradients are computed by slow means; an obstacle of None: they are not."""
    if obstacle is not None:
        times = _COSTS.get(means, _COST_OF_SINGLE_ROWS)
        log.warning(
            "Gradients are exact, but slow (%s): a step takes %s times as long as without privacy. %s",
            means,
            times,
            obstacle,
        )
