"""Worker processes change no bit of a run: not by their number, and not by their deaths."""

import logging
import os
import pickle
import signal
import subprocess
import threading
import time
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedprivacy as fp
from fedprivacy.flower import PrivateStrategy, WorkerError, private_client
from fedprivacy.flower.simulated import engine
from fedprivacy.flower.simulated.populations import CohortUpdate, Population, Start, train_privately
from fedprivacy.flower.simulated.workers import TrainingErrand, Workers
from fedprivacy.ledger import Ledger
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.runs.placement import HERE, Placement, Seat
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.settings.device import Gpu
from fedprivacy.training.algorithms import text_of
from fedprivacy.values.attempt import Attempt
from tests.flower.blobs import Blobs, Convolved, plan_of
from tests.flower.runs import SAMPLING, model_of, order_of, run_together

ATTEMPT = Attempt("run", 1)
KEY = Keystream.from_seed(1, "workers")


def run(plan, population, ledger, **sampling):
    """The finished strategy, with a ledger of its own."""
    plan = replace(plan, config=replace(plan.config, ledger=f"sqlite:///{ledger}.db"))
    return run_together(plan, FedAvg(**SAMPLING | sampling), population=population)


def orders(number):
    """Of clients that take one step or two, with weights of their own."""
    parts = range(number)
    return [order_of(n, client_id=f"client-{n:02}", steps=1 + n % 3 // 2, weight=1 / (3 + n)) for n in parts]


def arrays_of(task):
    return ArrayRecord(task.model().state_dict())


class Partly(Blobs):
    """Some of whose clients have no records."""

    def shard(self, source):
        return 1 / 0 if source.partition_id % 7 == 5 else super().shard(source)


@pytest.mark.parametrize("task", [Blobs(), Convolved(), Partly()], ids=lambda task: type(task).__name__)
def test_no_division_of_a_cohort_changes_a_bit(task):
    """As it would, were the sums of parts added up, or were a client's company to matter."""
    population = Population(task, plan_of(task, clients=23).config)
    start = Start(arrays_of(task), 1, KEY, 0.1)
    whole = population.train_range(0, orders(23), start)
    for workers in (2, 3, 11, 30):
        divided = CohortUpdate()
        for begin, end in pairwise(23 * number // workers for number in range(workers + 1)):
            divided.join(population.train_range(begin, orders(23)[begin:end], start))
        assert torch.equal(divided.mean(), whole.mean()) and divided.weight == whole.weight
        assert divided.clipping_norms == whole.clipping_norms and divided.failures == whole.failures
    assert len(whole.weights) == (20 if isinstance(task, Partly) else 23)


def test_what_each_part_of_a_cohort_keeps_is_kept():
    whole = CohortUpdate()
    for client_id in ("client-0", "client-1"):
        whole.join(CohortUpdate(kept={client_id: torch.zeros(2)}))
    assert whole.kept.keys() == {"client-0", "client-1"}


# Two real processes, for all tests of them


@pytest.fixture(scope="module")
def secret():
    """A plan without a seed, on a task that no other process could import, whose clients keep models of their own."""

    class Unheard(Blobs):
        def model(self):
            return nn.Sequential(super().model(), nn.Tanh())

    return plan_of(Unheard(), clients=8, seed=None, rounds=2, algorithm="ditto")


@pytest.fixture(scope="module")
def two(secret):
    with Workers(secret.task, secret.config, train_privately, Placement(workers=2), [Seat()] * 2) as workers:
        yield workers


@pytest.mark.exhaustive
def test_workers_have_the_bits_of_one_process(secret, two, monkeypatch):
    monkeypatch.setattr(Keystream, "secret", lambda: KEY)
    one = Population(secret.task, secret.config)
    alone = run(secret, one, "alone", fraction_train=0.6)
    assert torch.equal(model_of(run(secret, two, "two", fraction_train=0.6)), model_of(alone))
    both = set.intersection(*(set(record.participants) for record in alone.records))
    own, others = (population.kept.of(text_of(secret.config.algorithm_in(2))) for population in (one, two))
    assert both and own.keys() == others.keys() and all(torch.equal(kept, others[name]) for name, kept in own.items())


@pytest.mark.exhaustive
def test_a_round_of_fewer_clients_than_workers_and_what_ends_a_round_ends_the_workers(secret, two):
    assert set(two.train(orders(1), arrays_of(secret.task), ATTEMPT, 0, 0.0).weights) == {"client-00"}
    processes = [worker._process for worker in two._workers]
    with pytest.raises(WorkerError, match=r"could not do its part:\n(.|\n)*KeyError"):
        two.train(orders(2), ArrayRecord(), ATTEMPT, 0, 0.0)
    assert len(processes) == 2 and all(process.returncode == -signal.SIGKILL for process in processes)


# Deaths


class Mortal(Blobs):
    """To open a shard ends a worker process, as long as there is a file in `deaths`; each death takes one away."""

    def __init__(self, deaths):
        self.deaths, self.home = deaths, os.getpid()

    def shard(self, source):
        if os.getpid() != self.home and (left := list(self.deaths.iterdir())):
            left[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().shard(source)


@pytest.mark.exhaustive
def test_a_worker_that_dies_is_replaced_once(tmp_path):
    """To the same bits, under the same charges: its clients pay once for what was computed twice."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    task = Mortal(deaths)
    plan = plan_of(task, clients=3, rounds=1)
    expected = model_of(run(plan, Population(task, plan.config), "undisturbed"))
    (deaths / "one").touch()
    with Workers(task, plan.config, train_privately, Placement(workers=1), [Seat()]) as workers:
        assert torch.equal(model_of(run(plan, workers, "disturbed")), expected)
        assert not list(deaths.iterdir())
        accounts = Ledger("sqlite:///disturbed.db").accounts([f"blobs/client-{part}" for part in range(3)])
        assert [account.rounds for account in accounts.values()] == [1, 1, 1]
        for name in ("one", "another"):
            (deaths / name).touch()
        with pytest.raises(WorkerError, match=r"died \(SIGKILL\), and so did .* choose fewer workers; there were 1"):
            workers.train(orders(4), arrays_of(task), ATTEMPT, 0, 0.0)
    assert not workers._workers


@pytest.mark.exhaustive
def test_a_worker_ends_with_its_pipe(tmp_path):
    """As it does when the server is killed, whatever it is doing."""
    home, busy = os.getpid(), tmp_path / "busy"

    class Endless(Blobs):
        def loss(self, outputs, targets):
            if os.getpid() != home:
                busy.touch()
                time.sleep(600)
            return super().loss(outputs, targets)

    task = Endless()
    with Workers(task, plan_of(task, clients=3).config, train_privately, Placement(workers=1), [Seat()]) as workers:
        (worker,) = workers._ready()
        worker.ask(pickle.dumps(Start(arrays_of(task), 1, KEY, 0.0)), pickle.dumps(TrainingErrand(0, orders(3))))
        while not busy.exists():
            assert worker._process.poll() is None
            time.sleep(0.05)
        worker._pipe.close()
        assert worker._process.wait(timeout=120) == 1


# What is asked for


def test_workers_that_there_cannot_be_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="workers is "):
        fp.simulate(Blobs(), clients=100, progress=False, out=tmp_path / "run", workers=0)
    assert not (tmp_path / "run").exists()
    task = Blobs()
    task.lock = threading.Lock()
    plan = plan_of(task, clients=100)
    with pytest.raises(ConfigError, match=r"workers is 2, but the task cannot go to another process \(.*lock"):
        Workers(task, plan.config, train_privately, Placement(workers=2), [Seat()] * 2)


def test_each_process_sees_its_own_gpu_and_the_server_s_opens_shards_on_the_cpu(monkeypatch):
    started, opened = [], set()

    class Recorded:
        def __init__(self, command, env, **_):
            started.append((env["CUDA_VISIBLE_DEVICES"], command[-1]))

        def kill(self): ...
        def wait(self):
            return 1

    class Told(Blobs):
        def loss(self, outputs, targets):
            opened.add(outputs.device.type)
            return super().loss(outputs, targets)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(engine, "gpus_here", lambda: [Gpu("made up", 2**34)] * 2)
    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(WorkerError, match="Worker 1 of 3 died"):
        fp.simulate(Told(), clients=100, workers=3, privacy=False, out="run", progress=False)
    assert started[:3] == [("4", "0.5"), ("7", "1.0"), ("4", "0.5")]
    assert opened == {"cpu"} and not Path("run").exists()
    config = plan_of(Blobs(), clients=100).config  # without workers all clients compute on one GPU: a sum has its bits
    assert engine.config_here(config, HERE).device == "cuda:0"
    assert engine.config_here(replace(config, clients=99), Placement(workers=3)).device == "auto"


def test_a_process_whose_memory_is_full_lets_go_of_the_shards_that_it_can_open_again():
    class Full(Blobs):
        held, asked = None, ()

        def shard(self, source):
            self.asked += (source.partition_id,)
            if self.held is not None and self.held() is not None:
                raise torch.OutOfMemoryError
            found = super().shard(source)
            self.held = weakref.ref(found.inputs)
            return found

    task = Full()
    assert len(list(Population(task, plan_of(task, clients=3).config).enrol(range(3)))) == 3
    assert task.asked == (0, 1, 1, 2, 2)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"clients": 99}, "fewer than 100 clients"), ({"clients": 100, "local_evaluation": 1}, "local-evaluation")],
    ids=str,
)
def test_workers_of_no_use_are_told_of(settings, why, caplog, monkeypatch):
    monkeypatch.setattr(engine.InProcessGrid, "push_messages", lambda *_: 1 / 0)
    monkeypatch.setattr(Workers, "_start_workers", lambda *_: pytest.fail("workers were started"))
    plan = plan_of(Blobs(), rounds=1, **settings)
    wrapped = PrivateStrategy(FedAvg(**SAMPLING), plan)
    with caplog.at_level(logging.WARNING, "fedprivacy.engine"), pytest.raises(ZeroDivisionError):
        engine.drive(
            lambda grid, _: wrapped.start(grid),
            private_client(plan.task, plan.config),
            plan.config,
            Placement(workers=2),
        )
    assert [record.message for record in caplog.records if "workers is 2" in record.message and why in record.message]
