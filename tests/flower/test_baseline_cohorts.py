"""A baseline that trains together has the run that it would have by messages, without privacy and without charges."""

import random
from itertools import pairwise

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from sqlalchemy import create_engine, text
from torch import nn

import fedprivacy as fp
from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.flower import simulation as engine
from fedprivacy.flower.baseline.accounts import BaselineAccounts
from fedprivacy.flower.baseline.assignment import BaselineOrder
from fedprivacy.flower.baseline.client import baseline_client
from fedprivacy.flower.baseline.cohort import train_without_privacy
from fedprivacy.flower.client.cohort import CohortUpdate, Population
from fedprivacy.flower.client.orders import Start
from fedprivacy.flower.client.workers import Workers
from fedprivacy.gradients.stacked import Stack
from fedprivacy.runs.configuration import ConfigError
from fedprivacy.runs.folder import ROUNDS
from fedprivacy.runs.placement import Placement
from fedprivacy.server.simulation import RoundProgress
from fedprivacy.training.algorithms import ALGORITHMS
from fedprivacy.training.baseline import Baseline
from tests.flower.blobs import Blobs, PrivateSizes, _blobs, plan_of
from tests.flower.test_algorithms import DeepBlobs
from tests.flower.test_augmentation import Widened
from tests.flower.test_cohorts import SAMPLING, STRATEGIES, Convolved, Silent, check_same, model_of
from tests.flower.test_workers import KEY


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def population_of(plan):
    return Population(plan.task, plan.config, train_without_privacy)


def run(plan, *, together, strategy="fedavg", population=None):
    """The finished strategy, with its records and its grid."""
    random.seed(0)  # by which Flower samples
    records = []
    wrapped = PrivateStrategy(STRATEGIES[strategy](), plan, accounts=BaselineAccounts, observers=[records.append])
    client, population = (
        baseline_client(plan.task, plan.config),
        population or (population_of(plan) if together else None),
    )
    wrapped.grid = (Silent if together else InProcessGrid)(client, plan.config.clients, {}, population=population)
    wrapped.records = records
    wrapped.start(wrapped.grid)
    return wrapped


def both(task=None, strategy="fedavg", **settings):
    plan = plan_of(task or Blobs(), privacy=False, **settings)
    return [run(plan, together=each, strategy=strategy) for each in (False, True)]


class Ragged(Blobs):
    """Clients of very different sizes; some have no records."""

    def shard(self, source):
        return _blobs((0, 1, 200, 17, 0, 40)[source.partition_id % 6], seed=source.partition_id)


class Chain(DeepBlobs):
    """With a body and a head that are stacked."""

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_has_the_run_of_its_messages(strategy, monkeypatch):
    stacked, clip = [], Stack.clip
    monkeypatch.setattr(Stack, "clip", lambda *given: stacked.append(1) or clip(*given))
    messages, together = both(strategy=strategy, clients=9)
    check_same(messages, together)
    assert len(stacked) == 3 * 2  # rounds of two steps: all clients at once


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam", "learning_rate": 0.05},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"batch_size": 8},
        {"ema_decay": 0.5},
        {"seed": 5, "local_steps": 7, "sampling_rate": 1.0},
        {"task": Ragged(), "clients": 12},
        {"task": PrivateSizes()},
        {"task": Convolved()},
        {"task": Widened(), "augmentation_multiplicity": 4},
    ],
    ids=lambda settings: " ".join(type(value).__name__ if key == "task" else key for key, value in settings.items()),
)
def test_whatever_the_run_is_set_to(settings):
    check_same(*both(**{"clients": 6} | settings))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_whatever_its_clients_keep(name):
    task = DeepBlobs() if name == "fedbn" else Chain()
    messages, together = both(task, algorithm=name, rounds=4, local_steps=4, clients=6)
    check_same(messages, together)
    one, other = messages.grid.kept.own, together.grid.kept.own
    assert one.keys() == other.keys() and bool(one) == ALGORITHMS[name].keeps
    assert all((kept - other[client_id]).abs().max() < 2e-5 for client_id, kept in one.items())


