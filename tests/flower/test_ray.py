"""`fedprivacy simulate --engine ray`: the same run on Flower's engine."""

import pytest

from tests.commands.running import fedprivacy, started, summary
from tests.slow_starts import where_it_starts


@pytest.mark.exhaustive
@pytest.mark.alone
def test_ray_gives_the_same_run_as_the_in_process_engine(tmp_path):
    options = ("--rounds", "2", "--clients", "3", "--seed", "3")
    engine = ("--engine", "ray", "--node-timeout", "600")
    ray = where_it_starts(
        lambda attempt: summary(*options, *engine, "--out", f"ray-{attempt}", cwd=tmp_path, run=started)
    )
    here = summary(*options, "--out", "here", cwd=tmp_path)
    assert ray["clients"] == here["clients"]
    assert ray["accuracy"] == pytest.approx(here["accuracy"], abs=0.01)


@pytest.mark.exhaustive
def test_a_folder_that_holds_a_run_is_refused_before_ray_is_started(tmp_path, monkeypatch):
    options = ("--rounds", "1", "--clients", "3", "--out", "run")
    summary(*options, cwd=tmp_path)
    monkeypatch.setattr("flwr.simulation.run_simulation", lambda *_, **__: pytest.fail("Ray was started"))
    refused = fedprivacy("simulate", *options, "--engine", "ray", cwd=tmp_path, code=2)
    assert "already holds a run" in refused.stderr
