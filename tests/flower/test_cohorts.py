"""A population that trains together has the run that it would have by messages: model, accounts, books, failures."""

import random

import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx
from torch import nn

from fedprivacy.flower import InProcessGrid, PrivateStrategy, RoundFailedError, private_client
from fedprivacy.flower import simulation as engine
from fedprivacy.flower.client.cohort import CohortUpdate, Population
from fedprivacy.flower.client.orders import PrivateOrder
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.flower.server.cohorts import CohortRounds, averages
from fedprivacy.gradients.stacked import Stack
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.training import cohort
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import PoissonSampledGaussian

from .blobs import Blobs, plan_of

SAMPLING = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
STRATEGIES = {
    "fedavg": lambda: FedAvg(fraction_train=0.5, **SAMPLING),
    "fedprox": lambda: FedProx(proximal_mu=0.5, **SAMPLING),
    "fedavgm": lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.5, **SAMPLING),
    "fedadam": lambda: FedAdam(eta=0.1, **SAMPLING),
}

ENDING = {"noise_multiplier": 1.1, "epsilon": 2.0, "rounds": 6}
"""Of a run that ends where the budgets do, in the midst of a round."""


class Silent(InProcessGrid):
    """A grid that lets no message through."""

    def push_messages(self, messages):
        assert not list(messages), "a population sends no messages"
        return []


def run(plan, *, together, strategy=None, initial_arrays=None, **kwargs):
    """The finished strategy, with its records."""
    random.seed(0)  # by which Flower samples
    records = []
    wrapped = PrivateStrategy(strategy or FedAvg(**SAMPLING), plan, observers=[records.append], **kwargs)
    client, clients = private_client(plan.task, plan.config), plan.config.clients
    population = Population(plan.task, plan.config) if together else None
    grid = (Silent if together else InProcessGrid)(client, clients, {}, population=population)
    wrapped.start(grid, initial_arrays=initial_arrays)
    wrapped.records = records
    return wrapped


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def both(task=None, strategy="fedavg", **settings):
    """The same run by messages and together, each with a ledger of its own."""
    finished = []
    for together in (False, True):
        plan = plan_of(task or Blobs(), ledger=f"sqlite:///{together}.db", **settings)
        finished.append(run(plan, together=together, strategy=STRATEGIES[strategy]()))
    return finished


def model_of(wrapped):
    return torch.cat([values.flatten() for values in wrapped.result.arrays.to_torch_state_dict().values()])


def check_same(messages, together, tolerance=2e-6):
    assert (model_of(messages) - model_of(together)).abs().max() < tolerance
    for one, other in zip(messages.records, together.records, strict=True):
        assert one.participants == other.participants and one.failures == other.failures
        assert dict(one.spent) == dict(other.spent) and one.unreconciled == other.unreconciled


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_population_has_the_run_of_its_messages(strategy):
    check_same(*both(strategy=strategy, clients=9))


@pytest.mark.parametrize(
    "settings",
    [
        {"clipping": "adaptive"},
        {"clipping": "per-layer", "optimizer": "adam", "learning_rate": 0.05},
        {"batch_size": 8, "noise_multiplier": 1.5},
        {"batch_size": 8, "epsilon": 3.0},
        {"ema_decay": 0.5},
        ENDING,
        {"filter": "adaptive", "epsilon": 2.0},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_whatever_the_run_is_set_to(settings):
    messages, together = both(clients=6, **settings)
    check_same(messages, together)
    assert messages.result.stopped_because == together.result.stopped_because


def test_a_first_model_may_list_its_parameters_in_any_order():
    """Catches: an average that is cut into parameters by another order than that in which it was joined."""

    class Deep(Blobs):
        def model(self):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))

    backwards = ArrayRecord({n: Array(p.detach().numpy()) for n, p in reversed([*Deep().model().named_parameters()])})
    messages, together = (
        run(plan_of(Deep(), clients=3, ledger=f"sqlite:///{way}.db"), together=way, initial_arrays=backwards)
        for way in (False, True)
    )
    assert list(together.result.arrays) == list(backwards)
    check_same(messages, together)