@pytest.mark.parametrize(
    "settings",
    [{"strategy": "fedavgm", "server_momentum": 0.5}, {"algorithm": "scaffold"}, {"algorithm": "fedper"}],
    ids=lambda settings: next(iter(settings.values())),
)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(settings, tmp_path, monkeypatch):
    def stop(self, record):
        if record.round == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(InProcessGrid, "_deliver", lambda *_: pytest.fail("a message was sent"))
    given = {"clients": engine.POPULATION, "rounds": 4, "fraction_train": 0.1, "seed": 0, "privacy": False, **settings}
    whole = fp.simulate(Chain(), out=tmp_path / "whole", progress=False, **given)
    with monkeypatch.context() as stopping, pytest.raises(KeyboardInterrupt):
        stopping.setattr(RoundProgress, "__call__", stop)
        fp.simulate(Chain(), out=tmp_path / "part", progress=False, **given)
    resumed = fp.simulate(Chain(), resume=tmp_path / "part", progress=False)
    assert (tmp_path / "part" / ROUNDS).read_bytes() == (tmp_path / "whole" / ROUNDS).read_bytes()
    for one, other in zip(whole.model().parameters(), resumed.model().parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_client_that_fails_fails_as_it_would_by_message(monkeypatch):
    train = Baseline.train

    def failing(self, model, loss, shard, **given):
        return 1 / 0 if len(shard) == 32 else train(self, model, loss, shard, **given)

    monkeypatch.setattr(Baseline, "train", failing)
    messages, together = both(Convolved(), clients=5)
    check_same(messages, together)
    assert any(record.failures == {"client-2": "client-failed"} for record in together.records)


class Infinite(Blobs):
    """A client has a record that is not finite, and another one a label that there is not."""

    def shard(self, source):
        shard = super().shard(source)
        if source.partition_id == 1:
            shard.inputs[:] = torch.inf
        if source.partition_id == 3:
            shard.targets[:] = 7
        return shard


def test_clients_whose_records_cannot_be_trained_on_are_left_out_and_not_counted():
    """Catches: a stack that leaves out the records instead, as it must in private training."""
    messages, together = both(Infinite(), clients=5, sampling_rate=1.0)
    check_same(messages, together)
    assert together.records[-1].failures.keys() <= {"client-1", "client-3"} and together.records[-1].failures
    assert together.records[-1].spent["client-1"].rounds == together.records[-1].spent["client-3"].rounds == 0


def orders(number):
    return [
        BaselineOrder(
            client_id=f"client-{part:02}",
            part=part,
            sampling_rate=0.5,
            expected_batch_size=15.0,
            steps=1 + part % 3 // 2,
            weight=1 / (3 + part),
        )
        for part in range(number)
    ]


@pytest.mark.parametrize("task", [Blobs(), Convolved(), Ragged()], ids=lambda task: type(task).__name__)
def test_no_division_of_a_cohort_changes_a_bit(task):
    population = population_of(plan_of(task, privacy=False, clients=23))
    start = Start(ArrayRecord(task.model().state_dict()), 1, KEY, 0.1)
    whole = population.trained(0, orders(23), start)
    for workers in (2, 3, 11, 30):
        divided = CohortUpdate()
        for begin, end in pairwise(23 * number // workers for number in range(workers + 1)):
            divided.join(population.trained(begin, orders(23)[begin:end], start))
        assert torch.equal(divided.mean(), whole.mean()) and divided.weight == whole.weight


def test_workers_have_the_bits_of_one_process():
    plan = plan_of(Blobs(), privacy=False, clients=6, rounds=2)
    alone = run(plan, together=True)
    with Workers(plan.task, plan.config, train_without_privacy, Placement(workers=2)) as two:
        assert torch.equal(model_of(run(plan, together=True, population=two)), model_of(alone))


@pytest.mark.parametrize("clients", [engine.POPULATION - 1, engine.POPULATION])
def test_an_engine_trains_many_clients_together(clients):
    plan = plan_of(Blobs(), privacy=False, clients=clients)
    assert (engine._population(baseline_client(plan.task, plan.config), plan.config) is None) == (clients < 100)


def test_a_simulation_of_many_clients_sends_no_message_and_charges_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(InProcessGrid, "_deliver", lambda *_: pytest.fail("a message was sent"))
    run = fp.simulate(
        Blobs(), clients=engine.POPULATION, rounds=2, privacy=False, seed=0, out=tmp_path / "run", progress=False
    )
    assert run.metrics["accuracy"] > 0.8
    assert {client["rounds"] for client in run.clients} == {2}
    assert {client["epsilon"] for client in run.clients} == {float("inf")}
    with create_engine(f"sqlite:///{tmp_path / 'run' / 'ledger.db'}").connect() as ledger:
        for table in ("journal", "charges", "budgets", "runs"):
            assert ledger.scalar(text(f"SELECT count(*) FROM {table}")) == 0


# Neither trains for the other


def test_a_private_run_cannot_be_given_its_training(tmp_path):
    """It would be charged for noise that nobody adds."""
    plan = plan_of(Blobs(), clients=3, ledger="sqlite:///ledger.db")
    grid = Silent(private_client(plan.task, plan.config), 3, {}, population=population_of(plan))
    with pytest.raises(ConfigError, match="privacy is on"):
        PrivateStrategy(FedAvg(**SAMPLING), plan).start(grid)


def test_a_run_without_privacy_cannot_be_given_private_training():
    plan = plan_of(Blobs(), clients=3, privacy=False)
    with pytest.raises(AssertionError):
        run(plan, together=True, population=Population(plan.task, plan.config))
