"""School: whose pupils are trained on and held out, and that runs keep their budgets. The goals are the command's."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedprivacy.tasks import ShardSource
from simulations.reproduce import school
from simulations.reproduce.experiment import Workplace

SIZES = (30, 55, 80, 105)


@pytest.fixture
def few(tmp_path, monkeypatch):
    """A file of made-up schools, as the true one is laid out; a pupil's score follows from one feature."""
    random = np.random.default_rng(1)
    features, scores = np.empty((1, len(SIZES)), object), np.empty((1, len(SIZES)), object)
    for place, size in enumerate(SIZES):
        features[0, place] = random.integers(0, 2, (size, school.FEATURES))
        features[0, place][:, school.PERCENTAGES] *= 50
        scores[0, place] = 20.0 + 30.0 * features[0, place][:, :1] + np.arange(size)[:, None] / size
    savemat(tmp_path / "school.mat", {"X": features, "Y": scores})
    monkeypatch.setattr(school, "SCHOOLS", len(SIZES))
    return tmp_path


def test_a_pupil_is_either_trained_on_or_held_out(few):
    task = school.School(few / "school.mat", 0)
    for place, size in enumerate(SIZES):
        source = ShardSource(partition_id=place, num_partitions=len(SIZES))
        trained, held = task.shard(source), task.held_out(source)
        assert (len(trained), len(held)) == (size - round(0.2 * size), round(0.2 * size))
        together = torch.cat([trained.targets, held.targets])
        assert len(together.unique()) == size and together.max() <= 50.0 + 1.0 / school.LARGEST_SCORE
        assert trained.inputs.min() >= 0 and trained.inputs.max() <= 1.0


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_short_runs_keep_their_budgets_and_personal_models_their_schools(few, monkeypatch, tmp_path):
    for name, value in {"rounds": 20, "learning_rate": 0.1}.items():
        monkeypatch.setitem(school.SETTINGS, name, value)
    monkeypatch.setattr(school, "EPSILONS", (6.0, 10.0))
    found = dict(school.SCHOOL.measure(100, Workplace(few, tmp_path / "runs", print)))
    assert list(found) == [row.name for row in school.SCHOOL.rows]
    for name, measured in found.items():
        budget = 10.0 if name.endswith("at 10") else 6.0
        assert 0.9 * budget < measured.epsilon <= budget
    untrained = (35.0 / school.LARGEST_SCORE) ** 2
    assert max(measured.value for measured in found.values()) < untrained
    assert len({measured.value for measured in found.values()}) == len(found)
