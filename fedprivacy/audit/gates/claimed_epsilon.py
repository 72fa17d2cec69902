"""Ledger: epsilon, recomputed from what was executed, against what is said.

Of a client, steps are counted in the noise that left it, held against its receipts, and composed anew; the gates
`noise` and `sampling` hold noise and rate against what it was granted. Of a finished run, every figure in its folder is
recomputed, round by round.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from fedprivacy.accounting import pld
from fedprivacy.audit.findings import Gate
from fedprivacy.audit.gates import TOLERANCE, Alarms, Judged, gate, p_value_of_variance, too_low, verdict
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.our_client.probes import Known, shard_of, zeros_for
from fedprivacy.flower.wire.messages import Receipt
from fedprivacy.ledger import Ledger
from fedprivacy.runs.records.folder import CLIENT_TERMS, ledger_of, read_history, read_run_id
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.settings.client_terms import Terms, client_terms_of
from fedprivacy.values.events import History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.spent import ClientSpent, reason_of

PROVES = "Every client lost as much privacy as is said, by what was executed, and not more."
"""Statement that the gate proves, about a client and about a run."""

_LITTLE = 1e-3
"""A noise multiplier whose noise is shrunk by nothing that comes after it."""

_COORDINATES = 20_000
"""Number of coordinates in which the noise of a grant's steps is measured."""


@gate("ledger", proves=PROVES, assumes="Every round is executed as the one that was asked; the accountant is right.")
def check(audited: Audited) -> Judged:
    """Check whether a client executes what it is granted and says so, and the claim is what that costs."""
    alarms = Alarms()
    receipt = _steps(audited, alarms)
    claim = audited.claim
    trained = receipt.steps - audited.grant.local_evaluation
    spent = pld.epsilon({receipt.event: trained * claim.rounds + claim.evaluations}, claim.delta)
    alarms.must(
        not too_low(claim.epsilon, spent),
        f"An epsilon of {claim.epsilon:.3g} is claimed; what the client executes in {claim.rounds} rounds of "
        f"{trained} steps, at a sampling rate of {receipt.sampling_rate:.3g}, costs {spent:.3g}.",
    )
    return Judged(spent, alarms.reasons, alarms.p_value)


def _steps(audited: Audited, alarms: Alarms) -> Receipt:
    """Count the steps of a grant by the noise that they left, and hold them against its receipt."""
    task = Known.like(audited, [_COORDINATES])
    client = audited.client_of(task, shard_of(torch.zeros(0, _COORDINATES)))
    receipt = client.answer(audited.grant, zeros_for(task)).receipt
    granted = client.for_own_unit(audited.grant)
    alarms.must(receipt.matches(granted), "A client's receipt says something else than it was granted.")
    if audited.grant.adaptive is not None:  # whose noise changes from step to step
        return receipt
    each = _LITTLE * audited.deviation / audited.grant.noise_multiplier
    for asked in dict.fromkeys((audited.grant.steps, 4)):
        grant = audited.asking(steps=asked, noise_multiplier=_LITTLE, learning_rate=audited.grant.expected_batch_size)
        answer = client.answer(grant, zeros_for(task))
        noise, steps = answer.flat / each, answer.receipt.steps
        alarms.test(
            p_value_of_variance(noise / math.sqrt(steps)),
            f"A client says that it took {steps} steps, and left the noise of {np.square(noise).mean():.2g}.",
        )
    return receipt


def check_run(folder: Path) -> Gate:
    """Check whether every figure in a finished run's folder is what the executed steps cost.

    Raises:
        RunFolderError: the folder holds no run.
        LedgerError: its ledger cannot be read.
    """
    history = read_history(folder)
    reasons: list[str] = []
    worst = 0.0
    if history.settings.get("privacy") is False or history.noise_multiplier == 0.0:
        reasons.append("This run trained without privacy: no epsilon bounds what left its clients.")
    else:
        reasons += _uncharged_rounds(history)
        for client, (executed, complaints) in _executed_histories(folder, history).items():
            reasons += complaints
            stated = history.last.spent[client]
            spent = pld.epsilon(executed, stated.delta)
            worst = max(worst, spent)
            if too_low(stated.epsilon, spent):
                reasons.append(
                    f"{client} is shown an epsilon of {stated.epsilon:.3g}; what it executed costs {spent:.3g} at "
                    f"delta {stated.delta:.2g}."
                )
    assumes = "The run's folder, and its ledger where it is at hand, are those that the run wrote."
    return verdict("run", PROVES, assumes, Judged(worst, reasons))


