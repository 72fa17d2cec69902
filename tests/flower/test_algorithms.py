"""Algorithms in whole rounds: whose model is measured, what a client keeps, and what a deployed one holds back.

Their runs, stopped and resumed, are those of messages: tests/flower/test_every_way.py.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fedprivacy as fp
from fedprivacy.commands.guard import guard_app
from fedprivacy.flower.kept import KeptFor, KeptInFolder
from fedprivacy.gradients import flat_parameters
from fedprivacy.runs.records.folder import RunFolderError
from fedprivacy.training.algorithms import ALGORITHMS
from fedprivacy.training.evaluation import LocalEvaluation
from fedprivacy.training.local_round import personal_mask
from tests.flower import asked, runs
from tests.flower.asked import HOSPITALS, code, named, node_of, spent
from tests.flower.blobs import DeepBlobs, plan_of
from tests.flower.runs import SAMPLING, run_together
from tests.terminal import CliRunner

SOME = {"fedper", "local"}
"""Algorithms that the quick lane runs."""

EVERY = [pytest.param(n, marks=[] if n in SOME else pytest.mark.exhaustive) for n in sorted(ALGORITHMS)]


NAMES = [name for name, _ in DeepBlobs().model().named_parameters()]
HOME = {"fedper": ["3.weight", "3.bias"], "fedrep": ["3.weight", "3.bias"], "fedbn": ["1.weight", "1.bias"]}
"""Which parameters stay with the client."""


def run(name, *, together, fraction=0.5, **settings):
    """The finished strategy, with its records and its grid."""
    settings = {"rounds": 4, "local_steps": 4, "ledger": "sqlite:///book.db"} | settings
    plan, strategy = plan_of(DeepBlobs(), algorithm=name, **settings), FedAvg(fraction_train=fraction, **SAMPLING)
    return (run_together if together else runs.run)(plan, strategy, checkpoints=Path())


def flat(arrays):
    return np.concatenate([arrays[name].numpy().ravel() for name in NAMES])


@pytest.fixture
def deep_node(tmp_path, keys, identity):
    """Node configurations of data owners, each with a folder of its own, and perhaps what another one kept."""

    def of(name, kept=None):
        (tmp_path / name).mkdir()
        if kept:
            shutil.copytree(kept, tmp_path / name / kept.name)
        return node_of(tmp_path / name, keys.private_key) | {"epsilon": 50.0}

    return of


def train(node, *, seed=0, **changed):
    return asked.train(node, task=HOSPITALS[seed], **changed)


def kept_by(folder):
    """Return what a data owner keeps for its next rounds."""
    return KeptInFolder(next(folder.glob("*.kept")))


def kept_for(name, round, **settings):
    return KeptFor("run", named(name, **settings), round, "blobs/blobs")


@pytest.mark.exhaustive
def test_a_client_s_own_model_is_in_the_run_s_folder():
    run = fp.simulate(DeepBlobs(), algorithm="fedper", clients=3, rounds=2, out="run", progress=False)
    shared, own = run.model(), run.model(client_id="client-1")
    assert not torch.equal(own[3].weight, shared[3].weight)
    assert torch.equal(own[0].weight, shared[0].weight)
    assert "For each client" in run.report.read_text()
    plain = fp.simulate(DeepBlobs(), clients=3, rounds=2, out="plain", progress=False)
    assert torch.equal(plain.model(client_id="client-1")[0].weight, plain.model()[0].weight)  # it uses the global one
    with pytest.raises(RunFolderError, match=r"no client 'client-9'; choose one of"):
        plain.model(client_id="client-9")
    (run.folder / "client-models.safetensors").unlink()  # as a deployed server's folder, which never had it
    with pytest.raises(RunFolderError, match="no model of client-1"):
        run.model(client_id="client-1")


def test_local_evaluation_measures_the_model_that_a_client_uses(deep_node, tmp_path, monkeypatch):
    node, seen, release = deep_node("one") | {"epsilon": 1e6}, [], LocalEvaluation.release

    def watched(self, measured, *args):
        seen.append(flat_parameters(measured.model).clone())
        return release(self, measured, *args)

    monkeypatch.setattr(LocalEvaluation, "release", watched)
    for number in (1, 2):
        train(node, round=number, algorithm=named("fedper"), steps=3, local_evaluation=True)
    algorithm, model = ALGORITHMS["fedper"](), DeepBlobs().model()
    shared, kept = flat_parameters(model), kept_by(tmp_path / "one").load(kept_for("fedper", 2))
    assert torch.equal(seen[0], shared) and not torch.equal(seen[1], shared)
    assert torch.equal(seen[1], algorithm.model(shared, kept, personal_mask(algorithm, model)))


@pytest.mark.parametrize("together", [False, True], ids=["messages", "together"])
def test_fine_tuning_begins_at_the_global_model_whatever_an_algorithm_kept_before_and_leaves_it_there(together):
    """Scaffold's controls are gradients, and no model; steps as small as these lead nowhere."""
    settings = {"together": together, "fraction": 1.0, "noise_multiplier": 2.0, "learning_rate": 1e-6}
    tuned = run("scaffold", fine_tuning_rounds=2, **settings)
    plain = run("scaffold", rounds=2, ledger="sqlite:///plain.db", **settings)
    shared = torch.from_numpy(flat(tuned.result.arrays))
    if together:  # messages are added up in the order in which they come
        assert np.array_equal(flat(plain.result.arrays), shared.numpy())
    assert tuned.records[-1].spent["client-0"].steps == 16 and len(tuned.grid.kept.own) == 4
    for kept in tuned.grid.kept.own.values():
        assert 0.0 < (kept - shared).abs().max() < 1e-3


