"""The choice of the clients of a round, and what a simulation makes up of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedprivacy._support.settings import LEAST, WHOLE, KnownSettings, LeftOpen, SettingsGroup, setting
from fedprivacy.participation import availability, speeds
from fedprivacy.participation.sizes import COHORTS


@dataclass(frozen=True, kw_only=True)
class ParticipationSettings(SettingsGroup, question="Who takes part?", basic=("fraction-train",)):
    """Selection of the clients of a round: how many are asked, and which of them answer in time."""

    fraction_train: float = setting(
        "Share of the clients that each round asks; with user-level noise, the probability that each joins.",
        1.0,
        bounds=(LEAST, 1.0),
    )
    cohort_size: int | None = setting(
        "Number of clients' updates that a round averages, sampled in each round; left open: fraction-train of them.",
        None,
        bounds=WHOLE,
    )
    cohort_sampling: str = setting(
        "How they are sampled. fixed: so many, all sets alike; poisson: each client by itself, so many on average.",
        "fixed",
        choices=COHORTS,
    )
    over_selection: float = setting(
        "Simulated: a round asks so many times cohort-size clients, and averages the first cohort-size answers.",
        1.0,
        bounds=(1.0, 100.0),
    )
    drop_out: float = setting(
        "Simulated: probability that a client that is asked goes away without an answer. It stays charged.",
        0.0,
        bounds=(0.0, 0.99),
    )
    speeds: str = setting(
        f"Simulated: seconds that a local step takes each client: {speeds.FORMS}. Left open: one, where the run has a "
        "clock (over-selection, deadline or availability).",
        "",
        check=speeds.check_form,
    )
    deadline: float | None = setting(
        "Simulated: seconds after which a round is over; what comes later is charged, and not averaged.",
        None,
        bounds=(LEAST, 1e9),
    )
    availability: str = setting(
        f"Simulated: when each client can be asked: {availability.FORMS}, in seconds. Left open: always.",
        "",
        check=availability.check_form,
    )

    @classmethod
    def problems(cls, known: KnownSettings) -> list[str]:
        """Find sizes of a cohort that are impossible or given twice."""
        return known.problems(
            LeftOpen(
                ("cohort_sampling", "over_selection"),
                "there is no cohort-size that it would be about; give one.",
                requirement="cohort_size",
            ),
            _two_sizes,
            _more_than_all,
            _waits_for_no_number,
        )


def _two_sizes(cohort_size: int | None, fraction_train: float) -> Iterator[str]:
    if cohort_size is not None and fraction_train != 1.0:
        yield "cohort-size and fraction-train both say how many clients a round asks; give one of them."


def _more_than_all(cohort_size: int | None, clients: int) -> Iterator[str]:
    if cohort_size is not None and cohort_size > clients:
        yield f"cohort-size is {cohort_size}, and clients is {clients}; give at most as many."


def _waits_for_no_number(cohort_size: int | None, over_selection: float, cohort_sampling: str) -> Iterator[str]:
    if cohort_size is not None and over_selection != 1.0 and cohort_sampling == "poisson":
        yield (
            "over-selection waits for the first cohort-size answers, and cohort-sampling 'poisson' asks for no fixed "
            "number; leave one of them open."
        )
