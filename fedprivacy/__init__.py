"""fedprivacy: federated learning where the privacy cost is a first-class result.

>>> import fedprivacy as fp
>>> sigma = fp.noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
>>> fp.epsilon(noise_multiplier=sigma, delta=1e-5, sampling_rate=0.01, steps=1000) <= 1.0
True

What there is: `simulate` trains a federation on this machine, `sweep` every combination of settings, `list_runs`
finds runs again, `open_run` opens what it recorded, `compare` puts runs side by side, `plan` tells the cost before,
`recommend` chooses settings, `audit_training` tells whether the code deserves its epsilon; a `Callback`, such as
`EarlyStopping`, hears of every round; a task of one's own is made of `Task`, `Recipe`, `Shard`, `ShardSource`, `Unit`
and `Score`, and `tasks` has the built-in ones; `load_table` reads a CSV or Parquet file as a shard, by `Number`,
`Category` and `Date`, `read_table` as a `Table`, which questions are asked of, and a simulation splits it by one of
`ByColumn`, `ByDirichlet` and `Evenly`;
`PrivateStrategy` and `private_client` make a Flower app private; `train` is DP-SGD without a federation, and
`PrivateGradients` is for a loop of one's own; `epsilon`, `noise_multiplier` and `risk` calculate.

Every name is loaded when it is first asked for: to import this package loads neither torch nor Flower. It sets two
environment variables unless they are set, `MKL_CBWR` and `GOMP_SPINCOUNT` (`fedprivacy._support.native` says why); so
import it before torch.
"""

from typing import TYPE_CHECKING, Any

from fedprivacy._support.imports import from_homes, names_of
from fedprivacy._support.native import ask_for_short_waits, ask_for_strict_products

if TYPE_CHECKING:
    from fedprivacy import tasks as tasks
    from fedprivacy.accounting.calculator import epsilon as epsilon
    from fedprivacy.accounting.calculator import noise_multiplier as noise_multiplier
    from fedprivacy.accounting.calculator import risk as risk
    from fedprivacy.audit.auditor import audit_training as audit_training
    from fedprivacy.flower.client.client_app import private_client as private_client
    from fedprivacy.flower.server.strategy import PrivateStrategy as PrivateStrategy
    from fedprivacy.guard.errors import BudgetExhaustedError as BudgetExhaustedError
    from fedprivacy.runs.callbacks import Callback as Callback
    from fedprivacy.runs.callbacks import EarlyStopping as EarlyStopping
    from fedprivacy.runs.prospect import plan as plan
    from fedprivacy.runs.recommendation import recommend as recommend
    from fedprivacy.runs.records.catalogue import list_runs as list_runs
    from fedprivacy.runs.records.comparison import compare as compare
    from fedprivacy.runs.records.run import Run as Run
    from fedprivacy.runs.records.run import open_run as open_run
    from fedprivacy.runs.settings.configuration import ConfigError as ConfigError
    from fedprivacy.simulation.ask import ask as ask
    from fedprivacy.simulation.simulate import simulate as simulate
    from fedprivacy.simulation.sweeps import sweep as sweep
    from fedprivacy.single.loop import train as train
    from fedprivacy.single.private_gradients import PrivateGradients as PrivateGradients
    from fedprivacy.tasks import Augmentation as Augmentation
    from fedprivacy.tasks import Recipe as Recipe
    from fedprivacy.tasks import Score as Score
    from fedprivacy.tasks import Shard as Shard
    from fedprivacy.tasks import ShardSource as ShardSource
    from fedprivacy.tasks import Task as Task
    from fedprivacy.tasks.columns import Table as Table
    from fedprivacy.tasks.features import Category as Category
    from fedprivacy.tasks.features import Date as Date
    from fedprivacy.tasks.features import Number as Number
    from fedprivacy.tasks.splits import ByColumn as ByColumn
    from fedprivacy.tasks.splits import ByDirichlet as ByDirichlet
    from fedprivacy.tasks.splits import Evenly as Evenly
    from fedprivacy.tasks.tables import load_table as load_table
    from fedprivacy.tasks.tables import read_table as read_table
    from fedprivacy.values.budget import PrivacyBudget as PrivacyBudget
    from fedprivacy.values.events import NeighbouringRelation as NeighbouringRelation
    from fedprivacy.values.events import PoissonSampledGaussian as PoissonSampledGaussian
    from fedprivacy.values.unit import Unit as Unit

_HOMES = {
    "simulate": "simulation.simulate",
    "ask": "simulation.ask",
    "sweep": "simulation.sweeps",
    "open_run": "runs.records.run",
    "list_runs": "runs.records.catalogue",
    "Callback": "runs.callbacks",
    "EarlyStopping": "runs.callbacks",
    "compare": "runs.records.comparison",
    "Run": "runs.records.run",
    "plan": "runs.prospect",
    "recommend": "runs.recommendation",
    "audit_training": "audit.auditor",
    "epsilon": "accounting.calculator",
    "noise_multiplier": "accounting.calculator",
    "risk": "accounting.calculator",
    "BudgetExhaustedError": "guard.errors",
    "PrivateGradients": "single.private_gradients",
    "train": "single.loop",
    "PrivateStrategy": "flower.server.strategy",
    "private_client": "flower.client.client_app",
    "tasks": "",
    "Task": "tasks",
    "Augmentation": "tasks",
    "Recipe": "tasks",
    "Score": "tasks",
    "Shard": "tasks",
    "ShardSource": "tasks",
    "load_table": "tasks.tables",
    "read_table": "tasks.tables",
    "Table": "tasks.columns",
    "Number": "tasks.features",
    "Category": "tasks.features",
    "Date": "tasks.features",
    "ByColumn": "tasks.splits",
    "ByDirichlet": "tasks.splits",
    "Evenly": "tasks.splits",
    "Unit": "values.unit",
    "PrivacyBudget": "values.budget",
    "NeighbouringRelation": "values.events",
    "PoissonSampledGaussian": "values.events",
    "ConfigError": "runs.settings.configuration",
}

ask_for_short_waits()
ask_for_strict_products()  # whichever door leads here: a command, a notebook, a process of Flower's, a worker, Ray

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - all of them are strings


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    return _find(name)


_find = from_homes(__name__, _HOMES)
__dir__ = names_of(__name__)
