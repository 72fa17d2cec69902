"""An audit of an app: every gate on training code that somebody else wrote, and the epsilon that it shows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import ClassVar

from fedprivacy.audit.apps import app_changes, app_draws, app_gates, app_leaks
from fedprivacy.audit.apps.adapter import Maker
from fedprivacy.audit.apps.audited_app import AuditedApp
from fedprivacy.audit.apps.watched_training import as_it_was
from fedprivacy.audit.findings import Findings, Gate
from fedprivacy.audit.gates import four_claims
from fedprivacy.audit.gates.gate import Said
from fedprivacy.audit.subject import Effort, drawn


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

    neighbours = app_leaks.neighbours
    changes = app_changes.changes
    why = app_changes.why
    noise = app_draws.noise
    samples = app_draws.samples


GATES: dict[str, Callable[[TheirApp], Gate]] = {
    "release": four_claims.release,
    "replay": four_claims.replay,
    "noise": four_claims.noise,
    "sampling": four_claims.sampling,
    "accounting": app_gates.accounting,
    "randomness": app_gates.randomness,
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
    audited = TheirApp(make, name, effort, drawn(seed))
    gates = []
    with as_it_was(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NaN records, and of what libraries say each time that they are called
        audited.check()
        for gate, check in GATES.items():
            tell(gate)
            gates.append(check(audited))
        stated = app_gates.shown(audited, audited.app.rounds).epsilon
    return Findings(
        subject=f"app {name}",
        seed=audited.seed,
        gates=tuple(gates),
        epsilon_upper=stated if math.isfinite(stated) else math.inf,
        delta=audited.app.delta,
    )
