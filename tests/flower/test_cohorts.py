"""A population that trains together: who is charged, who fails, and which strategies and models it goes with.

Its runs are those of messages: tests/flower/test_every_way.py.
"""

import math
from itertools import combinations

import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx

from fedprivacy.flower import RoundFailedError
from fedprivacy.flower.server.wrapped import averages
from fedprivacy.flower.simulated.populations import CohortUpdate, Population
from fedprivacy.flower.wire.payloads import LARGEST, ArraysError, Form, checked_arrays
from fedprivacy.gradients.stacked import Stack
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.training import cohort
from fedprivacy.training.cohort import Portion
from fedprivacy.values.attempt import Attempt
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.runs import SAMPLING, model_of, order_of, run_together


def test_charges_come_first_and_stand_in_a_ledger_that_proves_itself(tmp_path, monkeypatch):
    """A crash in training can only over-count."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    plan = plan_of(BLOBS, clients=4, ledger=url)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Population, "train", crash)
    with pytest.raises(KeyboardInterrupt):
        run_together(plan)
    monkeypatch.undo()
    ledger = Ledger(url)
    assert [account.rounds for account in ledger.accounts([f"blobs/client-{i}" for i in range(4)]).values()] == [1] * 4
    monkeypatch.setattr(Population, "train", lambda *_: CohortUpdate())
    run_together(plan)  # nobody answers
    states = [charge.state for charge in verify_ledger(ledger).replay.charges.values()]
    assert set(states) == {"reserved"} and len(states) >= 8


@pytest.mark.exhaustive
def test_clients_that_fail_together_leave_the_others_their_round(monkeypatch):
    clip, calls = Stack.clip, []

    def failing(self, *given):
        calls.append(given)
        return 1 / 0 if len(calls) == 1 else clip(self, *given)

    monkeypatch.setattr(cohort, "_MOST_TOGETHER", 2)
    monkeypatch.setattr(Stack, "clip", failing)
    one, *_ = run_together(plan_of(BLOBS, clients=4)).records
    assert one.failures == {f"client-{part}": "client-failed" for part in (0, 1)}
    assert one.participants == ("client-2", "client-3")
    assert one.unreconciled == ("client-0", "client-1")
    assert all(spent.rounds == 1 for spent in one.spent.values())


def test_an_update_that_is_not_finite_is_dropped_and_a_strategy_that_looks_at_each_gets_its_messages():
    """The learning rate carries every update beyond float32: nothing is left to be averaged, and the run says so."""
    with pytest.raises(RoundFailedError, match="not-finite"):
        run_together(plan_of(BLOBS, clients=3, learning_rate=1e30, optimizer="sgd"))

    class Mine(FedAvg):
        pass

    averaging = (FedAvg(), FedProx(proximal_mu=0.5), FedAvgM(server_momentum=0.5), FedAdam(eta=0.1))
    assert all(map(averages, averaging))
    assert not averages(FedMedian(**SAMPLING)) and not averages(Mine(**SAMPLING))
    with pytest.raises(AssertionError, match="sends no messages"):
        run_together(plan_of(BLOBS, clients=3), Mine(**SAMPLING))


@pytest.mark.parametrize("value", [0.0, LARGEST, 2 * LARGEST, math.inf, math.nan])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_update_that_a_message_is_refused_for_counts_in_no_cohort_and_any_other_does(value, sign):
    rows, update = torch.ones(3, 2, dtype=torch.float64), CohortUpdate()
    rows[1, 1] = sign * value
    update.add(range(3), [order_of(part) for part in range(3)], Portion([0, 1, 2], rows, [1.0] * 3))
    try:
        checked_arrays(ArrayRecord({"update": Array(rows[1].numpy())}), {"update": Form((2,), rows.numpy().dtype)})
    except ArraysError:
        assert update.failures == {"client-1": "not-finite"} and update.mean().tolist() == [1.0, 1.0]
    else:
        assert not update.failures and update.mean()[1] == pytest.approx((2 + sign * value) / 3)
    assert (not update.failures) == (value <= LARGEST)


def test_another_attempt_draws_other_noise():
    """Catches: a run without a seed in which the same attempt draws the same noise."""
    arrays = ArrayRecord(BLOBS.model().state_dict())
    plans = [plan_of(BLOBS, clients=1, seed=seed) for seed in (1, None)]
    (one, again, other), secret = (
        [
            Population(BLOBS, plan.config).train([order_of(0)], arrays, Attempt("run", 1, number), 0, 0.0).mean()
            for number in (1, 1, 2)
        ]
        for plan in plans
    )
    assert torch.equal(one, again) and not torch.any(one == other)
    alike = [int((drawn == later).sum()) for drawn, later in combinations([one, *secret], 2)]
    assert max(alike) <= 1  # of six numbers on a lattice, one is equal by chance in 3,000 runs


def test_two_runs_on_one_ledger_share_no_noise():
    plan = plan_of(BLOBS, clients=3, rounds=1, noise_multiplier=2.0, ledger="sqlite:///ledger.db")
    one, other = (model_of(run_together(plan)) for _ in range(2))
    assert not torch.equal(one, other)


def test_a_first_model_of_another_task_is_refused_before_anybody_is_charged():
    plan = plan_of(BLOBS, clients=3, ledger="sqlite:///ledger.db")
    own = BLOBS.model().state_dict()
    with pytest.raises(ValueError, match="'more' is in one of them alone"):
        run_together(plan, run_id="run", initial_arrays=ArrayRecord(own | {"more": own["bias"]}))
    assert not Ledger("sqlite:///ledger.db").reserved("run")
