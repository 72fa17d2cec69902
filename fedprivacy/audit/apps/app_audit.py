"""An audit of an app: every gate on training code that somebody else wrote, and the epsilon that it shows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from fedprivacy.audit.apps import guessable_seeds, shown_epsilon
from fedprivacy.audit.apps.app_subject import TheirApp
from fedprivacy.audit.apps.loading import Maker
from fedprivacy.audit.apps.watched_training import as_it_was
from fedprivacy.audit.findings import Findings, Gate
from fedprivacy.audit.gates import leaks, noise_added, one_record, samples_drawn
from fedprivacy.audit.subject import Effort, drawn

GATES: dict[str, Callable[[TheirApp], Gate]] = {
    "release": leaks.check,
    "replay": one_record.check,
    "noise": noise_added.check,
    "sampling": samples_drawn.check,
    "accounting": shown_epsilon.check,
    "randomness": guessable_seeds.check,
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
        stated = shown_epsilon.shown(audited, audited.app.rounds).epsilon
    return Findings(
        subject=f"app {name}",
        seed=audited.seed,
        gates=tuple(gates),
        epsilon_upper=stated if math.isfinite(stated) else math.inf,
        delta=audited.app.delta,
    )