@pytest.mark.parametrize("settings", [{}, {"clipping": "adaptive"}, ENDING], ids=["fixed", "adaptive", "ending"])
def test_a_run_that_was_stopped_in_a_round_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch, settings):
    """The round was charged and trained, and its average lost: it is trained again, for the same charge."""
    plan = plan_of(Blobs(), clients=4, ema_decay=0.5, ledger="sqlite:///whole.db", **settings)
    whole = run(plan, together=True)
    plan, folder = (
        plan_of(Blobs(), clients=4, ema_decay=0.5, ledger="sqlite:///stopped.db", **settings),
        tmp_path / "run",
    )
    folder.mkdir()
    average = CohortRounds.average

    def stopping(self, outcome):
        if outcome.opened.attempt.round == whole.records[-1].round:
            raise KeyboardInterrupt
        return average(self, outcome)

    monkeypatch.setattr(CohortRounds, "average", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(plan, together=True, checkpoints=folder)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    resumed = run(plan, together=True, checkpoints=folder, resume=load_checkpoint(folder))
    assert torch.equal(model_of(resumed), model_of(whole))
    assert dict(resumed.records[-1].spent) == dict(whole.records[-1].spent)
    assert not resumed.records[-1].unreconciled


def test_charges_come_first_and_stand_in_a_ledger_that_proves_itself(tmp_path, monkeypatch):
    """A crash in training can only over-count."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    plan = plan_of(Blobs(), clients=4, ledger=url)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Population, "train", crash)
    with pytest.raises(KeyboardInterrupt):
        run(plan, together=True)
    monkeypatch.undo()
    ledger = Ledger(url)
    assert [account.rounds for account in ledger.accounts([f"blobs/client-{i}" for i in range(4)]).values()] == [1] * 4
    monkeypatch.setattr(Population, "train", lambda *_: CohortUpdate())
    run(plan, together=True)  # nobody answers
    states = [charge.state for charge in verify_ledger(ledger).replay.charges.values()]
    assert set(states) == {"reserved"} and len(states) >= 8


class Convolved(Blobs):
    """Of a model that is not stacked."""

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 2, 2), nn.Flatten())


def test_models_that_are_not_stacked_have_the_same_run():
    check_same(*both(Convolved(), clients=5))


def test_a_client_that_fails_is_left_out_of_the_average_and_stays_charged(monkeypatch):
    train = DPSGD.train

    def failing(self, engine, shard, **given):
        return 1 / 0 if len(shard) == 32 else train(self, engine, shard, **given)

    monkeypatch.setattr(DPSGD, "train", failing)
    messages, together = both(Convolved(), clients=5)
    check_same(messages, together)
    failed = [record for record in together.records if record.failures]
    assert failed and all(record.failures == {"client-2": "client-failed"} for record in failed)
    assert together.records[-1].unreconciled == ("client-2",)
    assert together.records[-1].spent["client-2"].rounds == len(failed)


def test_clients_that_fail_together_leave_the_others_their_round(monkeypatch):
    clip, calls = Stack.clip, []

    def failing(self, *given):
        calls.append(given)
        return 1 / 0 if len(calls) == 1 else clip(self, *given)

    monkeypatch.setattr(cohort, "_MOST_TOGETHER", 2)
    monkeypatch.setattr(Stack, "clip", failing)
    _, one, *_ = run(plan_of(Blobs(), clients=4), together=True).records
    assert one.failures == {f"client-{part}": "client-failed" for part in (0, 1)}
    assert one.participants == ("client-2", "client-3")
    assert one.unreconciled == ("client-0", "client-1")
    assert all(spent.rounds == 1 for spent in one.spent.values())


def test_an_update_that_is_not_finite_is_dropped():
    """The learning rate carries every update beyond float32: nothing is left to be averaged, and the run says so."""
    with pytest.raises(RoundFailedError, match="not-finite"):
        run(plan_of(Blobs(), clients=3, learning_rate=1e30, optimizer="sgd"), together=True)


def test_a_strategy_that_looks_at_each_update_gets_its_messages():
    class Mine(FedAvg):
        pass

    assert [averages(made()) for made in STRATEGIES.values()] == [True] * 4
    assert not averages(FedMedian(**SAMPLING)) and not averages(Mine(**SAMPLING))
    with pytest.raises(AssertionError, match="sends no messages"):
        run(plan_of(Blobs(), clients=3), together=True, strategy=Mine(**SAMPLING))


@pytest.mark.parametrize("clients", [engine.POPULATION - 1, engine.POPULATION])
def test_an_engine_trains_many_clients_together(clients, monkeypatch):
    sent = []
    monkeypatch.setattr(InProcessGrid, "_deliver", lambda *_: sent.append(1) or 1 / 0)
    plan = plan_of(Blobs(), clients=clients, rounds=1)
    population = engine._population(private_client(plan.task, plan.config), plan.config)
    assert (population is None) == (clients < engine.POPULATION)


def test_randomness_is_secret_without_a_seed():
    plans = [plan_of(Blobs(), clients=3, seed=None, rounds=1, ledger=f"sqlite:///{n}.db") for n in range(2)]
    one, other = (model_of(run(plan, together=True)) for plan in plans)
    assert not torch.equal(one, other)


def test_another_attempt_draws_other_noise():
    plan = plan_of(Blobs(), clients=1)
    event = PoissonSampledGaussian(0.5, 1.0)
    order = PrivateOrder(
        client_id="client-0", part=0, event=event, clipping_norm=1.0, expected_batch_size=15.0, steps=1, weight=1.0
    )
    arrays = ArrayRecord({n: Array(p.detach().numpy()) for n, p in plan.task.model().named_parameters()})
    one, again, other = (
        Population(plan.task, plan.config).train([order], arrays, Attempt("run", 1, number), 0, 0.0).mean()
        for number in (1, 1, 2)
    )
    assert torch.equal(one, again) and not torch.any(one == other)


def test_two_runs_on_one_ledger_share_no_noise():
    plan = plan_of(Blobs(), clients=3, rounds=1, noise_multiplier=2.0, ledger="sqlite:///ledger.db")
    one, other = (model_of(run(plan, together=True)) for _ in range(2))
    assert not torch.equal(one, other)


def test_a_first_model_of_another_task_is_refused_before_anybody_is_charged():
    plan = plan_of(Blobs(), clients=3, ledger="sqlite:///ledger.db")
    own = {name: Array(values.numpy()) for name, values in Blobs().model().state_dict().items()}
    strategy, app = PrivateStrategy(FedAvg(**SAMPLING), plan), private_client(plan.task, plan.config)
    grid = Silent(app, 3, {}, population=Population(plan.task, plan.config))
    with pytest.raises(ValueError, match="'more' is in one of them alone"):
        strategy.start(grid, ArrayRecord(own | {"more": own["bias"]}))
    assert not Ledger("sqlite:///ledger.db").reserved(strategy.run_id)
