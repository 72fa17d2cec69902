"""A setting, a strategy and a tracker: one run has all three."""

from tests.additions.addition import Addition, after

SETTING = Addition(
    edits={
        "fedprivacy/runs/settings/fields.py": [
            after(
                '    rounds: int = setting("Number of rounds.", bounds=WHOLE)\n',
                '    evaluate_every: int = setting("Rounds from one evaluation to the next.", 1, bounds=WHOLE)\n',
            ),
        ],
        "pyproject.toml": [after('fraction-train = ""\n', 'evaluate-every = ""\n')],
        "fedprivacy/flower/server/federated_run.py": [
            (
                "metrics = evaluate(number, kept) if evaluate else measures.public(kept, result.standardise)\n",
                "skipped = number % self._plan.config.evaluate_every\n"
                "        metrics = None if skipped else measures.public(kept, result.standardise)\n",
            ),
        ],
    },
)

STRATEGY = Addition(
    edits={
        "fedprivacy/runs/settings/strategies.py": [
            after(
                'fixed={"num_malicious_nodes": 1}, fewest_clients=5, averages=False\n    ),\n',
                '    "fedmedian": KnownStrategy(source="flwr.serverapp.strategy:FedMedian"),  # Yin et al. 2018\n',
            ),
        ],
    },
)

TABLE = '''"""Feeds a table, rounds.table in the run's folder."""

from __future__ import annotations

from pathlib import Path

from fedprivacy.values.series import RoundPoint, RunFacts


class TableTracker:
    """Writes a line for each round, its number and the largest epsilon of a client; then how the run ended."""

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """A run begins, or goes on."""
        self._file = folder / "rounds.table"

    def record(self, point: RoundPoint) -> None:
        """A round is finished."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{point.round} {point.epsilons.most!r}\\n")

    def end(self, status: str) -> None:
        """The run is over."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{status}\\n")
'''

TRACKER = Addition(
    edits={
        "fedprivacy/trackers/__init__.py": [
            after(
                "from fedprivacy.trackers.tracker import Feed, Tracker\n",
                "from fedprivacy.trackers.table import TableTracker\n",
            ),
            after('    "wandb": WandbTracker,\n', '    "table": TableTracker,\n'),
        ],
        "pyproject.toml": [after('wandb = ["wandb>=0.31"]\n', "table = []\n")],
    },
    files={("fedprivacy/trackers", "table.py"): TABLE},
)

PROGRAM = """
import inspect, tomllib

import fedprivacy as fp
from fedprivacy.runs.settings.configuration import FIELDS, ConfigError, RunConfig, resolve
from fedprivacy.server.app import build_strategy
from tests.flower.blobs import Blobs

config = resolve({"evaluate-every": 2, "strategy": "fedmedian"})
assert config.evaluate_every == 2 and resolve({}).evaluate_every == 1
assert RunConfig.from_public(config.public()) == config
with open("pyproject.toml", "rb") as file:
    assert tomllib.load(file)["tool"]["flwr"]["app"]["config"].keys() == FIELDS.keys()
assert "evaluate_every" in inspect.signature(fp.simulate).parameters
for wrong in (0, "often"):
    try:
        resolve({"evaluate-every": wrong})
    except ConfigError as error:
        print(error)
print(type(build_strategy(config)).__name__)

added = {"evaluate_every": 2, "strategy": "fedmedian", "trackers": "table"}
run = fp.simulate(Blobs(), clients=2, rounds=4, epsilon=9, seed=1, out="run", progress=False, **added)
assert {run.settings[key.replace("_", "-")] for key in added} == set(added.values())
assert tomllib.loads((run.folder / "run.toml").read_text())["evaluate-every"] == 2
print([one.round for one in run.history.rounds if one.metrics])
print(", ".join(f"{one.round} {one.max_epsilon!r}" for one in run.history.rounds))
"""
