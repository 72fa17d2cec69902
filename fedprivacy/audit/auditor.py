"""An audit: every gate, and every attack, on the client that a run would ask."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedprivacy._support.discretion import hushed, kind_and_place
from fedprivacy.audit.findings import Findings, Gate, LowerBound
from fedprivacy.audit.gates import claimed_epsilon, four_claims, host_duties, host_records, invariance, local_evaluation
from fedprivacy.audit.gates.gate import Judged, verdict
from fedprivacy.audit.host import Host, Node
from fedprivacy.audit.lower_bounds import lower_bounds
from fedprivacy.audit.our_client import OurClient
from fedprivacy.audit.our_client.audited_client import Audited, Parameters
from fedprivacy.audit.real_client import AuditedTraining, NoUpdateError
from fedprivacy.audit.subject import Effort, drawn
from fedprivacy.flower.simulated.engine import quiet_flower
from fedprivacy.gradients import trainable_parameters
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import MODEL, RunFolderError
from fedprivacy.tasks import Shard, Task
from fedprivacy.values.unit import unit_of

GATES: dict[str, Callable[[OurClient], Gate]] = {
    "release": four_claims.release,
    "replay": four_claims.replay,
    "noise": four_claims.noise,
    "sampling": four_claims.sampling,
    "invariance": invariance.check,
    "evaluation": local_evaluation.check,
    "ledger": claimed_epsilon.check,
}
"""Gates by name, in the order in which they run."""

NODE_GATES: dict[str, Callable[[Audited, Host], Gate]] = {
    "node": host_duties.check,
    "node-noise": host_records.check_noise,
    "reading": host_records.check_reading,
}
"""Gates of a deployed client, by name; they run first."""

CONFIDENCE = 0.9999
"""Probability that all lower bounds of an audit hold: one above the stated epsilon is then a bug, not an accident."""

_UNANSWERED = verdict(
    "attacks",
    "The client that runs can be attacked.",
    "Nothing else is assumed.",
    Judged(0.0, ["The client sent no update when it was attacked: no attack could show how much is lost."]),
)
"""Gate that fails if a client does not answer: silence must not pass for an attack that found nothing."""


class NodeAuditError(RuntimeError):
    """An audit of a host that could not be finished; says nothing of any record."""


def audit(
    plan: TrainingPlan,
    run: Path | None = None,
    *,
    effort: Effort = Effort.QUICK,
    seed: int | None = None,
    tell: Callable[[str], None] = lambda doing: None,
) -> Findings:
    """Audit the training that a plan would grant its clients; of a finished run, what its folder says as well.

    Args:
        plan: task and settings.
        run: the folder of a finished run, whose model is attacked, too; None: there is none.
        effort: how long it may take.
        seed: of what the auditor draws; None: nobody knows before what will be asked.
        tell: is told what is done next.

    Raises:
        RunFolderError: the folder holds no run, or the model of another task.
        TaskError: the task has no records to audit with.
    """
    trained = None if run is None else _trained(run, plan.task)
    audited = OurClient.of(plan, effort=effort, seed=drawn(seed))
    with silence():
        gates = [*_gates(audited, run, tell)]
        tell("attacks")
        bounds = _attacked(audited, audited.shard, gates, trained)
    return _found(f"task {plan.config.task}" if run is None else f"run {run.name}", audited, gates, bounds)


def audit_node(
    node: Node,
    plan: TrainingPlan,
    *,
    effort: Effort = Effort.QUICK,
    seed: int | None = None,
    tell: Callable[[str], None] = lambda doing: None,
) -> Findings:
    """Audit what a data owner's host would run: as it is deployed, and with the same task, shard and device, seeded.

    Formal guarantee: the owner's guard is neither read nor written, nothing is sent anywhere, and no number that is
    computed from the records without noise is in what is found, nor what the task prints, nor the text of an error. The
    number of records is in it only where the task makes it public.

    Args:
        node: the host's configuration.
        plan: of the run that it is audited for, as `Node.worst` or `Node.planned` makes it.
        effort: how long it may take.
        seed: of what the auditor draws; what the deployed client draws is secret.
        tell: is told what is done next.

    Raises:
        NodeAuditError: the task failed where no client would have answered for it.
    """
    try:
        with silence(), hushed():
            audited = replace(OurClient.of(plan, node.shard, effort=effort, seed=drawn(seed)), confidential=True)
            with Host.of(node) as host:
                gates = []
                for name, check in NODE_GATES.items():
                    tell(name)
                    gates.append(check(audited, host))
            gates += _gates(audited, None, tell)
            tell("attacks")
            bounds = _attacked(audited, None, gates)
    except Exception as error:  # whose text may hold values
        raise NodeAuditError(
            f"{node.file}: the audit could not be finished ({kind_and_place(error)}). What the error says may hold "
            "values and is not shown; 'fedprivacy audit --task' with the same task, on made-up records, shows it."
        ) from None
    return _found(f"node configuration {node.file} (task {node.word})", audited, gates, bounds)


def _attacked(
    audited: Audited, own: Shard | None, gates: list[Gate], trained: Parameters | None = None
) -> tuple[LowerBound, ...]:
    """Return what attacks showed: with a record of `own` and at a trained model, if there are any."""
    try:
        return lower_bounds(
            audited.task,
            own,
            _training(audited),
            seed=audited.seed,
            confidence=CONFIDENCE,
            device=audited.device,
            trained=trained,
        )
    except NoUpdateError:
        gates.append(_UNANSWERED)
        return ()


def _found(subject: str, audited: Audited, gates: list[Gate], bounds: tuple[LowerBound, ...]) -> Findings:
    return Findings(
        subject=subject,
        seed=audited.seed,
        gates=tuple(gates),
        lower_bounds=bounds,
        epsilon_upper=audited.claim.epsilon,
        delta=audited.claim.delta,
        unit=audited.grant.unit,
    )


def _gates(audited: OurClient, run: Path | None, tell: Callable[[str], None]) -> Iterator[Gate]:
    for name, check in GATES.items():
        tell(name)
        yield check(audited)
    if run is not None:
        tell("the run's own figures")
        yield claimed_epsilon.check_run(run)


def _trained(run: Path, task: Task) -> Parameters | None:
    """Return the final model of a run; None: it has left none.

    Raises:
        RunFolderError: the file holds no model, or that of another task.
    """
    if not (file := run / MODEL).exists():
        return None
    try:
        parameters = load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"'{file}' holds no model ({error}); put back an undamaged copy.") from error
    expected = {name: tuple(values.shape) for name, values in trainable_parameters(task.model()).items()}
    if {name: values.shape for name, values in parameters.items()} != expected:
        raise RunFolderError(f"'{file}' holds another model than its task makes now; audit with the task as it was.")
    return parameters


def _training(audited: Audited) -> AuditedTraining:
    """The whole of the run, for attacks."""
    grant = audited.grant
    return AuditedTraining(
        event=grant.event,
        steps=grant.training_steps * audited.claim.rounds,
        delta=audited.claim.delta,
        clipping_norm=grant.clipping_norm,
        clipping=grant.clipping,
        expected_batch_size=grant.expected_batch_size,
        unit=unit_of(audited.task),
        autocast=audited.autocast,
    )


@contextmanager
def silence() -> Iterator[None]:
    """Keep the logs of clients, servers and Flower to themselves: of a run that nobody started, and of refusals."""
    logger = logging.getLogger("fedprivacy")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with quiet_flower():
            yield
    finally:
        logger.setLevel(level)
