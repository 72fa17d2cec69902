"""Participation: the clients that a round asks, those that answer in time, and the time on a simulated clock.

It knows client ids, numbers of local steps and seconds, but not Flower. No choice here depends on a record. The server
knows the sampled clients, so sampling clients amplifies nothing in its view; and a client's grant stays charged,
whether or not its update is averaged.
"""

from fedprivacy.participation.draws import Draws
from fedprivacy.participation.participation import (
    COHORTS,
    DROPPED_OUT,
    TOO_LATE,
    Closed,
    Cohort,
    Participation,
    Turnout,
)
from fedprivacy.participation.timing import ALWAYS, Availability, Speeds, availability_of, speeds_of

__all__ = [
    "ALWAYS",
    "COHORTS",
    "DROPPED_OUT",
    "TOO_LATE",
    "Availability",
    "Closed",
    "Cohort",
    "Draws",
    "Participation",
    "Speeds",
    "Turnout",
    "availability_of",
    "speeds_of",
]
