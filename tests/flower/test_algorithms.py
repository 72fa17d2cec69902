"""Algorithms in whole rounds: by messages and together, stopped and resumed, and what a deployed client holds back."""

import random
import shutil

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import fedprivacy as fp
from fedprivacy.commands.guard import guard_app
from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.flower.client.cohort import Population
from fedprivacy.flower.client.kept import KeptFor, KeptInFolder
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.gradients import flat_parameters
from fedprivacy.runs.configuration import ConfigError
from fedprivacy.runs.folder import RunFolderError
from fedprivacy.training.algorithms import ALGORITHMS, algorithm_of, text_of
from fedprivacy.training.evaluation import LocalEvaluation
from fedprivacy.training.kept import personal_mask
from tests.flower import asked
from tests.flower.asked import code, node_of, spent
from tests.flower.blobs import Blobs, _blobs, plan_of
from tests.flower.runs import SAMPLING

EVERY = sorted(ALGORITHMS)
KEEPING = [name for name in EVERY if ALGORITHMS[name].keeps]


class DeepBlobs(Blobs):
    """With a body, a normalisation and a head; and ten records of each client held out."""

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))

    def held_out(self, source):
        return _blobs(10, seed=50 + source.partition_id)


class OneHospital(DeepBlobs):
    """The records of one data owner, by a seed: those of two seeds are neighbours in every record."""

    def __init__(self, seed):
        self.seed = seed

    def shard(self, source):
        return _blobs(40, self.seed)


