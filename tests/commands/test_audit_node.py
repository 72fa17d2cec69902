"""`fedprivacy audit --node`, as a hospital types it before it joins."""

import json

import numpy as np
import pytest

from fedprivacy.audit import auditor
from fedprivacy.audit.gates import four_claims, invariance
from fedprivacy.audit.lower_bounds import PER_STEP
from fedprivacy.flower.client.local import own_shard
from tests.audit.gates.host import content_of, home_of
from tests.commands.running import fedprivacy, unwrapped
from tests.privacy.bugs.swapped import planted


@pytest.fixture
def quick(monkeypatch):
    """The gates of the deployed client alone: what the others find is tested elsewhere."""
    monkeypatch.setattr(auditor, "GATES", {})
    monkeypatch.setattr(auditor, "lower_bounds", lambda *_, **__: ())


@pytest.mark.exhaustive
@pytest.mark.usefixtures("quick")
def test_a_sound_host_passes_and_nothing_of_it_is_touched_or_told(tmp_path):
    home = home_of(tmp_path / "host", task="Telling")
    before = content_of(home)
    done = fedprivacy("audit", "--node", home, "--out", tmp_path / "found", cwd=tmp_path)
    assert "Audit of node configuration" in unwrapped(done.stdout) and "passed: 3 gates" in unwrapped(done.stdout)
    assert not done.stderr.strip()
    assert content_of(home) == before
    page = (tmp_path / "found" / "audit.html").read_text()
    assert "within its own settings and budget, and charges first" in page
    assert "SECRET" not in page + done.stdout


@pytest.mark.exhaustive
def test_what_is_told_of_a_bug_does_not_depend_on_a_record(tmp_path, monkeypatch):
    """Neighbouring shards, whose number is private: with one seed the same is found, but for secret noise."""
    gates = {"replay": four_claims.replay, "invariance": invariance.check}
    monkeypatch.setattr(auditor, "GATES", gates)
    monkeypatch.setattr(auditor, "lower_bounds", lambda *_, **__: ())
    home = home_of(tmp_path / "host", task="Hidden")

    def found(records):
        np.save(home / "records" / "points.npy", np.random.default_rng(records).normal(size=(records, 2)))
        own_shard.cache_clear()
        command = ("audit", "--node", home, "--seed", "3", "--json", "--out", "found")
        with planted("four augmentations of a record are each clipped, and all summed"):
            return json.loads(fedprivacy(*command, cwd=tmp_path, code=1).stdout)

    one, other = found(83), found(84)
    for each in (one, other):
        del each["seconds"]
        (noise,) = (gate for gate in each["gates"] if gate["name"] == "node-noise")
        assert noise.pop("statistic") and noise.pop("p_value")
    assert one == other


@pytest.mark.exhaustive
@pytest.mark.usefixtures("quick")
def test_the_operator_s_settings_are_audited_where_they_are_given(tmp_path):
    home_of(tmp_path / "host")
    run = 'task = "somewhere/hospital_tasks.py:Sides"\nclients = 3\nrounds = 40\nsampling-rate = 0.1\nepsilon = 2.0\n'
    (tmp_path / "run.toml").write_text(run + 'delta = 1e-3\nledger = "ledger.db"\nsigning-key = "signing.key"\n')
    done = fedprivacy("audit", "--node", "host", "--run-config", "run.toml", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["epsilon_upper"] == pytest.approx(2.0, abs=0.02)
    assert not (tmp_path / "ledger.db").exists() and not (tmp_path / "signing.key").exists()


@pytest.mark.exhaustive
def test_a_hospital_s_host_is_attacked_by_no_record_of_its_own(tmp_path, monkeypatch):
    """With the client's own gates; the others are slow and find nothing in `tests/audit/gates`."""
    monkeypatch.setattr(auditor, "GATES", {})
    home = home_of(tmp_path / "host", task="Hidden")
    before = content_of(home)
    found = json.loads(fedprivacy("audit", "--node", home, "--seed", "1", "--json", cwd=tmp_path).stdout)
    assert [gate["name"] for gate in found["gates"]] == list(auditor.NODE_GATES)
    assert found["passed"] and 0.0 < found["lower_bounds"][PER_STEP]["epsilon"] <= found["epsilon_upper"] <= 3.0
    assert not any("own-record" in name for name in found["lower_bounds"])
    assert content_of(home) == before
