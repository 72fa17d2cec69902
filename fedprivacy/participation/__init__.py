"""Participation: which clients a round asks, which of them answer in time, and what a simulated clock shows then.

It knows client ids, numbers of local steps and seconds, and no Flower: whatever carries the messages asks it. No choice
here depends on a record. Who was sampled is no secret from the server, so sampling clients amplifies nothing in its
view; and what a client was granted stays charged, whether or not its update is averaged.
"""

from fedprivacy.participation.asynchronous import Buffer, Course, Dispatch, discount
from fedprivacy.participation.availability import ALWAYS, Availability, availability_of
from fedprivacy.participation.draws import Draws
from fedprivacy.participation.participation import DROPPED_OUT, TOO_LATE, Closed, Participation, Turnout
from fedprivacy.participation.sizes import COHORTS, Cohort
from fedprivacy.participation.speeds import Speeds, speeds_of

__all__ = [
    "ALWAYS",
    "COHORTS",
    "DROPPED_OUT",
    "TOO_LATE",
    "Availability",
    "Buffer",
    "Closed",
    "Cohort",
    "Course",
    "Dispatch",
    "Draws",
    "Participation",
    "Speeds",
    "Turnout",
    "availability_of",
    "discount",
    "speeds_of",
]