HOSPITALS = [OneHospital(seed) for seed in (0, 1)]
NAMES = [name for name, _ in DeepBlobs().model().named_parameters()]
HOME = {"fedper": ["3.weight", "3.bias"], "fedrep": ["3.weight", "3.bias"], "fedbn": ["1.weight", "1.bias"]}
"""Which parameters stay with the client."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(name, *, together, ledger, fraction=0.5, resume=None, checkpoints=None, stop=None, **settings):
    """The finished strategy, with its records and its grid."""
    random.seed(0)
    plan = plan_of(DeepBlobs(), algorithm=name, rounds=4, local_steps=4, ledger=f"sqlite:///{ledger}.db", **settings)
    records = []

    def observe(result):
        records.append(result)
        if result.round == stop:
            raise KeyboardInterrupt

    strategy = PrivateStrategy(
        FedAvg(fraction_train=fraction, **SAMPLING),
        plan,
        observers=[observe],
        resume=resume,
        checkpoints=checkpoints,
        run_id="a-run",
    )
    population = Population(plan.task, plan.config) if together else None
    strategy.grid = InProcessGrid(private_client(plan.task, plan.config), plan.config.clients, {}, 1, population)
    strategy.records = records
    if stop is None:
        strategy.start(strategy.grid)
    else:
        with pytest.raises(KeyboardInterrupt):
            strategy.start(strategy.grid)
    return strategy


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


@pytest.mark.parametrize("name", EVERY)
def test_a_population_has_the_run_that_it_would_have_by_messages(name):
    messages, together = (run(name, together=each, ledger=f"{each}") for each in (False, True))
    assert np.abs(flat(messages.result.arrays) - flat(together.result.arrays)).max() < 2e-6
    own, other = messages.grid.kept, together.grid.kept
    assert own.algorithm == (other.algorithm if name in KEEPING else "")
    assert own.own.keys() == other.own.keys()
    assert bool(own.own) == (name in KEEPING)
    for client_id, kept in own.own.items():
        assert (kept - other.own[client_id]).abs().max() < 2e-5
    for one, two in zip(messages.records, together.records, strict=True):
        assert dict(one.spent) == dict(two.spent)


@pytest.mark.parametrize("together", [False, True], ids=["messages", "together"])
def test_scaffold_s_control_is_the_weighted_mean_of_the_clients_own(together, tmp_path):
    tmp_path.joinpath("kept").mkdir()
    strategy = run("scaffold", together=together, ledger="book", checkpoints=tmp_path / "kept")
    kept, sizes = strategy.grid.kept.own, [30, 31, 32, 33]
    weights = torch.tensor([float(sizes[int(client_id.removeprefix("client-"))]) for client_id in kept])
    rows = torch.stack(list(kept.values())).double()
    expected = (weights[:, None] * rows).sum(0) / weights.sum()
    control = load_checkpoint(tmp_path / "kept").control
    assert control.weights == {client_id: sizes[int(client_id.removeprefix("client-"))] for client_id in kept}
    assert len(kept) > 1
    torch.testing.assert_close(control.value.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("together", [False, True], ids=["messages", "together"])
@pytest.mark.parametrize(("name", "settings"), [(n, {}) for n in KEEPING] + [("fedavg", {"fine_tuning_rounds": 3})])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(name, settings, together, tmp_path):
    whole = run(name, together=together, ledger="whole", **settings)
    folder = tmp_path / "stopped"
    folder.mkdir()
    run(name, together=together, ledger="stopped", checkpoints=folder, stop=3, **settings)
    stopped = load_checkpoint(folder)
    assert stopped.round == 2 and stopped.kept
    resumed = run(name, together=together, ledger="stopped", checkpoints=folder, resume=stopped, **settings)
    assert np.array_equal(flat(resumed.result.arrays), flat(whole.result.arrays))
    assert resumed.grid.kept.own.keys() == whole.grid.kept.own.keys()
    assert all(torch.equal(kept, whole.grid.kept.own[c]) for c, kept in resumed.grid.kept.own.items())
    assert resumed.records[-1].held_out == whole.records[-1].held_out


def test_each_client_is_measured_with_the_model_that_it_uses():
    last = run("local", together=True, ledger="book", fraction=1.0)
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
    assert [bool(record.held_out) for record in last.records] == [False] * 4 + [True]
    losses = [told.means["loss"] for told in last.records[-1].held_out.values()]
    metrics = last.records[-1].metrics
    for name, expected in (
        ("each_loss", np.mean(losses)),
        ("each_loss_least", min(losses)),
        ("each_loss_most", max(losses)),
    ):
        assert metrics[name] == pytest.approx(expected)


def test_a_null_row_that_is_held_out_counts_in_no_figure():
    class Unreadable(DeepBlobs):
        def held_out(self, source):
            read = super().held_out(source)
            missing = torch.full_like(read.inputs[:1], torch.nan)
            return fp.Shard(torch.cat([read.inputs, missing]), torch.cat([read.targets, read.targets[:1]]))

    settings = {"algorithm": "fedper", "clients": 3, "rounds": 1, "seed": 1, "progress": False}
    found = [fp.simulate(task(), **settings, out=task.__name__).held_out for task in (DeepBlobs, Unreadable)]
    assert found[0] == found[1] and [row["records"] for row in found[1]] == [10, 10, 10]


def test_a_client_s_own_model_is_in_the_run_s_folder():
    run = fp.simulate(DeepBlobs(), algorithm="fedper", clients=3, rounds=2, out="run", progress=False)
    shared, own = run.model(), run.model(client_id="client-1")
    assert not torch.equal(own[3].weight, shared[3].weight)
    assert torch.equal(own[0].weight, shared[0].weight)
    assert [row["client_id"] for row in run.held_out] == ["client-0", "client-1", "client-2"]
    records = DeepBlobs().held_out(fp.ShardSource(partition_id=1, num_partitions=3))
    with torch.no_grad():
        loss = DeepBlobs().loss(own(records.inputs), records.targets).double().mean().item()
    assert run.held_out[1]["loss"] == pytest.approx(loss)
    assert "For each client" in run.report.read_text()
    plain = fp.simulate(DeepBlobs(), clients=3, rounds=2, out="plain", progress=False)
    with pytest.raises(RunFolderError, match="no model of client-1"):
        plain.model(client_id="client-1")


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
    tuned = run("fedavg", together=True, ledger="tuned", fine_tuning_rounds=2, fraction=1.0)
    plain = run("fedavg", together=True, ledger="plain", fraction=1.0, stop=3)
    assert np.array_equal(flat(tuned.result.arrays), flat(plain.result.arrays))
    assert len({tuple(kept.tolist()) for kept in tuned.grid.kept.own.values()}) == 4
    assert tuned.records[-1].spent["client-0"].steps == 16


@pytest.mark.parametrize("together", [False, True], ids=["messages", "together"])
def test_fine_tuning_begins_at_the_global_model_whatever_an_algorithm_kept_before(together):
    """Scaffold's controls are gradients, and no model; steps as small as these lead nowhere."""
    tuned = run("scaffold", together=together, ledger="book", fine_tuning_rounds=2, fraction=1.0, learning_rate=1e-6)
    shared = torch.from_numpy(flat(tuned.result.arrays))
    assert len(tuned.grid.kept.own) == 4
    for kept in tuned.grid.kept.own.values():
        assert 0.0 < (kept - shared).abs().max() < 1e-3


def named(name, **settings):
    return text_of(ALGORITHMS[name](**settings))


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


TASK = f"{__name__}:DeepBlobs"


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


@pytest.mark.parametrize("name", ["fedper", "mr-mtl", "local"])
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


@pytest.mark.parametrize("name", KEEPING)
def test_flower_s_own_engine_has_no_checkpoint_for_them(name):
    with pytest.raises(ConfigError, match=f"algorithm is '{name}'.*choose engine in-process"):
        fp.simulate(DeepBlobs(), algorithm=name, engine="ray", local_steps=2, rounds=1, progress=False)


def test_an_algorithm_that_the_model_has_no_layers_for_is_refused_before_anything_is_spent():
    with pytest.raises(ConfigError, match="choose algorithm local"):
        fp.simulate(Blobs(), algorithm="fedper", rounds=1, progress=False)


def test_a_text_names_the_algorithm_that_a_run_has():
    config = plan_of(DeepBlobs(), algorithm="ditto", pull=0.5, personal_steps=1, fine_tuning_rounds=0).config
    assert algorithm_of(text_of(config.algorithm_in(1))) == config.algorithm_in(1)
    assert config.algorithm_in(1).pull == 0.5
