"""A population on a Ray cluster has the run of one process, whatever becomes of the cluster's machines."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fedprivacy as fp
from fedprivacy.flower.simulated import cluster, joining
from fedprivacy.flower.simulated.cluster import ClusterWorkers
from fedprivacy.flower.simulated.populations import train_privately
from fedprivacy.flower.simulated.workers import WorkerError
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.settings.configuration import ConfigError
from tests.commands.running import ENVIRONMENT
from tests.flower import watched
from tests.flower.blobs import Blobs, plan_of
from tests.processes import all_end
from tests.runs.rounds import same_results
from tests.slow_starts import where_it_starts

CLIENTS = 100
PATIENCE = 400.0  # seconds for workers to come, on busy cores


# Two machines


@pytest.fixture(scope="module")
def address():
    """Of a Ray cluster of two nodes on this machine, with a CPU each, the second of which is doomed."""
    from ray._common.utils import get_default_ray_temp_dir
    from ray.cluster_utils import Cluster

    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)  # where the cluster's address is written
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": folder}
        two = where_it_starts(lambda _: Cluster(initialize_head=True, head_node_args=head))
        try:
            where_it_starts(lambda _: two.add_node(num_cpus=1, env_vars={watched.DOOMED: "yes"}))
            yield two.address
        finally:
            two.shutdown()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """What the run leaves in one process."""
    with contextlib.chdir(tmp_path_factory.mktemp("one")):
        simulated()
        return results()


def simulated(**placement):
    return fp.simulate(
        watched.Watched(), clients=CLIENTS, seed=1, out="run", node_timeout=PATIENCE, progress=False, **placement
    )


def results():
    return same_results(Path("run"))


@pytest.mark.exhaustive
@pytest.mark.alone
def test_two_machines_have_the_bytes_of_one_process(address, one_process, monkeypatch, capfd):
    """Each shard is opened by the worker that trains it, and besides by the trial, before anything is started."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    handler = signal.getsignal(signal.SIGTERM)
    simulated(ray_address="auto")
    assert results() == one_process
    here, opened = os.getpid(), watched.opened()
    assert sorted(opened) == list(range(CLIENTS))
    assert [part for part, processes in opened.items() if here in processes] == [0, CLIENTS - 1]
    there = [[process for process in processes if process != here] for processes in opened.values()]
    assert all(len(processes) == 1 for processes in there) and len({process for (process,) in there}) == 2
    assert all_end({process for (process,) in there})
    assert signal.getsignal(signal.SIGTERM) is handler
    printed = capfd.readouterr()
    assert "ray" not in printed.out.lower() + printed.err.lower()


@pytest.mark.soak
@pytest.mark.alone
def test_ctrl_c_ends_the_run_and_its_workers_and_leaves_the_cluster(address, one_process):
    """The terminal's signal reaches the command alone; the run goes on with the bytes of one that nobody stopped."""
    Path("watched.py").write_text(Path(watched.__file__).read_text())
    command = ("simulate", "--task", "watched.py:Watched", "--clients", str(CLIENTS), "--seed", "1", "--out", "run")
    command += ("--node-timeout", str(PATIENCE))
    watched.STILL.touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedprivacy", *command, "--ray-address", address, "--workers", "2"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while not watched.STANDING.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    printed, _ = process.communicate(timeout=300)
    assert (process.returncode, "Traceback" in printed) == (130, False), printed
    assert f"fedprivacy simulate --resume run --ray-address {address}" in printed
    assert time.monotonic() - began < watched.STANDSTILL / 2.0
    processes = {process for processes in watched.opened().values() for process in processes}
    assert len(processes) == 3 and all_end(processes, 60.0)
    watched.STILL.unlink()
    fp.simulate(resume="run", progress=False)
    assert results() == one_process


@pytest.mark.exhaustive
@pytest.mark.alone
def test_a_machine_that_dies_in_a_round_changes_nothing(address, one_process, caplog):
    """Nor does a client pay twice: those that were trained there train again elsewhere, for what was charged."""
    watched.DEADLY.touch()
    simulated(ray_address=address)
    assert results() == one_process
    (death,) = [record.message for record in caplog.records if "died" in record.message]
    assert "another one takes its clients" in death
    again = [processes for processes in watched.opened().values() if len(set(processes) - {os.getpid()}) == 2]
    assert len(again) == CLIENTS // 2  # shards that were opened on both machines
    accounts = Ledger("sqlite:///run/ledger.db").accounts([f"made up/client-{part:02}" for part in range(CLIENTS)])
    assert [account.rounds for account in accounts.values()] == [3] * CLIENTS
    verify_ledger(Ledger("sqlite:///run/ledger.db"))


