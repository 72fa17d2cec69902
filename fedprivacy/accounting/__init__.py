"""Accounting: from the events that were executed to the epsilon that they cost.

`pld` is the guarantee, `rdp` the fast first answer; `noise_multiplier` and `step_quota` turn a budget into noise or
steps; a `Filter` enforces a budget. Numpy and scipy only: no network, no database, no deep learning framework.
"""

from fedprivacy.accounting import pld, rdp
from fedprivacy.accounting.calibration import noise_multiplier, sampling_rate, step_quota
from fedprivacy.accounting.filters import (
    DEFAULT_FILTER,
    FILTERS,
    AdaptiveFilter,
    Filter,
    FixedMechanismFilter,
    FixedThenAdaptiveFilter,
    GaussianFilter,
    MechanismChanged,
)
from fedprivacy.accounting.histories import UNLIMITED
from fedprivacy.accounting.spend import RunLimit, more_runs, runs_left, shared_noise

__all__ = [
    "DEFAULT_FILTER",
    "FILTERS",
    "UNLIMITED",
    "AdaptiveFilter",
    "Filter",
    "FixedMechanismFilter",
    "FixedThenAdaptiveFilter",
    "GaussianFilter",
    "MechanismChanged",
    "RunLimit",
    "more_runs",
    "noise_multiplier",
    "pld",
    "rdp",
    "runs_left",
    "sampling_rate",
    "shared_noise",
    "step_quota",
]