@pytest.mark.parametrize("name", EVERY)
def test_what_stays_at_home_is_in_no_byte_that_leaves(name, deep_node):
    """The neighbour's other records change what was trained, and nothing of what is not to leave."""
    home = NAMES if name == "local" else HOME.get(name, [])
    replies = []
    for seed, node in enumerate((deep_node("one"), deep_node("other"))):
        for number in (1, 2):
            reply = train(node, seed=seed, round=number, algorithm=named(name), steps=4)
        replies.append(reply)
    model = {n: p.detach().numpy() for n, p in DeepBlobs().model().named_parameters()}
    for parameter in NAMES:
        ours, theirs = (reply.content["arrays"][parameter].numpy() for reply in replies)
        if parameter in home:
            assert np.array_equal(ours, model[parameter]) and np.array_equal(theirs, model[parameter])
        else:
            assert not np.array_equal(ours, theirs)


TASK = "tests.flower.blobs:DeepBlobs"


@pytest.fixture
def written(tmp_path):
    """`fedprivacy guard model`: exit code, what it says, and the parameters in the file."""
    torch.manual_seed(1)
    public = {name: torch.randn_like(p) for name, p in DeepBlobs().model().named_parameters()}
    save_file(public, tmp_path / "model.safetensors", {"standardise": "numbers"})

    def write(guard, *options):
        out = tmp_path / "own.safetensors"
        given = [str(guard), "--task", TASK, "--global-model", str(tmp_path / "model.safetensors"), "--out", str(out)]
        result = CliRunner().invoke(guard_app, ["model", *given, *options])
        return result.exit_code, result.stderr, out, public

    return write


def test_a_data_owner_has_its_own_model_as_a_file(deep_node, tmp_path, written):
    node = deep_node("one")
    for number in (1, 2):
        train(node, round=number, algorithm=named("fedper"), steps=4)
    code, said, out, public = written(tmp_path / "one" / "guard.log")
    assert code == 0 and "Run run" in said and "after round 2" in said
    assert out.stat().st_mode & 0o777 == 0o600
    kept = kept_by(tmp_path / "one").load(kept_for("fedper", 3))
    own = DeepBlobs().model()
    torch.nn.utils.vector_to_parameters(kept, own.parameters())
    found = load_file(out)
    for parameter, values in own.named_parameters():
        expected = values if parameter in HOME["fedper"] else public[parameter]
        assert torch.equal(found[parameter], expected)
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"standardise": "numbers"}


def test_a_run_that_left_no_model_of_one_s_own_is_said_to_have_none(deep_node, tmp_path, written):
    node = deep_node("one")
    train(node, algorithm=named("scaffold"), steps=2)
    guard = tmp_path / "one" / "guard.log"
    code, said, out, _ = written(guard)
    assert code == 2 and "lies no model of this task and any run" in " ".join(said.split()) and not out.exists()
    train(node, round=2, algorithm=named("fedper"), steps=2)
    code, said, *_ = written(guard, "--run", "another")
    assert code == 2 and "no model of this task and run 'another'" in " ".join(said.split()) and "'run'" in said
    save_file({"0.weight": torch.zeros(4, 2)}, tmp_path / "model.safetensors")
    code, said, *_ = written(guard)
    assert code == 2 and "is not the global model" in " ".join(said.split())
    assert written(guard)[0] == 2 and spent(node) == 4


OTHERS = [{"algorithm": named(name)} for name in ("fedavg", "fedbn", "local", "mr-mtl", "ditto", "fedrep")]


@pytest.mark.exhaustive
def test_no_other_algorithm_and_no_other_run_is_given_what_a_client_kept(deep_node, tmp_path):
    """A server that asks for FedAvg, another head or another run after FedPer gets steps from its own model."""
    node = deep_node("one")
    train(node, round=1, algorithm=named("fedper"), steps=4, learning_rate=50.0)
    store = kept_by(tmp_path / "one")
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in store.folder.iterdir()] == [0o600]
    assert store.load(kept_for("fedper", 2)).abs().max() > 10.0
    for number, other in enumerate([*OTHERS, {"algorithm": named("fedper"), "run_id": "another"}]):
        reply = train(node, round=2, steps=4, learning_rate=1e-6, attempt=7, **other)
        assert max(np.abs(array.numpy()).max() for array in reply.content["arrays"].values()) < 5.0
        its_own = store.load(KeptFor(other.get("run_id", "run"), other["algorithm"], 3, "blobs/blobs"))
        assert its_own is None or its_own.abs().max() < 5.0
        node = deep_node(f"again-{number}", kept=store.folder)


def test_a_round_that_is_asked_for_again_begins_where_it_began_before_and_nowhere_if_that_is_damaged(
    deep_node, tmp_path
):
    node = deep_node("one")
    for number in (1, 2):
        train(node, round=number, algorithm=named("local"), steps=2)
    kept = kept_by(tmp_path / "one")
    after_one = kept.load(kept_for("local", 2))
    train(node, round=2, attempt=2, algorithm=named("local"), steps=1, learning_rate=1e-9)
    assert (kept.load(kept_for("local", 3)) - after_one).abs().max() < 1e-6
    for file in kept.folder.iterdir():
        file.write_bytes(b"no tensors")
    before = spent(node)
    assert str(code(train(node, round=3, algorithm=named("local"), steps=2))) == "guard-unusable"
    assert spent(node) == before