# What is refused, before anything is started or spent


@pytest.fixture
def closed():
    """An address at which nothing listens, and that nobody else gets meanwhile: its socket is bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def listening():
    """An address at which something listens that is no cluster of this machine."""
    with socket.create_server(("", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def refused(**settings):
    """What `fp.simulate` says, and that it leaves no folder."""
    with pytest.raises(ConfigError) as problem:
        fp.simulate(Blobs(), clients=CLIENTS, progress=False, out="run", **settings)
    assert not Path("run").exists()
    return str(problem.value)


def test_addresses_without_a_cluster_of_this_machine_and_a_gpu_by_its_number(closed, listening, monkeypatch):
    said = refused(ray_address=closed)
    assert f"ray-address is '{closed}', but nothing listens at " in said and "'ray start --head' printed" in said
    monkeypatch.setenv("RAY_ADDRESS", closed)
    assert f"ray-address is 'auto' (RAY_ADDRESS: {closed}), but nothing listens at" in refused(ray_address="auto")
    # a machine that is none of the cluster's, for which Ray itself would look for a minute
    for own, words in (((), "no cluster"), (("127.0.0.1:1",), "the cluster at 127.0.0.1:1")):
        monkeypatch.setattr("ray._private.services.find_gcs_addresses", lambda own=own: own)
        assert f"this machine belongs to {words}; start this on a machine of " in refused(ray_address=listening)

    def nothing(address):
        raise ConnectionError

    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", nothing)
    assert "no cluster runs on this machine; start one by 'ray start --head'" in refused(ray_address="auto")
    monkeypatch.setattr(joining, "join_cluster", lambda _: pytest.fail("the cluster was joined"))
    assert "device is 'cuda:0', but ray-address is 'auto': " in refused(ray_address="auto", device="cuda:0")


def test_a_cluster_of_no_use_is_told_of(closed, caplog, undrawn):
    fp.simulate(Blobs(), clients=99, privacy=False, rounds=1, progress=False, out="run", ray_address=closed)
    told = [record.message for record in caplog.records if f"ray-address is '{closed}'" in record.message]
    assert told and "fewer than 100 clients" in told[0]


# Whom it asks for


GREETING = cluster.Greeting("gpu-7", cluster.versions(), 0)


class Pretended:
    """Ray, as far as whoever asks it for actors can tell: each comes at once, with its greeting, if there is room, and
    answers in this process."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self, cpus, greeting=GREETING, gpus=0.0):
        self.cpus, self.greeting, self.gpus, self.alive, self.asked = cpus, greeting, gpus, [], []

    def cluster_resources(self):
        return {"CPU": float(self.cpus)} | ({"GPU": self.gpus} if self.gpus else {})

    def available_resources(self):
        return {"CPU": float(max(0, self.cpus - len(self.alive)))}

    def put(self, value):
        return value

    def remote(self, kind):
        def options(num_gpus, **_):
            self.asked.append(num_gpus)
            return SimpleNamespace(remote=lambda luggage: self.made(kind(luggage)))

        return SimpleNamespace(options=options)

    def made(self, hand):
        call = SimpleNamespace(remote=hand.answer)
        self.alive.append(SimpleNamespace(greet=SimpleNamespace(remote=object), answer=call))
        return self.alive[-1]

    def wait(self, greetings, num_returns, timeout):
        room = max(0, self.cpus - (len(self.alive) - len(greetings)))
        return greetings[: min(num_returns, room)], []

    def get(self, reference):
        if isinstance(reference, bytes):
            return reference
        if isinstance(self.greeting, Exception):
            raise self.greeting
        return self.greeting

    def kill(self, handle):
        self.alive.remove(handle)


def pretended(ray, timeout=60.0, device="auto", **placement):
    """A population on a pretended cluster, once its workers have begun, for which it waits so many seconds at most."""
    config = replace(plan_of(Blobs(), clients=CLIENTS).config, node_timeout=timeout, device=device)
    found = ClusterWorkers(Blobs(), config, train_privately, Placement(ray_address="auto", **placement))
    found._ray = ray
    found._pack()
    found._begin()
    return found


