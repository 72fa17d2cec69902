"""A mechanism: the tree of noisy sums of DP-FTRL (Kairouz et al. 2021), which costs what a wider Gaussian does."""

from tests.additions.addition import Addition, after

TREE = '''@dataclass(frozen=True, slots=True)
class TreeAggregatedGaussian:
    """All prefix sums of one pass over the records, from noisy sums at the nodes of a binary tree.

    Every record is at one of `leaves` leaves, and so in the sums of one node on each level; each node's sum receives
    Gaussian noise of standard deviation `noise_multiplier` * C (Kairouz et al. 2021, arXiv 2103.00039).

    Formal guarantee: a record moves the vector of all sums by sqrt(levels) times what it moves one of them.

    Attributes:
        leaves: at least 1.
        noise_multiplier: sigma, standard deviation of a node's noise in units of the clipping norm, > 0 and finite.
        relation: the neighbouring relation that the guarantee is stated for.
    """

    leaves: int
    noise_multiplier: float
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _check_integer("leaves", self.leaves, 1)
        _check_noise(self.noise_multiplier)

    @property
    def joint(self) -> PoissonSampledGaussian:
        """The Gaussian that costs as much; its noise is rounded down."""
        levels = 1 + (self.leaves - 1).bit_length()
        noise = self.noise_multiplier / math.nextafter(math.sqrt(levels), math.inf)
        return PoissonSampledGaussian(1.0, math.nextafter(noise, 0.0), self.relation)

    def __str__(self) -> str:
        return f"a tree of {self.leaves} leaves, noise multiplier {self.noise_multiplier!r} ({self.relation})"


'''

MOMENTS = """        case TreeAggregatedGaussian():
            return _log_moments([event.joint for event in events if isinstance(event, TreeAggregatedGaussian)], orders)
"""

MECHANISM = Addition(
    edits={
        "fedprivacy/values/events.py": [
            ("Event = (\n", f"{TREE}Event = (\n"),
            after("    | FixedSizeSampledGaussian\n", "    | TreeAggregatedGaussian\n"),
            after("    | Mapping[FixedSizeSampledGaussian, int]\n", "    | Mapping[TreeAggregatedGaussian, int]\n"),
        ],
        "fedprivacy/accounting/pairs.py": [
            after("    RandomizedResponse,\n", "    TreeAggregatedGaussian,\n"),
            after(
                "            return SubsampledGaussian(SampledGaussians(np.array([sampling_rate]), noise))\n",
                "        case TreeAggregatedGaussian():\n            return pair(event.joint)\n",
            ),
        ],
        "fedprivacy/accounting/rdp.py": [
            after("    RandomizedResponse,\n", "    TreeAggregatedGaussian,\n"),
            after("            return _sampled_gaussian(*_parameters(events), orders)\n", MOMENTS),
        ],
    },
)

PROGRAM = """
import json
from pathlib import Path

import numpy as np

from fedprivacy.accounting import pld, rdp
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian, TreeAggregatedGaussian

tree, delta = TreeAggregatedGaussian(100, 6.0), 1e-6  # 8 levels
epsilon = pld.epsilon({tree: 1}, delta)
assert abs(epsilon - pld.epsilon({PoissonSampledGaussian(1.0, 6.0): 8}, delta)) < 1e-3
twice = pld.epsilon({tree: 1, PoissonSampledGaussian(1.0, 3.0): 1}, delta)
assert abs(twice - pld.epsilon({PoissonSampledGaussian(1.0, (8 / 36 + 1 / 9) ** -0.5): 1}, delta)) < 1e-3
replaced = TreeAggregatedGaussian(100, 12.0, NeighbouringRelation.REPLACE_ONE)
assert abs(pld.epsilon({replaced: 1}, delta) - epsilon) < 1e-9
assert np.allclose(rdp.rdp(tree), rdp.ORDERS * 8 / 72, rtol=1e-9)
assert epsilon <= rdp.epsilon({tree: 1}, delta) < 1.2 * epsilon

from fedprivacy.commands.app import app

entry = {"mechanism": "tree-aggregated-gaussian", "leaves": 100, "noise_multiplier": 6.0, "steps": 1}
Path("history.json").write_text(json.dumps([entry]))
app(["epsilon", "--history", "history.json", "--delta", str(delta), "--json"], standalone_mode=False)
print(json.dumps(epsilon))
"""
