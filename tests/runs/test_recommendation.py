"""Settings from public facts alone: no record changes them, and each follows from the budget as its reason says."""

import math

import pytest
import torch

import fedprivacy as fp
from fedprivacy.runs.recommendation import LARGEST_PRODUCT, LONGEST_STRIDES, OWN_STRIDE
from fedprivacy.runs.settings.configuration import ConfigError


class Sealed(fp.Task):
    """Private sizes: nothing of a shard may be touched."""

    dataset = "sealed"
    recipe = fp.Recipe(clients=6, epsilon=2.0, delta=1e-4)
    shard_sizes_public = False
    nominal_shard_size = 200

    def model(self):
        return torch.nn.Linear(12, 3)

    def shard(self, source):
        raise AssertionError("a private shard was opened")

    def evaluate(self, model):
        raise AssertionError("the model was evaluated")


class Open(fp.Task):
    """Public sizes: 20, 40, 60 records, of which the values are given."""

    dataset = "open"
    recipe = fp.Recipe(clients=3, epsilon=2.0, delta=1e-4)

    def __init__(self, values, outputs=2):
        self.values, self.outputs = values, outputs

    def model(self):
        return torch.nn.Linear(5, self.outputs)

    def shard(self, source):
        size = 20 * (source.partition_id + 1)
        return fp.Shard(self.values * torch.ones(size, 5), torch.zeros(size, dtype=torch.int64))


def test_no_record_changes_what_is_recommended():
    """A private shard is never opened."""
    found = fp.recommend(Sealed())
    assert (found.facts.records, found.facts.guessed, found.facts.parameters) == (1200.0, True, 39)
    assert found.facts.outputs == 3 and "about 1,200 records in 6 clients" in str(found.facts)
    assert fp.recommend(Open(0.0)) == fp.recommend(Open(math.pi)) == fp.recommend(Open(math.nan))


class Deep(Sealed):
    """A body of 78 parameters, and a head of 21."""

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(12, 6), torch.nn.Linear(6, 3))


@pytest.mark.parametrize(("algorithm", "clients"), [("mr-mtl", 4), ("ditto", 40)])
def test_an_algorithm_that_pulls_gets_a_pair_whose_product_is_below_1(algorithm, clients):
    found = fp.recommend(Sealed(), algorithm=algorithm, clients=clients)
    chosen = found.settings
    assert chosen["algorithm"] == algorithm and found.advice == ()
    product, steps = chosen["pull"] * chosen["learning_rate"], chosen["rounds"]  # of which one a round is its own
    assert product == pytest.approx(min(clients / (2 * steps), LARGEST_PRODUCT), rel=0.05)
    (why,) = (choice.why for choice in found.choices if choice.key == "pull")
    assert f"times the learning rate it is {product:.2g}" in why


def test_a_given_pull_bounds_the_learning_rate():
    free, bound = (fp.recommend(Sealed(), algorithm="mr-mtl", **given) for given in ({}, {"pull": 1.0}))
    assert bound.settings["pull"] == 1.0 and bound.settings["learning_rate"] == LARGEST_PRODUCT
    assert free.settings["learning_rate"] > 1.0
    (why,) = (choice.why for choice in bound.choices if choice.key == "learning-rate")
    assert "with pull 1 it leaves each client half of its own way in a step" in why
    with pytest.raises(ConfigError, match=r"pull is 1\.0, which algorithm 'fedavg' does not take"):
        fp.recommend(Sealed(), pull=1.0)


def test_parameters_that_are_not_averaged_get_a_shorter_path():
    rates = {name: fp.recommend(Deep(), algorithm=name).settings["learning_rate"] for name in ("fedavg", "local")}
    assert rates["fedavg"] / rates["local"] == pytest.approx(math.sqrt(6), rel=0.05)
    partly = fp.recommend(Deep(), algorithm="fedper")
    share = 21 / 99
    expected = rates["fedavg"] / math.sqrt(1 - share + 6 * share)
    assert partly.settings["learning_rate"] == pytest.approx(expected, rel=0.05)
    (why,) = (choice.why for choice in partly.choices if choice.key == "learning-rate")
    assert "21% of the parameters are not averaged" in why


def test_with_hardly_any_noise_the_step_is_what_limits_and_a_model_of_one_s_own_takes_shorter_ones():
    for algorithm, factor in (("scaffold", 1.0), ("local", OWN_STRIDE), ("mr-mtl", OWN_STRIDE)):
        chosen = fp.recommend(Sealed(), shard_size=10**6, algorithm=algorithm).settings
        stride = chosen["learning_rate"] * chosen["clipping_norm"]
        assert stride == pytest.approx(factor * LONGEST_STRIDES["scores"], rel=0.05)
    number = fp.recommend(Open(0.0, outputs=1), epsilon=100.0)
    assert number.facts.outputs == 1
    assert number.settings["learning_rate"] * number.settings["clipping_norm"] <= LONGEST_STRIDES["number"] * 1.05


def test_what_must_be_known_is_asked_for_and_a_model_whose_input_nothing_tells_has_scores():
    class Hidden(Open):
        def shard(self, source):
            raise FileNotFoundError("only on the hospital's own host")

    with pytest.raises(ConfigError, match="not known here; give a guess of the shard size"):
        fp.recommend(Hidden(0.0))
    found = fp.recommend(Hidden(0.0), shard_size=50)
    assert found.facts.guessed and found.facts.records == 150 and found.facts.outputs == 2

    class Convolved(Sealed):
        def model(self):
            return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(18, 1))

    assert fp.recommend(Convolved()).facts.outputs is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"shard_size": 0}, "shard size is 0; give a number of records, at least 1"),
        ({"shard_size": "many"}, "shard size is 'many'; give a number of records"),
        ({"epsilon": -1.0}, "epsilon is -1.0; choose a number above 0"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": 1e-9}, "epsilon is 1e-09 .* choose a larger epsilon or fewer steps"),
    ],
)
def test_what_nothing_can_be_recommended_for_is_named(given, told):
    with pytest.raises(ConfigError, match=told):
        fp.recommend(Sealed(), **given)
