"""Every strategy averages in its own way for the same privacy; a user's own is made on the server, and nowhere else."""

import functools
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg, FedMedian

from fedprivacy._support.settings import key_of
from fedprivacy.accounting import pld
from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.runs.settings.configuration import ConfigError, resolve
from fedprivacy.runs.settings.strategies import STRATEGIES
from fedprivacy.server.app import build_strategy
from tests.flower.blobs import Blobs, plan_of
from tests.flower.runs import model_of, run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The model, flat, and what each client has spent after two rounds with a strategy; each is run once."""

    @functools.cache
    def run_once(strategy, **settings):
        random.seed(1)
        ledger = f"sqlite:///{tmp_path_factory.mktemp(strategy) / 'ledger.db'}"
        plan = plan_of(Blobs(), clients=5, rounds=2, epsilon=4.0, ledger=ledger, strategy=strategy, **settings)
        done = run(plan, build_strategy(plan.config))
        return model_of(done), {client: spent.epsilon for client, spent in done.records[-1].spent.items()}

    return run_once


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("fedadam", "krum") else [pytest.mark.exhaustive])
        for name in STRATEGIES
        if name != "fedavg"
    ],
)
def test_every_strategy_makes_another_model_than_fedavg_at_the_same_cost_and_each_setting_reaches_it(name, made):
    (model, spent), (usual, usually_spent) = made(name), made("fedavg")
    assert (model - usual).abs().max() > 1e-5  # the same seed gives the same model to the last bit
    assert spent == usually_spent
    for setting in STRATEGIES[name].defaults:
        assert (made(name, **{setting: 0.5})[0] - model).abs().max() > 1e-3


def test_a_run_ends_when_fewer_clients_have_budget_left_than_the_strategy_needs(tmp_path):
    """One of five clients has spent half of its budget before, and the second round would be without it."""
    settings = {"clients": 5, "noise_multiplier": 2.0, "ledger": f"sqlite:///{tmp_path / 'ledger.db'}"}
    twice = plan_of(Blobs(), rounds=2, **settings)
    settings["epsilon"] = pld.epsilon({twice.event(): twice.total_steps}, twice.config.delta) + 1e-6
    before = plan_of(Blobs(), rounds=1, fraction_train=0.2, **settings)
    run(before, build_strategy(before.config))
    plan = plan_of(Blobs(), rounds=3, strategy="krum", **settings)
    done = run(plan, build_strategy(plan.config))
    assert len(done.records) == 1
    assert done.result.stopped_because == "4 clients with budget left are too few for the strategy"
    assert sorted(spent.rounds for spent in done.records[-1].spent.values()) == [1, 1, 1, 1, 2]


OWN = """
from flwr.serverapp.strategy import FedAvgM, FedMedian as Median

def halfway(server_learning_rate=0.5, min_train_nodes=2):
    return FedAvgM(server_learning_rate=server_learning_rate, min_train_nodes=min_train_nodes, min_available_nodes=1)

ready = Median(fraction_evaluate=0.0)
number = 3

def needy(colour):
    return Median()
"""


@pytest.fixture
def own(tmp_path):
    """The configuration of a strategy of the user's own, by its name in a file."""
    (tmp_path / "averaging.py").write_text(OWN)

    def configured(name, **settings):
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        return resolve({"strategy": f"{tmp_path}/averaging.py:{name}"} | given)

    return configured


def test_a_class_a_function_and_an_object_in_a_file_are_strategies(own):
    median = build_strategy(own("Median", fraction_train=0.5))
    assert isinstance(median, FedMedian) and (median.fraction_train, median.min_train_nodes) == (0.5, 1)
    halfway = build_strategy(own("halfway"))
    assert (halfway.server_learning_rate, halfway.min_train_nodes) == (0.5, 1)
    assert build_strategy(own("halfway", server_learning_rate=0.25)).server_learning_rate == 0.25
    assert isinstance(build_strategy(own("ready")), FedMedian)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("Nobody", {}, "averaging.py defines no 'Nobody'; name what it defines."),
        ("number", {}, "makes a value of type int; let it make a Flower Strategy."),
        ("Median", {"server_momentum": 0.5}, "takes no server-momentum; leave that open, or let it take"),
        ("ready", {"fraction_train": 0.5}, "takes no fraction-train; leave that open"),
        ("needy", {}, "missing a required argument: 'colour'; give every argument a default."),
    ],
)
def test_what_makes_no_strategy_is_named_with_the_remedy(own, name, settings, words):
    with pytest.raises(ConfigError) as refused:
        build_strategy(own(name, **settings))
    (problem,) = refused.value.problems
    assert problem.startswith("strategy is '") and words in problem


def test_the_how_to_knows_every_strategy_with_its_defaults_and_its_example_works(tmp_path):
    text = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "strategies.md").read_text()
    for name, known in STRATEGIES.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*", text, re.MULTILINE)
        assert all(f"--{key_of(setting)} {value:g}" in row for setting, value in known.defaults.items())
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "averaging.py").write_text(example)
    median = build_strategy(resolve({"strategy": f"{tmp_path}/averaging.py:median", "fraction-train": 0.5}))
    assert isinstance(median, FedMedian) and (median.fraction_train, median.min_available_nodes) == (0.5, 1)


def test_a_client_imports_nothing_that_a_server_names(tmp_path):
    """It reads the same settings and works, though the strategy's file would fail, and leave a trace."""
    trace = tmp_path / "imported"
    (tmp_path / "trap.py").write_text(f"open({str(trace)!r}, 'w')\nraise SystemExit\n")
    plan = plan_of(Blobs(), rounds=1, ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    run_config = {key: value for key, value in plan.config.public().items() if value is not None and key != "task"} | {
        "strategy": f"{tmp_path}/trap.py:Trap"
    }
    told = []
    wrapped = PrivateStrategy(FedAvg(min_train_nodes=1, min_available_nodes=1), plan, observers=[told.append])
    wrapped.start(InProcessGrid(private_client(Blobs()), plan.config.clients, run_config))
    assert len(told[-1].participants) == 4 and not told[-1].failures
    assert not trace.exists()
    with pytest.raises(SystemExit):
        build_strategy(replace(plan.config, strategy=run_config["strategy"]))
    assert trace.exists()
