"""Forecasts: the rounds that a client's budget still allows at another noise multiplier."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from fastapi import HTTPException

from fedprivacy.accounting import FILTERS, MechanismChanged, step_quota
from fedprivacy.accounting.calibration import LEAST_NOISE, MOST_NOISE
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import Executed
from fedprivacy.accounting.shortage import shortage
from fedprivacy.dashboard import models
from fedprivacy.dashboard.lookup import client_of
from fedprivacy.ledger import Allowance
from fedprivacy.runs.records.store import ClientQuery, StoredRun
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.columns import rounds_left
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.nulls import finite_or_none
from fedprivacy.values.series import RunFacts
from fedprivacy.values.spent import ClientStanding, ClientState
from fedprivacy.values.wording import budget_text, count_text, epsilon_text

POINTS = 13
"""Number of noise multipliers in the figure, from half the client's to twice it."""


def forecast(run: StoredRun, client_id: str, noise_multiplier: float) -> models.Forecast:
    """Compute the steps that a client's budget still allows at a noise multiplier of further steps; see `_account`."""
    client, past, allowance = _account(run, client_id)
    budget, epsilon, own = allowance.budget, client.spent.epsilon, client.spent.noise_multiplier
    return models.Forecast(
        client_id=client.client_id,
        epsilon=finite_or_none(epsilon),
        epsilon_text=epsilon_text(epsilon, budget.epsilon),
        budget=finite_or_none(budget.epsilon),
        budget_text=budget_text(budget.epsilon) if budget.enforced else "none",
        filter=allowance.filter,
        delta=budget.delta,
        noise_multiplier=own,
        rounds_left=_asked(run.facts, past, allowance, _event(run, client, own)).rounds_left,
        asked=_asked(run.facts, past, allowance, _event(run, client, noise_multiplier)),
    )


def rounds_by_noise(run: StoredRun, client_id: str) -> tuple[list[tuple[float, int]], str]:
    """Compute the rounds left at noise multipliers around the client's, which is the middle one; and name the client.

    Raises:
        HTTPException: 404, no such client; 409, no client yet, or one without a budget.
    """
    client, past, allowance = _account(run, client_id)
    if not allowance.budget.enforced:
        raise HTTPException(409, "This client has no budget, so nothing limits its rounds.")
    own = client.spent.noise_multiplier
    sigmas = np.clip(own * np.geomspace(0.5, 2.0, POINTS), LEAST_NOISE, MOST_NOISE).tolist()
    sigmas[POINTS // 2] = own  # exactly, because a nearby value would be another mechanism
    events = [_event(run, client, sigma) for sigma in sigmas]
    rounds = [_asked(run.facts, past, allowance, event).rounds_left or 0 for event in events]
    return list(zip(sigmas, rounds, strict=True)), client.client_id


def _account(run: StoredRun, client_id: str) -> tuple[ClientStanding, Executed, Allowance]:
    """Return a client, its dataset's charges, and its allowance.

    If none is named, it is the client that is exhausted next, or if none is active the one that spent most.

    Raises:
        HTTPException: 404, no such client; 409, no client yet, or one without an allowance, or a run without privacy.
    """
    if not run.facts.private:
        raise HTTPException(409, "A baseline has no privacy: nothing is charged, and no noise multiplier limits it.")
    client = client_of(run, client_id) if client_id else _next_out(run)
    history, allowance = run.account(client.client_id)
    if allowance is None:
        raise HTTPException(409, "The ledger holds no budget of this client.")
    return client, frozenset(history.items()), allowance


def _next_out(run: StoredRun) -> ClientStanding:
    soonest = ClientQuery(sort="steps_left", descending=False, state=ClientState.ACTIVE, limit=1)
    for query in (soonest, ClientQuery(limit=1)):
        for client in run.clients(query)[1]:
            return client
    raise HTTPException(409, "No client has an account in this run yet.")


def _event(run: StoredRun, client: ClientStanding, noise_multiplier: float) -> PoissonSampledGaussian:
    relation = NeighbouringRelation(run.facts.relation)
    return PoissonSampledGaussian(client.spent.sampling_rate, noise_multiplier, relation)


def _asked(facts: RunFacts, past: Executed, allowance: Allowance, event: PoissonSampledGaussian) -> models.AskedBody:
    steps, rounds, allowed = None, None, True
    if not allowance.budget.enforced:
        words = "No budget is set, so nothing limits the rounds."
    elif allowance.expired:
        steps, rounds, words = 0, 0, "The budget has expired: nothing is granted any more."
    else:
        steps, allowed = _steps_left(past, event, allowance.filter, allowance.budget)
        rounds = rounds_left(steps, facts)
        words = _words(rounds, allowed=allowed)
        if allowed and rounds == 0:
            words = shortage(filter_of(allowance), dict(past), event, facts.local_steps)
    sigma = event.noise_multiplier
    return models.AskedBody(noise_multiplier=sigma, steps_left=steps, rounds_left=rounds, allowed=allowed, words=words)


def _words(rounds: int, *, allowed: bool) -> str:
    if allowed:
        return f"The budget still allows {count_text(rounds, 'round')} at this noise multiplier."
    if rounds == 0:
        return "Not one more round would stay within the budget, at this noise multiplier either."
    return (
        f"By composition, {count_text(rounds, 'more round')} would stay within the budget. The ledger's filter for "
        "this client, fixed-mechanism, keeps its guarantee for one noise multiplier only and would refuse another: "
        "such a run needs filter = adaptive from the client's first round on, which grants fewer."
    )


@lru_cache(maxsize=4096)
def _steps_left(past: Executed, event: PoissonSampledGaussian, filter: str, budget: PrivacyBudget) -> tuple[int, bool]:
    """Return the steps that the filter grants; if it refuses the event, those that a plan made beforehand could have
    taken.

    Returns:
        The steps, and whether the filter takes the event.
    """
    try:
        return FILTERS[filter](budget).quota(dict(past), event), True
    except MechanismChanged:
        return step_quota(event, budget, dict(past)), False
