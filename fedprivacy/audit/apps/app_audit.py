"""An audit of an app: every gate on training code that somebody else wrote, and the epsilon that it shows.

Two gates are for apps alone. **Accounting** holds the epsilon that an app shows after some rounds against what the
steps cost that it took in them. **Randomness** asks whether noise, masks and samples come from numbers that somebody
can find by trying.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedprivacy._support import sources
from fedprivacy.accounting import pld
from fedprivacy.audit.apps import app_draws, app_neighbours
from fedprivacy.audit.apps.adapter import AppError, Maker
from fedprivacy.audit.apps.audited_app import AuditedApp
from fedprivacy.audit.apps.watched_training import GUESSABLE, ON_CPU, SHIFT, WatchedTraining, as_it_was, bits
from fedprivacy.audit.findings import Findings, Gate
from fedprivacy.audit.gates import Judged, Said, four_claims, gate, too_low
from fedprivacy.audit.subject import Effort, audit_seed
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.wording import count_text

_NEAR = 0.05
"""Relative difference within which an epsilon is taken for that of another number of steps: accountants differ."""

_HALVINGS = 12
"""Number of halvings that find, to three digits, the sampling rate that costs what is shown."""

_CHANGE = 0x2AB3
"""Mask that changes guessable seeds and keeps them as short as they were."""

_MATERIAL = 1e-2
"""Least movement that counts, by a changed seed relative to all other random numbers: rounding moves less."""

_REPEATS = 10.0
"""Least movement that counts, relative to that between trainings that are asked the same."""

_ROUNDING = 1e-6
"""Relative rounding error of an array."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Epsilon that an app showed after some rounds, beside the steps that it took.

    Attributes:
        rounds: number of rounds in which it trained.
        steps: number of steps that it took in them.
        epsilon: the value that it showed.
    """

    rounds: int
    steps: int
    epsilon: float


def shown(audited: AuditedApp, rounds: int) -> Shown:
    """Rehearse some rounds, and ask what they cost. Raises AppError: the app does not say, or fails to train."""
    app = audited.make()
    trainings = audited.rehearse(app, 400, rounds)
    try:
        epsilon = float(app.epsilon(rounds))
    except Exception as error:
        raise AppError(f"app {audited.name}: epsilon({rounds}) fails: {sources.describe_error(error)}.") from error
    return Shown(rounds, sum(len(training.steps) for training in trainings), epsilon)


@gate(
    "accounting",
    proves="The epsilon that is shown is at least what the executed steps cost, over all rounds.",
    assumes="Noise and samples are as claimed (gates noise, sampling); other rounds are as the rehearsed ones.",
)
def accounting(audited: AuditedApp) -> Judged:
    """Check whether the epsilon that is shown is not less than what was spent."""
    many = audited.app.rounds
    found = [shown(audited, rounds) for rounds in dict.fromkeys((1, many))]
    spent = [cost(audited, one.steps) for one in found]
    reasons = []
    if any(
        not math.isfinite(one.epsilon) or too_low(one.epsilon, real) for one, real in zip(found, spent, strict=True)
    ):
        reasons = [*_why(audited, found, spent)]
    return Judged(spent[-1], reasons)


def cost(audited: AuditedApp, steps: int) -> float:
    """The epsilon of so many steps, as claimed of each."""
    return pld.epsilon({audited.event: steps}, audited.app.delta) if steps else 0.0


def _why(audited: AuditedApp, found: list[Shown], spent: list[float]) -> Iterator[str]:
    """Explain an epsilon that is too low."""
    first, last = found[0], found[-1]
    said = (
        f"after {last.rounds} rounds an epsilon of {last.epsilon:.3g} is shown, and the {last.steps} steps that were "
        f"taken cost {spent[-1]:.3g}"
    )
    if not math.isfinite(last.epsilon) or not math.isfinite(first.epsilon):
        yield f"The epsilon that is shown is no bound ({first.epsilon}, {last.epsilon})."
    elif not too_low(first.epsilon, spent[0]):
        if abs(last.epsilon - first.epsilon) <= _NEAR * first.epsilon:
            yield (
                "Each round begins with a new accountant, which has forgotten all rounds before: what is shown is "
                f"the cost of one round; {said}."
            )
        else:
            yield f"Rounds are not added up in full: {said}."
    else:
        yield (
            f"Already after one round an epsilon of {first.epsilon:.3g} is shown, and the {first.steps} steps that "
            f"were taken cost {spent[0]:.3g}: {', or '.join(_as_if(audited, first))}."
        )


def _as_if(audited: AuditedApp, one: Shown) -> Iterator[str]:
    """Yield other trainings that cost the epsilon shown after one round, which is less than that round costs."""
    if one.epsilon >= cost(audited, 1):
        yield (
            f"it is the cost of {count_text(_as_if_steps(audited, one), 'step')} (as where steps are counted for the "
            "whole federation, or not those that the client takes)"
        )
    yield (
        f"it is the cost of a sampling rate of {100 * _as_if_rate(audited, one):.3g} % instead of "
        f"{100 * audited.event.sampling_rate:.3g} % (as where it is computed from the records of the whole federation, "
        "or counts on clients that are drawn anew for each step; if records do join that seldom, as with Opacus, "
        "which takes 1 / len(loader), claim that rate)"
    )
    yield "it is of an accountant that estimates an epsilon and does not bound it, such as Opacus' 'gdp'"


def _as_if_steps(audited: AuditedApp, one: Shown) -> int:
    """Return the number of steps that cost what is shown."""
    return bisect_right(range(1, one.steps), one.epsilon, key=lambda steps: cost(audited, steps))


def _as_if_rate(audited: AuditedApp, one: Shown) -> float:
    """Return the sampling rate at which the steps cost what is shown."""
    event, delta = audited.event, audited.app.delta
    least, most = 1e-3 * event.sampling_rate, event.sampling_rate
    for _ in range(_HALVINGS):
        middle = math.sqrt(least * most)
        as_if = PoissonSampledGaussian(middle, event.noise_multiplier)
        least, most = (middle, most) if pld.epsilon({as_if: one.steps}, delta) <= one.epsilon else (least, middle)
    return least


@gate(
    "randomness",
    proves="What leaves does not depend on random numbers that somebody can find by trying.",
    assumes="Seeds that are set while a round runs, by torch, numpy or Python's random, and Python's clocks. The "
    "generators that a process begins with are not judged: on a CPU, torch's has 32 bits, which somebody can find by "
    "trying; neither torch's nor numpy's are made for secrets.",
)
def randomness(audited: AuditedApp) -> Judged:
    """Check whether a seed that can be guessed, or the time, moves what leaves, or who joins."""
    reasons = []
    plain, sampled = _Asked(audited, {"sampling_rate": 1.0}), _Asked(audited, {})
    seeds = plain.usual.guessable or sampled.usual.guessable
    suspected = {"the time of a clock": {"shift": SHIFT}}
    if seeds:
        suspected[f"a seed of at most {GUESSABLE} bits ({_seeds_text(seeds)})"] = {"change": _CHANGE}
    for source, change in suspected.items():
        if plain.moves(change):
            reasons.append(
                f"Noise or a mask in what leaves comes from {source}: whoever tries them all, in hours or days, "
                "subtracts it and sees the records without it."
            )
        if sampled.others_join(change):
            reasons.append(
                f"Who joins a step comes from {source}: whoever finds it knows who joined, and the epsilon counts on "
                "nobody knowing."
            )
    return Judged(float(len(seeds)), reasons)


@dataclass(frozen=True)
class _Asked:
    """A round that is asked for with nothing random in it but what is changed."""

    audited: AuditedApp
    asked: Mapping[str, Any]

    @cached_property
    def usual(self) -> WatchedTraining:
        """The round without a change."""
        return self.audited.train(self.audited.shard, 500, shift=0, **self.asked)

    def again(self, draw: int = 500, shift: int = 0, change: int = 0) -> WatchedTraining:
        """Return the round once more: clocks and secret numbers repeat themselves, and so do guessable seeds."""
        watched = {"again": self.usual.guessable, "change": change}
        return self.audited.train(self.audited.shard, draw, watched=watched, shift=shift, **self.asked)

    def moves(self, change: Mapping[str, int]) -> bool:
        """Return whether a change moves an array that leaves, by more than rounding and than it moves by itself."""
        plain, changed = self.usual, self.again(**change)
        if plain.error or changed.error or not any(map(_distance, plain.arrays, changed.arrays)):
            return False
        return any(
            _distance(one, moved) > max(_MATERIAL * _distance(one, drawn), _REPEATS * _distance(one, same))
            for one, moved, same, drawn in zip(
                *(training.arrays for training in (plain, changed, self.again(), self.again(501))), strict=False
            )
        )

    def others_join(self, change: Mapping[str, int]) -> bool:
        """Return whether a change lets others join, who do not join by themselves."""
        return _joined_records(self.again(**change)) != _joined_records(self.usual) == _joined_records(self.again())


def _distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the distance between two arrays; 0 if it is no more than rounding."""
    if one.shape != other.shape:
        return math.inf
    a, b = one.astype(np.float64), other.astype(np.float64)
    distance = float(np.linalg.norm(a - b))
    return distance if distance > _ROUNDING * float(np.linalg.norm(a)) else 0.0


