"""An audit: every gate, and every attack, on the client that a run would ask."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from fedprivacy.audit.asking import NoUpdateError
from fedprivacy.audit.findings import Findings, Gate
from fedprivacy.audit.gates import invariance, ledger, noise, release, replay, sampling
from fedprivacy.audit.gates.audited import Audited, Check, Effort
from fedprivacy.audit.lower_bounds import lower_bounds
from fedprivacy.audit.observed import AuditedTraining
from fedprivacy.audit.silence import silence
from fedprivacy.runs.plan import RunPlan

GATES: dict[str, Check] = {
    "release": release.check,
    "replay": replay.check,
    "noise": noise.check,
    "sampling": sampling.check,
    "invariance": invariance.check,
    "ledger": ledger.check,
}
"""By name, in the order in which they run."""

CONFIDENCE = 0.9999
"""That all lower bounds of an audit hold: one that is above what is stated is then a bug, and no accident."""

_UNANSWERED = Gate(
    name="attacks",
    proves="The client that runs can be attacked.",
    passed=False,
    statistic=0.0,
    p_value=None,
    assumptions="Nothing else is assumed.",
    reasons=("The client sent no update when it was attacked: no attack could show how much is lost.",),
)
"""That a client does not answer must not pass for an attack that found nothing."""


def audit(
    plan: RunPlan,
    run: Path | None = None,
    *,
    effort: Effort = Effort.QUICK,
    seed: int | None = None,
    tell: Callable[[str], None] = lambda doing: None,
) -> Findings:
    """Audit the training that a plan would grant its clients; of a finished run, what its folder says as well.

    Args:
        plan: task and settings.
        run: the folder of a finished run; None: there is none.
        effort: how long it may take.
        seed: of what the auditor draws; None: nobody knows before what will be asked.
        tell: is told what is done next.

    Raises:
        RunFolderError: the folder holds no run.
        TaskError: the task has no records to audit with.
    """
    seed = secrets.randbelow(2**31) if seed is None else seed
    audited = Audited.of(plan, effort=effort, seed=seed)
    with silence():
        gates = [*_gates(audited, run, tell)]
        tell("attacks")
        try:
            bounds = lower_bounds(
                plan.task, audited.shard, _training(audited), seed=seed, confidence=CONFIDENCE, device=audited.device
            )
        except NoUpdateError:
            gates.append(_UNANSWERED)
            bounds = ()
    return Findings(
        subject=f"task {plan.config.task}" if run is None else f"run {run.name}",
        seed=seed,
        gates=tuple(gates),
        lower_bounds=bounds,
        epsilon_upper=audited.claim.epsilon,
        delta=audited.claim.delta,
    )


def _gates(audited: Audited, run: Path | None, tell: Callable[[str], None]) -> Iterator[Gate]:
    for name, check in GATES.items():
        tell(name)
        yield check(audited)
    if run is not None:
        tell("the run's own figures")
        yield ledger.check_run(run)


def _training(audited: Audited) -> AuditedTraining:
    """The whole of the run, for attacks."""
    grant = audited.grant
    return AuditedTraining(
        event=grant.event,
        steps=grant.steps * audited.claim.rounds,
        delta=audited.claim.delta,
        clipping_norm=grant.clipping_norm,
        clipping=grant.clipping,
        expected_batch_size=grant.expected_batch_size,
    )
