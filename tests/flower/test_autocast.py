"""Activations in bfloat16 are a setting of a run or of a data owner: other gradients, the same charges."""

import json

import pytest
import torch

import fedprivacy as fp
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.flower.client import local
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.settings.configuration import ConfigError, resolve
from tests.flower.blobs import DeepBlobs
from tests.flower.deployment import DeployedGrid
from tests.flower.runs import run

PRIVATE = {"clients": 3, "rounds": 3, "local_steps": 2, "noise_multiplier": 0.8, "epsilon": 50.0, "seed": 5}


def simulated(out, **settings):
    return fp.simulate(DeepBlobs(), **PRIVATE | settings, progress=False, out=out)


def way(folder):
    """Return the method by which a run computed gradients."""
    return json.loads((folder / "machine.json").read_text())["gradients"]


@pytest.mark.exhaustive
def test_a_run_computes_activations_in_it_and_is_charged_as_in_float32(tmp_path):
    half, whole = simulated(tmp_path / "half", autocast="bfloat16"), simulated(tmp_path / "whole")
    assert way(tmp_path / "half").startswith("book-keeping in bfloat16")  # some processors: one row at a time
    assert "bfloat16" not in way(tmp_path / "whole")
    model, exact = half.model().state_dict(), whole.model().state_dict()
    assert 1e-6 < max((model[name] - exact[name]).abs().max() for name in model) < 0.05  # the noise is the same
    assert all(tensor.dtype == torch.float32 for tensor in model.values())
    losses = [[row["epsilon"] for row in run.clients] for run in (half, whole)]
    assert losses[0] == losses[1] and min(losses[0]) > 1.0


def test_a_run_without_privacy_has_no_use_for_it_and_another_type_is_refused():
    assert resolve({"task": "cancer", "autocast": "bfloat16", "privacy": False}).autocast == "float32"
    with pytest.raises(ConfigError, match="autocast is 'float16'; choose one of float32, bfloat16"):
        resolve({"task": "cancer", "autocast": "float16"})


@pytest.fixture
def types(monkeypatch):
    """The types of activations of all engines that clients make."""
    made = []

    class Watched(local.GradientEngine):
        def __init__(self, *args, autocast, **options):
            made.append(autocast)
            super().__init__(*args, autocast=autocast, **options)

    monkeypatch.setattr(local, "GradientEngine", Watched)
    return made


@pytest.mark.parametrize(("own", "expected"), [({}, None), ({"autocast": "bfloat16"}, torch.bfloat16)])
def test_a_deployed_client_s_is_its_owner_s_whatever_the_run_says(tmp_path, types, own, expected):
    run_says = "float32" if own else "bfloat16"
    settings = {"epsilon": 9.0, "clients": 2, "rounds": 2, "noise-multiplier": 1.1, "autocast": run_says}
    settings |= {"signing-key": str(tmp_path / "signing.key"), "out": str(tmp_path / "run")}
    plan = TrainingPlan.of({**settings, "ledger": f"sqlite:///{tmp_path}/ledger.db"}, DeepBlobs())
    run(plan, grid=DeployedGrid(plan, tmp_path / "hospitals", **own))
    assert set(types) == {expected}


def test_an_audit_trains_in_the_run_s(types):
    audited = Audited.of(TrainingPlan.of({"autocast": "bfloat16", "clients": 2, "noise-multiplier": 1.0}, DeepBlobs()))
    grant = audited.client.usual_grant()
    parameters = {name: values.numpy() for name, values in audited.task.model().state_dict().items()}
    audited.client_of(audited.task, audited.shard).ask(grant, parameters)
    assert set(types) == {torch.bfloat16}