def _joined_records(training: WatchedTraining) -> list[list[int]]:
    return [sorted(step.joined.tolist()) for step in training.steps]


def _seeds_text(seeds: tuple[int, ...]) -> str:
    return ", ".join(
        str(seed) if bits(seed) <= GUESSABLE else f"{seed}, of which torch takes the last {ON_CPU} bits on a CPU"
        for seed in dict.fromkeys(seeds[:3])
    )


class TheirApp(AuditedApp):
    """An app, some of its records, and the model that it is sent: a `Subject`."""

    said: ClassVar[Mapping[str, Said]] = {
        "release": Said(
            proves="Nothing leaves the client that depends on a record, but for arrays that carry noise.",
            assumes="The neighbouring shards that were tried stand for all others. How long a training takes is not "
            "judged.",
        ),
        "replay": Said(
            proves="One record changes the sum of a step by at most one clipping norm.",
            assumes="Crafted records and the first model stand for all others; sums are divided by what `divisor` "
            "says.",
        ),
        "noise": Said(
            proves="Every sum carries Gaussian noise of at least the claimed size in every layer, drawn "
            "anew each time.",
            assumes="What is random beside the noise, such as dropout, counts as noise. Noise in floating point can be "
            "told from its last bits by who sees them (Mironov 2012); this is not judged.",
        ),
        "sampling": Said(
            proves="Each record joins each step with the claimed sampling rate, independently.",
            assumes="Whoever is fetched for a step joins it, and nobody else does.",
        ),
    }

    neighbours = app_neighbours.neighbours
    changes = app_neighbours.changes
    why = app_neighbours.why
    noise = app_draws.noise
    samples = app_draws.samples