def places(population):
    return [worker.place for worker in population._ready()]


@pytest.mark.parametrize(
    ("gpus", "settings", "expected"),
    [
        (0.0, {}, (8, 0.0)),
        (4.0, {}, (4, 1.0)),
        (4.0, {"device": "cuda", "workers": 2}, (2, 1.0)),
        (2.0, {"workers": 5}, (5, 0.3333)),
        (4.0, {"device": "cpu"}, (8, 0.0)),
    ],
    ids=str,
)
def test_how_many_workers_are_asked_for_and_what_each_has(gpus, settings, expected, monkeypatch):
    shares = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=2**34))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    ray = Pretended(8, replace(GREETING, gpus=1), gpus)
    pretended(ray, **settings)
    assert ray.asked == [expected[1]] * expected[0]
    assert shares == ([expected[1] - 1 / 32] * expected[0] if expected[1] % 1.0 else [])  # CUDA's own part less


def test_workers_that_died_are_replaced_in_their_places_as_soon_as_there_is_room():
    ray = Pretended(4)
    found = pretended(ray)
    assert places(found) == [0, 1, 2, 3]
    dead = [found._workers[1], found._workers[2]]
    ray.cpus = 2  # with them went the machine
    for worker in dead:
        worker.kill()
    assert [worker.place for worker in found._instead_of(dead)] == [0, 3]
    assert places(found) == [0, 3] and not found._coming
    ray.cpus = 5
    assert places(found) == [0, 1, 2, 3, 4]
    found.close()
    assert not ray.alive


def test_when_all_have_died_the_run_ends_and_a_cluster_without_room_begins_none():
    ray = Pretended(1)
    found = pretended(ray, timeout=0.5)
    ray.cpus = 0
    (dead,) = found._workers
    dead.kill()
    with pytest.raises(WorkerError, match=r"All workers of the cluster have died, and none came within node-timeout"):
        found._instead_of([dead])
    words = r"2 of 3 workers came within node-timeout \(0.5 s\): each needs a CPU, and 0 of 2 CPUs are free. Choose"
    with pytest.raises(ConfigError, match=words):
        pretended(Pretended(2), timeout=0.5, workers=3)


OTHER = replace(GREETING, versions=GREETING.versions | {"torch": "1.0"})


def test_a_machine_that_will_not_do_is_refused_or_left_out_if_it_joins_later(caplog):
    """With other versions, a seeded run would have other bits there."""
    with pytest.raises(ConfigError, match=r"gpu-7 has torch 1\.0, and here .*: install"):
        pretended(Pretended(1, OTHER))
    ray = Pretended(1, nothing := ImportError("No module named 'fedprivacy'"))
    ray.exceptions, nothing.actor_init_failed = SimpleNamespace(RayError=ImportError), True
    with pytest.raises(ConfigError, match=r"cannot be made there \(No module named 'fedprivacy'\); install"):
        pretended(ray)
    ray = Pretended(1)
    found = pretended(ray)
    ray.cpus, ray.greeting = 2, OTHER
    assert places(found) == [0] and len(ray.alive) == 1
    assert "gpu-7 has torch 1.0" in caplog.text


def test_a_shard_that_cannot_be_opened_there_is_refused_before_anything_is_spent(monkeypatch):
    """With the words of a run in one process, and before there is a folder."""

    class Partly(Blobs):
        def shard(self, source):
            return 1 / 0 if source.partition_id == 57 else super().shard(source)

    ray = Pretended(3)
    monkeypatch.setattr(cluster, "join_cluster", lambda _: contextlib.nullcontext(ray))
    with pytest.raises(ConfigError, match=r"task blobs: shard\(\) for client-57 fails: ZeroDivisionError") as problem:
        fp.simulate(Partly(), clients=CLIENTS, progress=False, out="run", ray_address="auto")
    assert "client-57 holds part 58 of 100" in problem.value.__notes__[0]
    assert not Path("run").exists() and not ray.alive


def test_a_gpu_that_pytorch_does_not_find():
    worker = cluster.Actor(Pretended(1), SimpleNamespace(greet=SimpleNamespace(remote=object)), 0, 1.0, Placement())
    with pytest.raises(ConfigError, match="PyTorch finds no GPU on gpu-7: install a build for its GPUs, or use device"):
        worker.be_greeted()
