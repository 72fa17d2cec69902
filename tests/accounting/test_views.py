"""Two views, two accounts: each with the right number, and no way from one into the other."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable

import numpy as np
import pytest

from fedprivacy.accounting import UNLIMITED, noise_multiplier, pld
from fedprivacy.accounting.views import Epsilon, MeaningsDiffer, UserLevelAccount, View, reading
from fedprivacy.ledger.charges import SERVER_VIEW
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

DELTA = 1e-5
ADD_OR_REMOVE, ZERO_OUT = NeighbouringRelation.ADD_OR_REMOVE_ONE, NeighbouringRelation.ZERO_OUT
EVENT = PoissonSampledGaussian(0.01, 1.0)


def account_of(*recorded: tuple[float, float, int]) -> UserLevelAccount:
    account = UserLevelAccount()
    for q, sigma, rounds in recorded:
        account.record(q, sigma, rounds)
    return account


def epsilon(value: float, view: View = View.SERVER, delta: float = DELTA, relation: NeighbouringRelation = ZERO_OUT):
    return Epsilon(value, delta, view, relation)


# --- values ---------------------------------------------------------------------------------------------------------


def test_the_user_level_epsilon_is_that_of_a_sample_of_clients() -> None:
    rounds = [(0.05, 0.8, 1)] * 3 + [(0.2, 1.5, 30), (0.05, 0.8, 47)]
    history = {PoissonSampledGaussian(0.05, 0.8): 50, PoissonSampledGaussian(0.2, 1.5): 30}
    assert account_of(*rounds).rounds == 80
    assert account_of(*rounds).epsilon(DELTA).value == pld.epsilon(history, DELTA)
    assert account_of().epsilon(DELTA).value == 0.0


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_the_server_s_reading_is_the_pld_s(delta: float) -> None:
    history = {EVENT: 1_000, PoissonSampledGaussian(0.1, 2.0): 10}
    assert reading(history, delta) == Epsilon(pld.epsilon(history, delta), delta, View.SERVER, ADD_OR_REMOVE, "PLD")
    assert reading({EVENT: 0, PoissonSampledGaussian(0.01, 1.0, ZERO_OUT): 5}, delta).relation is ZERO_OUT
    assert reading({}, delta, ZERO_OUT) == Epsilon(0.0, delta, View.SERVER, ZERO_OUT)


# --- the guarantee, against the mechanism itself --------------------------------------------------------------------


def exact_delta(updates: list[float], one_more: float, q: float, sigma: float, divide: Callable[[int], float]) -> float:
    """Exact delta of a round at the account's epsilon, for C = 1: every sample of clients is a Gaussian of a mixture.

    The larger of both directions, between a federation of clients with these updates and one with one client more.
    """
    x = np.linspace(-30.0, 30.0, 60_001)
    without, with_it = (_density(x, federation, q, sigma, divide) for federation in (updates, [*updates, one_more]))
    bound = math.exp(account_of((q, sigma, 1)).epsilon(DELTA).value)
    pairs = ((without, with_it), (with_it, without))
    return max(float(np.maximum(p - bound * other, 0.0).sum() * (x[1] - x[0])) for p, other in pairs)


def _density(x: np.ndarray, updates: list[float], q: float, sigma: float, divide: Callable[[int], float]) -> np.ndarray:
    density = np.zeros_like(x)
    for joined in itertools.product([False, True], repeat=len(updates)):
        chance = math.prod(q if joins else 1.0 - q for joins in joined)
        divisor = divide(sum(joined))
        mean, deviation = sum(itertools.compress(updates, joined)) / divisor, sigma / divisor
        density += chance * np.exp(-(((x - mean) / deviation) ** 2) / 2.0) / (deviation * math.sqrt(2.0 * math.pi))
    return density


@pytest.mark.parametrize("updates", [[], [0.0] * 4, [1.0, -1.0, 0.3], [1.0] * 4])
@pytest.mark.parametrize("one_more", [1.0, -1.0, 0.4])
def test_a_round_that_keeps_the_conditions_keeps_the_epsilon(updates: list[float], one_more: float) -> None:
    assert exact_delta(updates, one_more, 0.3, 1.2, divide=lambda joined: 1.5) <= DELTA


def test_the_epsilon_is_tight_and_without_a_condition_of_its_guarantee_it_does_not_hold() -> None:
    """The worst federation, one client against none, spends all but what the grid of the PLD costs.

    If the divisor counts who joined, the deviation of the average tells how many there were, even if an update is 0.
    """
    assert exact_delta([], 1.0, 0.3, 1.2, divide=lambda joined: 1.5) > 0.99 * DELTA
    assert exact_delta([], 1.5, 0.3, 1.2, divide=lambda joined: 1.5) > 10 * DELTA  # an update that is not clipped
    assert exact_delta([0.0] * 4, 0.0, 1.0, 5.0, divide=lambda joined: max(joined, 1)) > 100 * DELTA
    assert exact_delta([0.0] * 4, 0.0, 1.0, 5.0, divide=lambda joined: 4.0) == 0.0


# --- planning -------------------------------------------------------------------------------------------------------


def test_rounds_and_noise_are_planned_for_what_earlier_rounds_left() -> None:
    past, budget = (0.05, 0.9, 20), PrivacyBudget(4.0, DELTA)
    account = account_of(past)
    left, noise = account.rounds_left(budget, 0.1, 1.0), account.noise_multiplier(budget, 0.1, 100)
    assert account.epsilon(DELTA) == account_of(past).epsilon(DELTA)  # to ask charges nothing
    within, beyond = (account_of(past, (0.1, 1.0, n)).epsilon(DELTA).value for n in (left, left + 1))
    assert 0.0 < within <= budget.epsilon < beyond
    assert 0.999 * 4.0 <= account_of(past, (0.1, noise, 100)).epsilon(DELTA).value <= 4.0
    assert noise > noise_multiplier(budget, 0.1, 100) == UserLevelAccount().noise_multiplier(budget, 0.1, 100)
    assert account.rounds_left(PrivacyBudget(0.1, DELTA), 0.1, 1.0) == 0
    with pytest.raises(ValueError, match=r"user-level account .* the past alone has spent .* larger epsilon"):
        account.noise_multiplier(PrivacyBudget(0.1, DELTA), 0.1, 10)
    with pytest.raises(ValueError, match=r"client_sampling_rate is 1\.1"):
        account.rounds_left(budget, 1.1, 1.0)
    assert account.rounds_left(PrivacyBudget(math.inf, DELTA), 0.1, 1.0) == UNLIMITED


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (epsilon(1.0, View.USER_LEVEL), r"different views \(server, user-level\): .* side by side"),
        (epsilon(1.0, delta=1e-6), r"different deltas \(1e-05, 1e-06\): .* at the same one"),
        (
            epsilon(1.0, relation=ADD_OR_REMOVE),
            r"different relations \(zero-out, add-or-remove-one\): .* each relation",
        ),
        (2.0, "compared with 2.0, which states neither delta nor view; compare its value"),
    ],
    ids=["view", "delta", "relation", "number"],
)
def test_epsilons_are_ordered_where_they_mean_the_same(other: object, message: str) -> None:
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(MeaningsDiffer, match=message):
            compare(epsilon(1.0), other)
        for value in (0.5, 1.0, math.inf):
            assert compare(epsilon(1.0), Epsilon(value, DELTA, View.SERVER, ZERO_OUT, "RDP")) is compare(1.0, value)


def test_a_record_s_loss_and_a_client_s_cannot_be_put_into_one_number() -> None:
    server, user = epsilon(1.0), epsilon(1.0, View.USER_LEVEL)
    assert server != user and len({server, user, epsilon(1.0)}) == 2
    for mix in (operator.add, operator.sub, operator.mul, math.dist, max):
        with pytest.raises(TypeError):
            mix(server, user)
    for into in (sum, math.fsum, np.sum, np.max):
        with pytest.raises(TypeError):
            into([server, user])


def test_an_epsilon_is_no_number_and_not_below_0() -> None:
    for use in (float, math.exp, lambda e: e + 1.0, lambda e: 1.0 + e, operator.neg, lambda e: f"{e:.2f}"):
        with pytest.raises(TypeError):
            use(epsilon(1.0))
    for bad in (math.nan, -1e-9):
        with pytest.raises(ValueError, match="at least 0"):
            epsilon(bad)
    for ask in (UserLevelAccount().epsilon, lambda delta: epsilon(1.0, delta=delta)):
        with pytest.raises(ValueError, match=r"delta is 1.0; choose a probability"):
            ask(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0), r"client_sampling_rate is 0.0; choose a probability in \(0, 1\]"),
        ((50, 1.0), "client_sampling_rate is 50; .* over the number of all clients"),
        ((0.1, math.inf), "noise_multiplier is inf; choose a positive"),
        ((0.1, 1.0, 2.5), "rounds is 2.5; choose an integer of at least 1"),
    ],
)
def test_an_impossible_round_is_refused_and_not_charged(arguments: tuple[float, ...], message: str) -> None:
    account = account_of((0.1, 1.0, 3))
    with pytest.raises(ValueError, match=message):
        account.record(*arguments)  # type: ignore[arg-type]
    assert account.rounds == 3


# --- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.8261, "1.83"), (2.9912, "3.00"), (0.0012301, "0.00124"), (12.31, "12.4"), (1234.5, "1240"), (math.inf, "∞")],
)
def test_an_epsilon_is_written_with_all_that_it_means_and_never_rounded_down(value: float, text: str) -> None:
    wanted = f"epsilon {text} at delta 1e-05 (PLD; one client, zero-out, user-level view)"
    assert str(epsilon(value, View.USER_LEVEL)) == wanted == f"{epsilon(value, View.USER_LEVEL)}"
    by_rdp = Epsilon(value, DELTA, View.SERVER, ADD_OR_REMOVE, "RDP")
    assert "even against the server" in View.SERVER.guarantee and View.USER_LEVEL.conditions
    assert str(by_rdp) == f"epsilon {text} at delta 1e-05 (RDP; one record, add-or-remove-one, server view)"


def test_the_ledger_files_the_server_s_view() -> None:
    """A string there: an import from here would make every command that opens a ledger wait for scipy."""
    assert View(SERVER_VIEW) is View.SERVER
