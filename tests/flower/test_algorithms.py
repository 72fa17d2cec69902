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
from typer.testing import CliRunner

import fedprivacy as fp
from fedprivacy.commands.guard import guard_app
from fedprivacy.flower.kept import KeptFor, KeptInFolder
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.gradients import flat_parameters
from fedprivacy.runs.records.folder import RunFolderError
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.training.algorithms import ALGORITHMS
from fedprivacy.training.evaluation import LocalEvaluation
from fedprivacy.training.local_round import personal_mask
from tests.flower import asked, runs
from tests.flower.asked import HOSPITALS, code, named, node_of, spent
from tests.flower.blobs import Blobs, DeepBlobs, _blobs, plan_of
from tests.flower.runs import SAMPLING, run_together

SOME = {"fedper", "local"}
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
    """Node configurations of data owners, each with a folder and records of its own."""

    def of(name, kept=None):
        (tmp_path / name).mkdir()
        if kept:
            shutil.copytree(kept, tmp_path / name / kept.name)
        return node_of(tmp_path / name, keys.private_key) | {"epsilon": 50.0}

    return of


def train(node, *, seed=0, **changed):
    return asked.train(node, task=HOSPITALS[seed], **changed)


@pytest.mark.parametrize(
    "together", [pytest.param(False, id="messages", marks=pytest.mark.exhaustive), pytest.param(True, id="together")]
)
def test_scaffold_s_control_is_the_weighted_mean_of_the_clients_own(together):
    strategy = run("scaffold", together=together)
    kept, sizes = strategy.grid.kept.own, [30, 31, 32, 33]
    weights = torch.tensor([float(sizes[int(client_id.removeprefix("client-"))]) for client_id in kept])
    rows = torch.stack(list(kept.values())).double()
    expected = (weights[:, None] * rows).sum(0) / weights.sum()
    control = load_checkpoint(Path()).control
    assert control.weights == {client_id: sizes[int(client_id.removeprefix("client-"))] for client_id in kept}
    assert len(kept) > 1
    torch.testing.assert_close(control.value.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_each_client_is_measured_with_the_model_that_it_uses():
    last = run("local", together=True, fraction=1.0)
    task, kept = DeepBlobs(), last.grid.kept.own
    for number in range(4):
        model = task.model()
        torch.nn.utils.vector_to_parameters(kept[f"client-{number}"], model.parameters())
        records = _blobs(10, seed=50 + number)
        with torch.no_grad():
            loss = task.loss(model(records.inputs), records.targets).double().mean().item()
        told = last.records[-1].held_out[f"client-{number}"]
        assert told.records == 10
        assert told.means["loss"] == pytest.approx(loss)
    assert [bool(record.held_out) for record in last.records] == [False] * 3 + [True]
    losses = [told.means["loss"] for told in last.records[-1].held_out.values()]
    metrics = last.records[-1].metrics
    for name, expected in (
        ("each_loss", np.mean(losses)),
        ("each_loss_least", min(losses)),
        ("each_loss_most", max(losses)),
    ):
        assert metrics[name] == pytest.approx(expected)


@pytest.mark.exhaustive
def test_a_null_row_that_is_held_out_counts_in_no_figure(undrawn):
    class Unreadable(DeepBlobs):
        def held_out(self, source):
            read = super().held_out(source)
            missing = torch.full_like(read.inputs[:1], torch.nan)
            return fp.Shard(torch.cat([read.inputs, missing]), torch.cat([read.targets, read.targets[:1]]))

    settings = {"algorithm": "fedper", "clients": 3, "rounds": 1, "seed": 1, "progress": False}
    found = [fp.simulate(task(), **settings, out=task.__name__).held_out for task in (DeepBlobs, Unreadable)]
    assert found[0] == found[1] and [row["records"] for row in found[1]] == [10, 10, 10]


@pytest.mark.exhaustive
def test_a_client_s_own_model_is_in_the_run_s_folder():
    run = fp.simulate(DeepBlobs(), algorithm="fedper", clients=3, rounds=2, out="run", progress=False)
    shared, own = run.model(), run.model(client_id="client-1")
    assert not torch.equal(own[3].weight, shared[3].weight)
    assert torch.equal(own[0].weight, shared[0].weight)
    assert [row["client_id"] for row in run.held_out] == ["client-0", "client-1", "client-2"]
    assert "For each client" in run.report.read_text()
    plain = fp.simulate(DeepBlobs(), clients=3, rounds=2, out="plain", progress=False)
    assert torch.equal(plain.model(client_id="client-1")[0].weight, plain.model()[0].weight)  # it uses the global one
    with pytest.raises(RunFolderError, match=r"no client 'client-9'; choose one of"):
        plain.model(client_id="client-9")
    (run.folder / "client-models.safetensors").unlink()  # as a deployed server's folder, which never had it
    with pytest.raises(RunFolderError, match="no model of client-1"):
        run.model(client_id="client-1")


@pytest.mark.parametrize("name", EVERY)
def test_local_evaluation_measures_the_model_that_a_client_uses(name, deep_node, tmp_path, monkeypatch):
    node, seen = deep_node("one") | {"epsilon": 1e6}, []
    release = LocalEvaluation.release

    def watched(self, measured, *args):
        seen.append(flat_parameters(measured.model).clone())
        return release(self, measured, *args)

    monkeypatch.setattr(LocalEvaluation, "release", watched)
    for number in (1, 2):
        train(node, round=number, algorithm=named(name), steps=3, local_evaluation=True)
    shared = flat_parameters(DeepBlobs().model())
    assert torch.equal(seen[0], shared)
    if not ALGORITHMS[name].personal:
        assert torch.equal(seen[1], shared)
        return
    kept = KeptInFolder(next((tmp_path / "one").glob("*.kept"))).load(KeptFor("run", named(name), 2, "blobs/blobs"))
    algorithm, model = ALGORITHMS[name](), DeepBlobs().model()
    assert torch.equal(seen[1], algorithm.model(shared, kept, personal_mask(algorithm, model)))
    assert not torch.equal(seen[1], shared)


def test_fine_tuning_leaves_the_global_model_where_it_is():
    tuned = run("fedavg", together=True, noise_multiplier=2.0, fine_tuning_rounds=2, fraction=1.0)
    settings = {"noise_multiplier": 2.0, "rounds": 2, "ledger": "sqlite:///plain.db"}
    plain = run("fedavg", together=True, fraction=1.0, **settings)
    assert np.array_equal(flat(tuned.result.arrays), flat(plain.result.arrays))
    assert len({tuple(kept.tolist()) for kept in tuned.grid.kept.own.values()}) == 4
    assert tuned.records[-1].spent["client-0"].steps == 16


@pytest.mark.parametrize("together", [False, True], ids=["messages", "together"])
def test_fine_tuning_begins_at_the_global_model_whatever_an_algorithm_kept_before(together):
    """Scaffold's controls are gradients, and no model; steps as small as these lead nowhere."""
    tuned = run("scaffold", together=together, fine_tuning_rounds=2, fraction=1.0, learning_rate=1e-6)
    shared = torch.from_numpy(flat(tuned.result.arrays))
    assert len(tuned.grid.kept.own) == 4
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


@pytest.mark.parametrize("name", ["fedper", pytest.param("mr-mtl", marks=pytest.mark.exhaustive)])
def test_a_data_owner_has_its_own_model_as_a_file(name, deep_node, tmp_path, written):
    node = deep_node("one")
    for number in (1, 2):
        train(node, round=number, algorithm=named(name), steps=4)
    code, said, out, public = written(tmp_path / "one" / "guard.log")
    assert code == 0 and "Run run" in said and "after round 2" in said
    assert out.stat().st_mode & 0o777 == 0o600
    kept = KeptInFolder(next((tmp_path / "one").glob("*.kept"))).load(KeptFor("run", named(name), 3, "blobs/blobs"))
    own = DeepBlobs().model()
    torch.nn.utils.vector_to_parameters(kept, own.parameters())
    found = load_file(out)
    for parameter, values in own.named_parameters():
        expected = values if parameter in HOME.get(name, NAMES) else public[parameter]
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


@pytest.mark.exhaustive
def test_no_other_algorithm_is_given_what_a_client_kept(deep_node, tmp_path):
    """A server that asks for FedAvg, or another head, after FedPer gets steps from its own model."""
    node = deep_node("one")
    train(node, round=1, algorithm=named("fedper"), steps=4, learning_rate=50.0)
    folder = next((tmp_path / "one").glob("*.kept"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in folder.iterdir()] == [0o600]
    kept = KeptInFolder(folder).load(KeptFor("run", named("fedper"), 2, "blobs/blobs"))
    assert kept.abs().max() > 10.0
    for other in ("fedavg", "fedbn", "local", "mr-mtl", "ditto", "fedrep"):
        reply = train(node, round=2, algorithm=named(other), steps=4, run_id="run", learning_rate=1e-6, attempt=7)
        assert max(np.abs(array.numpy()).max() for array in reply.content["arrays"].values()) < 5.0
        node_round_two = KeptInFolder(folder).load(KeptFor("run", named(other), 3, "blobs/blobs"))
        assert node_round_two is None or node_round_two.abs().max() < 5.0
        node = deep_node(f"again-{other}", kept=folder)


def test_no_other_run_is_given_what_a_client_kept(deep_node):
    """It begins from the global model, whatever the run before has left."""
    one, fresh = deep_node("one"), deep_node("fresh")
    for number in (1, 2):
        train(one, round=number, algorithm=named("mr-mtl", pull=0.0), steps=2, learning_rate=50.0)
    replies = [
        train(node, round=3, algorithm=named("mr-mtl", pull=0.0), steps=2, learning_rate=1e-9, run_id="another")
        for node in (one, fresh)
    ]
    for parameter in NAMES:
        ours, theirs = (reply.content["arrays"][parameter].numpy() for reply in replies)
        assert np.abs(ours - theirs).max() < 1e-5


def test_a_round_that_is_asked_for_again_begins_where_it_began_before(deep_node, tmp_path):
    node = deep_node("one")
    for number in (1, 2):
        train(node, round=number, algorithm=named("local"), steps=2)
    kept = KeptInFolder(next((tmp_path / "one").glob("*.kept")))
    after_one = kept.load(KeptFor("run", named("local"), 2, "blobs/blobs"))
    train(node, round=2, attempt=2, algorithm=named("local"), steps=1, learning_rate=1e-9)
    again = kept.load(KeptFor("run", named("local"), 3, "blobs/blobs"))
    assert (again - after_one).abs().max() < 1e-6


def test_what_was_kept_and_is_damaged_is_refused_before_anything_is_charged(deep_node, tmp_path):
    node = deep_node("one")
    train(node, round=1, algorithm=named("local"), steps=2)
    next(next((tmp_path / "one").glob("*.kept")).iterdir()).write_bytes(b"no tensors")
    before = spent(node)
    assert str(code(train(node, round=2, algorithm=named("local"), steps=2))) == "guard-unusable"
    assert spent(node) == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pull": 1.0}, "pull is 1.0, which algorithm 'fedavg' does not take"),
        ({"algorithm": "scaffold", "momentum": 0.5}, "told by plain gradient steps"),
        ({"algorithm": "scaffold", "strategy": "fedtrimmedavg", "clients": 9}, "controls are told by the average"),
        ({"algorithm": "ditto", "local_steps": 1}, "give at least 2"),
        ({"algorithm": "fedrep", "local_steps": 3, "personal_steps": 3}, "give fewer personal-steps"),
        ({"fine_tuning_rounds": 5, "rounds": 5}, "no global model is trained"),
        ({"algorithm": "local", "fine_tuning_rounds": 2, "rounds": 5}, "trains each client's own model already"),
        ({"algorithm": "ditto", "buffer_size": 2, "concurrency": 3}, "makes rounds asynchronous"),
        ({"algorithm": "local", "user_level_epsilon": 3.0}, "user-level noise"),
        ({"algorithm": "raw"}, "algorithm is 'raw'"),
    ],
)
def test_settings_that_make_no_sense_together_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        plan_of(DeepBlobs(), **settings)


def test_flower_s_own_engine_has_no_checkpoint_for_them():
    with pytest.raises(ConfigError, match=r"algorithm is 'ditto'.*choose engine in-process"):
        fp.simulate(DeepBlobs(), algorithm="ditto", engine="ray", local_steps=2, rounds=1, progress=False)


def test_an_algorithm_that_the_model_has_no_layers_for_is_refused_before_anything_is_spent():
    with pytest.raises(ConfigError, match="choose algorithm local"):
        fp.simulate(Blobs(), algorithm="fedper", rounds=1, progress=False)
