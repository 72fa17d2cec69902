"""Gates for what a deployed client makes of its own records: the noise that its updates carry, and how they are read.

At a sampling rate of 1 the sums of two trainings from one model are the same, whatever the records are. So half of the
difference of two updates is noise alone, and a number that is computed from it tells nothing of any record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedprivacy.audit.findings import Gate
from fedprivacy.audit.gates import Alarms, Judged, gate, rms, verdict
from fedprivacy.audit.gates.four_claims import judge_noise
from fedprivacy.audit.host import Host, costliest
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.real_client import NoUpdateError
from fedprivacy.audit.subject import Effort, ObservedNoise
from fedprivacy.flower.wire.messages import Grant
from fedprivacy.gradients import trainable_parameters
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.tasks.one_cell import READERS, try_cells
from fedprivacy.values.wording import count_text

_LEAST_DRAWS, _PAIRS = 4000, (4, 16)
"""Minimum draws of each layer's noise, and the fewest and most pairs of updates, in a quick audit, that give them."""

_MOST_DRAWS = 2e7
"""Draws of a large model's noise that are worth the time."""

_READING_PROVES = "One record changes nothing that the task reads of another."
_READING_ASSUMES = (
    "Cells of the first rows of .csv and .parquet files were changed, in a copy; they stand for all others, and files "
    "of other kinds were not looked at."
)


@gate(
    "node-noise",
    proves="Every update that leaves this host carries Gaussian noise of the granted size that nobody can draw again.",
    assumes="Asked as deployed, with secret randomness, for single steps that all records join: twice for the same, "
    "under another round, attempt and run, and with a book that knows nothing of the first time.",
)
def check_noise(audited: Audited, host: Host) -> Judged:
    """Check whether what the deployed client adds is Gaussian, as large as granted, and never the same.

    Args:
        audited: the same task, and the model that is sent.
        host: that is asked.
    """
    alarms = Alarms()
    try:
        noise = np.array([(one - other) / math.sqrt(2.0) for one, other in _pairs(audited, host)])
    except NoUpdateError:
        return Judged(math.inf, ["The client refuses a grant that its own configuration allows."])
    sizes = {f"layer '{n}'": p.numel() for n, p in trainable_parameters(audited.task.model()).items()}
    about = [f"update pair {number}" for number in range(1, len(noise) + 1)]
    judge_noise(alarms, ObservedNoise(rows=noise, of=" of updates", layers=sizes, about=about))
    return Judged(rms(noise), alarms.reasons, alarms.p_value)


def _pairs(audited: Audited, host: Host) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Two sums of the same records with the noise of each, in deviations of what was granted, shape [d] each."""
    grant = costliest(audited, host.node)
    for number in range(_count(audited)):
        one, other = _named(grant, number), _named(grant, number + number % 2)
        yield _sum(audited, host, one), _sum(audited, host, other)


def _named(grant: Grant, number: int) -> Grant:
    """The grant under one of several names: round, attempt and run."""
    return replace(grant, round=1 + number // 3, attempt=1 + number % 2, earlier_runs=number % 3)


def _count(audited: Audited) -> int:
    """Number of pairs of updates."""
    sizes = [p.numel() for p in trainable_parameters(audited.task.model()).values()]
    fewest, most = _PAIRS if audited.effort is Effort.QUICK else (_PAIRS[0], 16 * _PAIRS[1])
    return min(max(math.ceil(_LEAST_DRAWS / min(sizes)), fewest), most, max(int(_MOST_DRAWS / sum(sizes)), fewest))


def _sum(audited: Audited, host: Host, grant: Grant) -> NDArray[np.float64]:
    deviation = grant.noise_multiplier * grant.clipping_norm * (1.0 + ROUNDING_ALLOWANCE)
    return audited.sum(host.client(), grant, audited.parameters) / deviation


def check_reading(audited: Audited, host: Host) -> Gate:
    """Fail if one cell changes other records, makes reading fail, or moves a public number of records."""
    trial = try_cells(host.node.task, host.node.settings.folder)
    reasons = [f"{misread}; {READERS}." for misread in trial.misread]
    proves = f"Nothing: no cell could be changed ({trial.untried})." if trial.untried else _READING_PROVES
    if trial.left:
        proves += f" {count_text(trial.columns, 'column')} tried, {trial.left} left out for want of time."
    return verdict("reading", proves, _READING_ASSUMES, Judged(float(len(reasons)), reasons))
