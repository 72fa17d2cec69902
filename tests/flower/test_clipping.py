"""The clipping setting reaches the client, costs the same, and an adapted norm lasts from round to round."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from flwr.serverapp.strategy import FedAvg

from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.gradients import AutomaticClipping, FlatClipping, PerLayerClipping
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.training.adaptive import CLIPPINGS, QuantileClipping
from fedprivacy.training.dpsgd import DPSGD
from tests.flower.blobs import Blobs, plan_of


def run(plan):
    """The round records, each client's own state after the run, and the clipping norms that the server knows."""
    records = []
    grid = InProcessGrid(private_client(plan.task, plan.config), plan.config.clients, {})
    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    with TemporaryDirectory() as folder:
        PrivateStrategy(fedavg, plan, observers=[records.append], checkpoints=Path(folder)).start(grid)
        norms = load_checkpoint(Path(folder)).clipping_norms
    return records[1:], [context.state for context in grid._contexts.values()], norms


@pytest.mark.exhaustive
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_every_clipping_trains_at_the_same_cost(clipping, tmp_path):
    plan = plan_of(Blobs(), clipping=clipping, epsilon=50.0, rounds=8, ledger=f"sqlite:///{tmp_path / 'l.db'}")
    flat = plan_of(Blobs(), epsilon=50.0, rounds=8, ledger=f"sqlite:///{tmp_path / 'flat.db'}")
    records, *_ = run(plan)
    assert records[-1].metrics["accuracy"] > 0.75
    assert plan.event() == flat.event()
    assert [c.epsilon for c in records[-1].spent.values()] == [c.epsilon for c in run(flat)[0][-1].spent.values()]


def test_the_setting_chooses_the_clipping(monkeypatch, tmp_path):
    used = []
    train = DPSGD.train

    def noting(self, engine, *args, **kwargs):
        used.append((type(engine._clipping), self.gradient.adaptive))
        return train(self, engine, *args, **kwargs)

    monkeypatch.setattr(DPSGD, "train", noting)
    for clipping in CLIPPINGS:
        run(plan_of(Blobs(), clipping=clipping, clients=1, epsilon=9.0, ledger=f"sqlite:///{tmp_path / clipping}.db"))
    chosen = dict(zip(CLIPPINGS, used[:: len(used) // len(CLIPPINGS)], strict=True))
    assert chosen == {
        "flat": (FlatClipping, None),
        "per-layer": (PerLayerClipping, None),
        "automatic": (AutomaticClipping, None),
        "adaptive": (FlatClipping, QuantileClipping()),
    }


def test_an_adapted_norm_is_kept_by_the_server_from_round_to_round(monkeypatch, tmp_path):
    norms = []
    train = DPSGD.train

    def noting(self, *args, **kwargs):
        update = train(self, *args, **kwargs)
        norms.append((self.gradient.mechanism.clipping_norm, update.clipping_norm))
        return update

    monkeypatch.setattr(DPSGD, "train", noting)
    settings = {"clients": 1, "rounds": 4, "noise_multiplier": 2.0, "clipping_norm": 0.01, "clipping": "adaptive"}
    _, (state,), kept = run(plan_of(Blobs(), **settings, ledger=f"sqlite:///{tmp_path / 'l.db'}"))
    starts, ends = zip(*norms, strict=True)
    assert starts[0] == 0.01
    assert list(starts[1:]) == list(ends[:-1])
    assert len(set(ends)) > 1
    assert kept == {"client-0": ends[-1]}
    assert not state  # a client's process may end after any round
    assert not math.isclose(ends[-1], 0.01, rel_tol=0.05)
    norms.clear()  # another run begins with its own setting
    run(plan_of(Blobs(), **settings, ledger=f"sqlite:///{tmp_path / 'other.db'}"))
    assert norms[0][0] == 0.01


def test_a_norm_that_stays_is_not_kept(tmp_path):
    plan = plan_of(Blobs(), clients=2, rounds=1, clipping="flat", ledger=f"sqlite:///{tmp_path / 'l.db'}")
    assert run(plan)[2] == {}


def test_an_unknown_clipping_is_named(tmp_path):
    with pytest.raises(ConfigError, match="clipping is 'round'; choose one of flat, per-layer, automatic, adaptive"):
        plan_of(Blobs(), clipping="round")