def _uncharged_rounds(history: RunHistory) -> list[str]:
    """Rounds in which a client trained and was charged too few steps, or figures that fell."""
    reasons = []
    before = history.start
    for now in history.rounds:
        asked = history.facts.schedule.steps_in(now.round)
        trained = [*now.participants, *(client for client, why in now.failures.items() if not reason_of(why).refused)]
        for client in trained:
            was, after = before.spent.get(client), now.spent[client]
            steps = after.steps - (was.steps if was else 0)
            if steps < asked and not (steps >= 1 and after.exhausted):
                reasons.append(f"{client} took part in round {now.round} with {asked} steps, and was charged {steps}.")
            if was and after.epsilon < was.epsilon * (1.0 - TOLERANCE):
                reasons.append(f"The epsilon that is shown for {client} fell in round {now.round}; it never can.")
        before = now
    return reasons


def _executed_histories(folder: Path, history: RunHistory) -> dict[str, tuple[History, list[str]]]:
    """Return what each client executed, by the run's ledger or else by its folder, and the contradictions in it."""
    terms = client_terms_of(str(folder / CLIENT_TERMS) if history.settings.get("client-terms") else "")
    stated = {client: _stated_event(terms.of(client), history, spent) for client, spent in history.last.spent.items()}
    own: dict[str, History] = {
        client: {stated[client]: spent.steps} if spent.steps else {} for client, spent in history.last.spent.items()
    }
    if not Ledger.exists(url := ledger_of(folder)):
        return {client: (executed, []) for client, executed in own.items()}
    ledger, run_id = Ledger(url, create=False), read_run_id(folder)
    # A dataset is named by its client behind the last slash.
    datasets = {name.rpartition("/")[2]: name for name in ledger.dataset_ids() if name.rpartition("/")[2] in own}
    accounts = ledger.accounts(list(datasets.values()))
    in_run = ledger.accounts_in_run(run_id, list(datasets.values())) if run_id else {}
    allowances = ledger.allowances(list(datasets.values()))
    found = {}
    for client, executed in own.items():
        dataset, shown = datasets.get(client, ""), history.last.spent[client]
        complaints = []
        if dataset in in_run:
            others = [event for event in in_run[dataset].history if not _costs_as_much(event, stated[client])]
            complaints += [f"{client} was charged for {event}, and trained with {stated[client]}." for event in others]
        if dataset in allowances and shown.delta != allowances[dataset].budget.delta:
            delta = allowances[dataset].budget.delta
            complaints.append(f"{client} is shown an epsilon at delta {shown.delta:.2g}; its budget is at {delta:.2g}.")
        charged = accounts[dataset].history if dataset in accounts else executed
        if sum(charged.values()) < sum(executed.values()):
            complaints.append(f"The ledger holds fewer steps of {client} than the run shows.")
        found[client] = (charged, complaints)
    return found


def _stated_event(own: Terms, history: RunHistory, spent: ClientSpent) -> PoissonSampledGaussian:
    """Return the event of a client's local step, by its own terms and the run's settings.

    If they give a batch size, the rate is the one that the run shows, and so is the noise that was found for that rate.
    """
    rate = own.sampling_rate
    if rate is None:
        sized = history.settings.get("batch-size") is not None
        rate = spent.sampling_rate if sized else float(history.settings["sampling-rate"])
    usual = spent.noise_multiplier if history.noise_multiplier is None else history.noise_multiplier
    noise = usual if own.noise_multiplier is None else own.noise_multiplier
    return PoissonSampledGaussian(rate, noise, NeighbouringRelation(history.relation))


def _costs_as_much(event: object, expected: PoissonSampledGaussian) -> bool:
    return isinstance(event, PoissonSampledGaussian) and (
        event.relation is expected.relation
        and math.isclose(event.sampling_rate, expected.sampling_rate, rel_tol=1e-9)
        and math.isclose(event.noise_multiplier, expected.noise_multiplier, rel_tol=1e-9)
    )
