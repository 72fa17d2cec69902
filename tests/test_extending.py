"""A stranger adds something with one entry of a registry: the settings accept it, `--help-all` lists it, and it runs.

What takes edits of several files is in `tests/additions`.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from fedprivacy.accounting import FILTERS, FixedMechanismFilter
from fedprivacy.flower import private_client
from fedprivacy.flower.simulated.engine import drive
from fedprivacy.gradients import FlatClipping
from fedprivacy.participation import COHORTS
from fedprivacy.runs.records.folder import read_history
from fedprivacy.runs.records.run import open_run
from fedprivacy.runs.settings.configuration import ConfigError, resolve
from fedprivacy.server.app import server_app
from fedprivacy.tasks import load_task
from fedprivacy.tasks.identity import BUILT_IN
from fedprivacy.training.adaptive import CLIPPINGS
from fedprivacy.training.algorithms import ALGORITHMS
from fedprivacy.training.optimizers import OPTIMIZERS
from tests.house import ROOT

SEED = 1
HOW_TO = ROOT / "docs" / "how-to" / "algorithms.md"

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(autouse=True)
def a_task(monkeypatch):
    """A task of the stranger's, which all the runs here are of."""
    monkeypatch.setitem(BUILT_IN, "blobs", "tests.flower.blobs:Blobs")


def run(folder, **settings):
    """The history of a run with these settings."""
    given = {"task": "blobs", "clients": 2, "rounds": 1, "epsilon": 9, "seed": SEED, "out": str(folder)}
    config = resolve(given | {key.replace("_", "-"): value for key, value in settings.items()})
    drive(server_app(config=config), private_client(config=config), config)
    return read_history(folder)


@dataclass(frozen=True, slots=True)
class SignSGD:
    """The same step in every coordinate (Bernstein et al. 2018); it takes no momentum."""

    learning_rate: float

    def start(self, position):
        return lambda gradient: position.sub_(gradient.sign_(), alpha=self.learning_rate)


def test_an_optimiser(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="optimizer is 'signsgd'; choose one of sgd, adam, adamw"):
        run(tmp_path, optimizer="signsgd", learning_rate=0.25)
    monkeypatch.setitem(OPTIMIZERS, "signsgd", SignSGD)
    with pytest.raises(ConfigError, match=r"momentum 0.9 .*choose sgd, or leave open"):
        run(tmp_path, optimizer="signsgd", learning_rate=0.25, momentum=0.9)
    with pytest.raises(ConfigError, match="optimizer is 'signsgd' and learning-rate is open"):
        run(tmp_path, optimizer="signsgd")
    run(tmp_path, optimizer="signsgd", learning_rate=0.25, clients=1, local_steps=1)
    moved = torch.nn.utils.parameters_to_vector(open_run(tmp_path, load_task("blobs")).model().parameters())
    assert torch.equal(moved.abs(), torch.full((6,), 0.25))


@dataclass(frozen=True, slots=True)
class FirstOnes:
    """The same clients in every round."""

    size: int

    def choose(self, client_ids, drawn):
        return set(sorted(client_ids)[: self.size])


def test_a_clipping_a_filter_and_a_way_to_draw_a_cohort(monkeypatch, tmp_path):
    used, asked = [], []

    class Noted(FlatClipping):
        def scales(self, squared_norms, clipping_norm):
            used.append(clipping_norm)
            return super().scales(squared_norms, clipping_norm)

    monkeypatch.setitem(CLIPPINGS, "noted", Noted)  # which were read from `gradients.clipping`, where an entry belongs
    monkeypatch.setitem(FILTERS, "noted", lambda budget: asked.append(budget) or FixedMechanismFilter(budget))
    monkeypatch.setitem(COHORTS, "first", lambda size, clients: FirstOnes(size))
    cohort = {"clients": 3, "rounds": 2, "cohort_size": 1, "cohort_sampling": "first"}
    history = run(tmp_path, clipping="noted", clipping_norm=0.25, filter="noted", **cohort)
    assert [result.participants for result in history.rounds] == [("client-0",)] * 2
    assert 0.25 in used and {budget.epsilon for budget in asked} == {9.0}
    with pytest.raises(ConfigError, match="choose one of fixed, poisson, first"):
        resolve({"cohort-size": 1, "cohort-sampling": "last"})


ENTRIES = """
import sys
from fedprivacy.accounting import FILTERS
from fedprivacy.gradients.clipping import CLIPPINGS
from fedprivacy.runs.settings.strategies import STRATEGIES, KnownStrategy
from fedprivacy.tasks.identity import BUILT_IN
from fedprivacy.trackers import TRACKERS
from fedprivacy.training.optimizers import OPTIMIZERS

registries = {"filter": FILTERS, "clipping": CLIPPINGS, "task": BUILT_IN, "tracker": TRACKERS, "optimizer": OPTIMIZERS}
for kind, registry in registries.items():
    registry["my" + kind] = None
STRATEGIES["mystrategy"] = KnownStrategy(source="mine:Mine", defaults={"server_momentum": 0.75})

from fedprivacy.commands.app import app

app(["simulate", "--help-all"], standalone_mode=False)
print(sorted({"torch", "flwr", "sqlalchemy"} & set(sys.modules)))
"""


def test_the_help_lists_whatever_there_is_and_needs_neither_torch_nor_flower_nor_a_database():
    wide = os.environ | {"COLUMNS": "400", "NO_COLOR": "1"}
    printed = subprocess.check_output([sys.executable, "-c", ENTRIES], text=True, env=wide)
    for words in (
        "flat, per-layer, automatic, myclipping, adaptive",
        "fixed-mechanism, adaptive, fixed-then-adaptive, myfilter",
        "digits, cancer, mytask",
        "tensorboard, mlflow, wandb, mytracker",
        "sgd, adam, adamw, myoptimizer",
        "krum, mystrategy",
        "0.9 for fedyogi, 0.75 for mystrategy",
    ):
        assert words in printed
    assert printed.splitlines()[-1] == "[]"


def test_an_algorithm_in_the_file_of_a_task(monkeypatch, tmp_path):
    """As docs/how-to/algorithms.md shows it."""
    with pytest.raises(ConfigError, match="algorithm is 'half-back'; choose one of"):
        run(tmp_path, algorithm="half-back")
    (code,) = re.findall(r"```python\n(from dataclasses.*?)```", HOW_TO.read_text(), re.DOTALL)
    mine = "from tests.flower.blobs import Blobs\n\n\nclass Mine(Blobs):\n    name = dataset = 'mine'\n"
    (tmp_path / "mine.py").write_text(code + mine)
    monkeypatch.setitem(ALGORITHMS, "half-back", None)  # and is gone when this ends
    task = f"{tmp_path}/mine.py:Mine"
    assert run(tmp_path / "run", task=task, algorithm="half-back").settings["algorithm"] == "half-back"
    run(tmp_path / "plain", task=task)
    models = [open_run(tmp_path / folder, load_task(task)).model() for folder in ("run", "plain")]
    with_it, without = (torch.nn.utils.parameters_to_vector(model.parameters()) for model in models)
    assert not torch.equal(with_it, without)
