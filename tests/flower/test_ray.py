"""`--engine ray`: the same run on Flower's engine."""

import pytest

import fedprivacy as fp
from tests.commands.running import fedprivacy
from tests.flower.blobs import Blobs


@pytest.mark.exhaustive
def test_ray_gives_the_same_run_as_the_in_process_engine(monkeypatch, undrawn):
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # of whom each has a process of its own
    settings = {"clients": 3, "rounds": 2, "seed": 3, "epsilon": 3.0, "progress": False}
    ray = fp.simulate(Blobs(), **settings, engine="ray", node_timeout=600.0, out="ray")
    here = fp.simulate(Blobs(), **settings, out="here")
    assert ray.clients == here.clients
    for one, other in zip(ray.model().parameters(), here.model().parameters(), strict=True):
        assert (one - other).abs().max() < 2e-6


def test_a_folder_that_holds_a_run_is_refused_before_ray_is_started(tmp_path, monkeypatch, undrawn):
    fp.simulate(Blobs(), clients=3, rounds=1, noise_multiplier=2.0, out="run", progress=False)
    monkeypatch.setattr("flwr.simulation.run_simulation", lambda *_, **__: pytest.fail("Ray was started"))
    refused = fedprivacy("simulate", "--clients", "3", "--out", "run", "--engine", "ray", cwd=tmp_path, code=2)
    assert "already holds a run" in refused.stderr
