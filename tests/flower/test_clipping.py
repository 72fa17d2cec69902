"""The clipping setting reaches the client, and an adapted norm lasts from round to round."""

import math
from pathlib import Path

import pytest

from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.gradients import AutomaticClipping, FlatClipping, PerLayerClipping
from fedprivacy.training.adaptive import CLIPPINGS, QuantileClipping
from fedprivacy.training.dpsgd import DPSGD
from tests.flower.blobs import Blobs, plan_of
from tests.flower.runs import run


@pytest.mark.exhaustive
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
        run(plan_of(Blobs(), **settings, ledger=f"sqlite:///{clipping}.db"), checkpoints=Path())
        kept = load_checkpoint(Path()).clipping_norms
        starts, ends = zip(*norms, strict=True)
        assert set(used) == {expected}
        assert starts == (0.01, *ends[:-1])
        assert kept == ({"client-0": ends[-1]} if clipping == "adaptive" else {})
        assert math.isclose(ends[-1], 0.01, rel_tol=0.05) is (clipping != "adaptive")
        assert (len(set(ends)) > 1) is (clipping == "adaptive")
