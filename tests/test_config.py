"""A configuration is complete or refused, with every problem named at once."""

import math

import pytest
from torch import nn

from fedprivacy.config import FIELDS, ConfigError, resolve
from tests.flower.blobs import Blobs, PrivateSizes


def problems(**settings):
    task = settings.pop("task_object", None)
    with pytest.raises(ConfigError) as refused:
        resolve({key.replace("_", "-"): value for key, value in settings.items()}, task)
    return refused.value.problems


def test_what_is_left_open_comes_from_the_task_s_recipe():
    config = resolve({"task": "digits", "rounds": "", "epsilon": None})
    assert (config.rounds, config.epsilon, config.delta, config.clients) == (60, 3.0, 1e-4, 10)


def test_what_is_given_wins_over_the_recipe():
    assert resolve({"rounds": 7, "epsilon": 1}).rounds == 7
    assert resolve({"rounds": 7, "epsilon": 1}).epsilon == 1.0


def test_noise_without_a_budget_measures_and_noise_with_a_budget_enforces():
    assert math.isinf(resolve({"noise-multiplier": 1.0}).epsilon)
    both = resolve({"noise-multiplier": 1.0, "epsilon": 2.0})
    assert (both.noise_multiplier, both.epsilon) == (1.0, 2.0)


def test_all_problems_are_reported_at_once_with_setting_value_and_remedy():
    found = problems(
        rounds=0, sampling_rate=1.5, delta="small", colour="red", strategy="best", device="tpu", seed=-3, clients=2.5
    )
    assert len(found) == 8
    for words in (
        "rounds is 0; choose a number from 1",
        "sampling-rate is 1.5; choose a number from 1e-09 to 1",
        "delta is 'small'; give a number",
        "colour is not a setting; the settings are task, clients",
        "strategy is 'best'; choose one of fedavg",
        "device is 'tpu'; choose auto",
        "seed is -3; choose a number from 0",
        "clients is 2.5; give a whole number",
    ):
        assert any(problem.startswith(words) for problem in found), words


@pytest.mark.parametrize("value", [float("nan"), True, -1.0, 0.0])
def test_an_impossible_epsilon_is_refused(value):
    assert problems(epsilon=value)[0].startswith("epsilon is")


def test_no_noise_at_all_is_refused():
    assert "give a noise-multiplier" in problems(epsilon=math.inf)[0]


@pytest.mark.parametrize(
    ("task", "words"),
    [("nothing", "choose one of digits, cancer"), ("a/b.py:T", "does not exist"), ("math:Task", "defines no 'Task'")],
)
def test_a_task_that_is_not_there_is_named(task, words):
    assert words in problems(task=task)[0]


def test_a_ledger_that_is_no_sqlite_url_is_refused_before_anything_starts():
    assert "sqlite:///path/to/ledger.db" in problems(ledger="ledger.db")[0]


def test_a_model_with_batch_norm_is_refused_with_the_layer_and_the_remedy():
    class Normed(Blobs):
        def model(self):
            return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    assert "layer '1' is a BatchNorm1d" in problems(task_object=Normed())[0]


def test_private_shard_sizes_need_a_public_guess():
    class Unknown(PrivateSizes):
        nominal_shard_size = None

    assert "set nominal_shard_size" in problems(task_object=Unknown())[0]


def test_every_setting_has_a_help_text_and_survives_as_json():
    config = resolve({"noise-multiplier": 1.0})
    assert all(field.metadata["help"] for field in FIELDS.values())
    assert config.public().keys() == FIELDS.keys()
    assert config.public()["epsilon"] is None
    assert resolve(config.public()) == config
