"""The clipping setting reaches the client, costs the same, and an adapted norm lasts from round to round."""

import math
from pathlib import Path

import pytest

from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.gradients import AutomaticClipping, FlatClipping, PerLayerClipping
from fedprivacy.training.adaptive import CLIPPINGS, QuantileClipping
from fedprivacy.training.dpsgd import DPSGD
from tests.flower import runs
from tests.flower.blobs import Blobs, plan_of


def run(name, **settings):
    """The round records, each client's own state after the run, and the clipping norms that the server knows."""
    Path(name).mkdir()
    done = runs.run(plan_of(Blobs(), **settings, ledger=f"sqlite:///{name}/l.db"), checkpoints=Path(name))
    states = [context.state for context in done.grid._contexts.values()]
    return done.records, states, load_checkpoint(Path(name)).clipping_norms


@pytest.mark.exhaustive
def test_every_clipping_trains_at_the_same_cost():
    trained = [run(name, clipping=name, epsilon=50.0, rounds=8)[0][-1] for name in CLIPPINGS]
    assert all(record.metrics["accuracy"] > 0.75 for record in trained)
    assert len({tuple(client.epsilon for client in record.spent.values()) for record in trained}) == 1


def test_the_setting_chooses_the_clipping_and_an_adapted_norm_is_kept_by_the_server_from_round_to_round(monkeypatch):
    used, norms, train = [], [], DPSGD.train

    def noting(self, engine, *args, **kwargs):
        update = train(self, engine, *args, **kwargs)
        used.append((type(engine._clipping), self.gradient.adaptive))
        norms.append((self.gradient.mechanism.clipping_norm, update.clipping_norm))
        return update

    monkeypatch.setattr(DPSGD, "train", noting)
    chosen = {
        "flat": (FlatClipping, None),
        "per-layer": (PerLayerClipping, None),
        "automatic": (AutomaticClipping, None),
        "adaptive": (FlatClipping, QuantileClipping()),
    }
    assert chosen.keys() == set(CLIPPINGS)
    for clipping, expected in chosen.items():
        used.clear(), norms.clear()  # each run begins with its own setting
        settings = {"clients": 1, "rounds": 4, "noise_multiplier": 2.0, "clipping_norm": 0.01, "clipping": clipping}
        _, (state,), kept = run(clipping, **settings)
        starts, ends = zip(*norms, strict=True)
        assert set(used) == {expected} and not state  # a client's process may end after any round
        assert starts == (0.01, *ends[:-1])
        assert kept == ({"client-0": ends[-1]} if clipping == "adaptive" else {})
        assert math.isclose(ends[-1], 0.01, rel_tol=0.05) is (clipping != "adaptive")
        assert (len(set(ends)) > 1) is (clipping == "adaptive")