GATES: dict[str, Callable[[TheirApp], Gate]] = {
    "release": four_claims.release,
    "replay": four_claims.replay,
    "noise": four_claims.noise,
    "sampling": four_claims.sampling,
    "accounting": accounting,
    "randomness": randomness,
}
"""Gates by name, in the order in which they run."""


def audit_app(
    make: Maker,
    name: str,
    *,
    effort: Effort = Effort.QUICK,
    seed: int | None = None,
    tell: Callable[[str], None] = lambda doing: None,
) -> Findings:
    """Audit an app.

    Args:
        make: the app, anew; see `load_app`.
        name: what it is called.
        effort: how long it may take.
        seed: of what the audit draws; None: nobody knows before what will be asked.
        tell: is told what is done next.

    Raises:
        AppError: the app cannot be audited: it fails, or does not do as it is asked.
    """
    audited = TheirApp(make, name, effort, audit_seed(seed))
    gates = []
    with as_it_was(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NaN records, and of what libraries say each time that they are called
        audited.check()
        for gate, check in GATES.items():
            tell(gate)
            gates.append(check(audited))
        stated = shown(audited, audited.app.rounds).epsilon
    return Findings(
        subject=f"app {name}",
        seed=audited.seed,
        gates=tuple(gates),
        epsilon_upper=stated if math.isfinite(stated) else math.inf,
        delta=audited.app.delta,
    )
