"""A run has one outcome, whichever way it is executed: among some sixty runs every pair of settings occurs.

Each is compared with the run by messages of the same settings. What is charged and who takes part are equal; so is
every bit of the model, but for the last bits of float32 where a population adds in another order than messages do.
"""

import json
import pickle
import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from flwr.app import MessageType

from fedprivacy.flower import InProcessGrid, PrivateStrategy, private_client
from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.flower.simulated.populations import Population, train_privately
from fedprivacy.flower.simulated.without_privacy import NullBooks, plain_client, train_without_privacy
from fedprivacy.flower.simulated.workers import Crew, answer_to
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.server.app import build_strategy
from fedprivacy.training.adaptive import CLIPPINGS
from fedprivacy.training.algorithms import ALGORITHMS
from tests.flower.blobs import Chain, DeepBlobs, PrivateChain, plan_of
from tests.flower.runs import model_of

ROUNDS = 3
FLOAT32 = 2e-6
"""Difference that the order of additions in float32 may make to a model."""

KEEPING = {"local", "mr-mtl", "ditto", "scaffold", "fedper", "fedrep", "fedbn"}
"""Algorithms whose clients keep something for their next round."""

TASKS = {"stacked": Chain(), "one by one": DeepBlobs(), "private sizes": PrivateChain()}
TERMS = {
    "client-0": {"noise_multiplier": 3.0, "sampling_rate": 0.2},
    "client-2": {"epsilon": 1.5, "noise_multiplier": 4.0},
}
LATE = {"cohort_size": 3, "over_selection": 1.5, "speeds": "lognormal:1:9000", "drop_out": 0.2}
FACTORS = {
    "way": {way: {} for way in ("together", "divided", "stopped", "stopped together")},
    "algorithm": {name: {"algorithm": name} for name in ALGORITHMS} | {"fine-tuned": {"fine_tuning_rounds": 2}},
    "clipping": {name: {"clipping": name} for name in CLIPPINGS},
    "optimiser": {
        "plain": {},
        "momentum": {"momentum": 0.9, "weight_decay": 0.01},
        "adam": {"optimizer": "adam", "learning_rate": 0.05},
        "adamw": {"optimizer": "adamw", "learning_rate": 0.05, "weight_decay": 0.1},
    },
    "sampling": {"rate": {}, "everybody": {"sampling_rate": 1.0}, "batch": {"batch_size": 8.0}},
    "noise": {
        "given": {"noise_multiplier": 2.0, "epsilon": 50.0},
        "found": {"epsilon": 3.0},
        "spent early": {"noise_multiplier": 3.0, "epsilon": 1.0},
        "none": {"privacy": False},
    },
    "cohort": {"all": {}, "half": {"fraction_train": 0.5}, "three": {"cohort_size": 3}, "late": LATE},
    "strategy": {
        "fedavg": {},
        "fedprox": {"strategy": "fedprox", "proximal_mu": 0.5},
        "fedavgm": {"strategy": "fedavgm", "server_momentum": 0.5},
        "fedadam": {"strategy": "fedadam"},
    },
    "terms": {"one": {}, "own": {"client_terms": json.dumps(TERMS)}, "weighed": {"weighting": "inverse-variance"}},
    "views": {"none": {}, "three": {"augmentation_multiplicity": 3}},
    "evaluation": {"none": {}, "local": {"local_evaluation": 2}},
    "user level": {
        "none": {},
        "fixed": {"user_level_noise_multiplier": 1.0},
        "adaptive": {"user_level_noise_multiplier": 1.0, "user_level_clipping": "adaptive"},
    },
    "average": {"last": {}, "ema": {"ema_decay": 0.5}},
    "task": {name: {} for name in TASKS},
}
USUAL = {factor: next(iter(values)) for factor, values in FACTORS.items()}
PAIRS = [
    frozenset({(one, a), (other, b)}) for one, other in combinations(FACTORS, 2) for a in FACTORS[one]
    for b in FACTORS[other]
]  # fmt: skip
REFUSED = {
    frozenset({one, other})
    for one, others in {
        ("algorithm", "scaffold"): [("optimiser", name) for name in ("momentum", "adam", "adamw")],
        ("algorithm", "fedbn"): [("task", "stacked"), ("task", "private sizes")],
        ("evaluation", "local"): [("noise", "none"), ("user level", "fixed"), ("user level", "adaptive")],
        **{
            ("user level", clipping): [("cohort", "three"), ("cohort", "late"), ("terms", "weighed")]
            + [("algorithm", name) for name in FACTORS["algorithm"] if name != "fedavg"]
            for clipping in ("fixed", "adaptive")
        },
    }.items()
    for other in others
}
"""Pairs of settings that exclude one another."""

SENT = [("cohort", "late"), ("evaluation", "local"), ("user level", "fixed"), ("user level", "adaptive")]
"""Settings with which a population gets messages."""

APART = REFUSED | {frozenset({("way", way), sent}) for way in FACTORS["way"] if way != "stopped" for sent in SENT}
"""Pairs that occur in no run."""


def pairs_of(row):
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def rows():
    """Settings of runs in which every pair occurs: each begins with one that is missing, and adds as many as it can."""
    missing = {pair: None for pair in PAIRS if pair not in APART}  # in this order
    while missing:
        row = dict(next(iter(missing)))
        for factor, values in FACTORS.items():
            if factor not in row:
                fitting = [value for value in values if not pairs_of({**row, factor: value}) & APART]
                row[factor] = max(fitting, key=lambda value: len(pairs_of({**row, factor: value}) & missing.keys()))
        for pair in pairs_of(row):
            missing.pop(pair, None)
        yield {factor: row[factor] for factor in FACTORS}


ROWS = list(rows())


def planned(row, **settings):
    given = {"clients": 5, "rounds": ROUNDS, "local_steps": 3}
    for factor, value in row.items():
        given |= FACTORS[factor][value]
    return plan_of(TASKS[row["task"]], **given | settings)


def test_every_pair_of_settings_occurs_and_the_others_are_refused():
    assert set().union(*map(pairs_of, ROWS)) == set(PAIRS) - APART
    assert len(ROWS) < 70
    for pair in REFUSED:
        with pytest.raises(ConfigError):
            planned(USUAL | dict(pair))


class Hand:
    """A worker in this process."""

    def __init__(self, population):
        self.name, self._population = "Hand", population

    def ask(self, start, errand):
        self._answer = answer_to(self._population, start, errand)

    def answer(self):
        return self._answer


class Divided(Crew):
    """A population of which three workers train a row each; what goes to them and comes from them is pickled."""

    def __init__(self, task, config, train):
        super().__init__(task, config, train, Placement(workers=3))
        self._hands = [Hand(Population(task, config, train)) for _ in range(3)]

    def _ready(self):
        return self._hands

    def _prepare_start(self, start):
        return pickle.dumps(start)

    def _instead_of(self, dead):
        raise AssertionError("nobody has died")

    def close(self):
        """End nothing, for nothing was started."""


class Counting(InProcessGrid):
    """Counts the messages that ask for training."""

    trained = 0

    def push_messages(self, messages):
        messages = list(messages)
        self.trained += sum(message.metadata.message_type == MessageType.TRAIN for message in messages)
        return super().push_messages(messages)


def run(row, name, kind=None, stop_in=None):
    """The finished strategy, with its records by round and its grid; stopped in a round it goes on."""
    Path(name).mkdir()
    plan, records = planned(row, out=name), {}
    private = plan.config.privacy
    train = train_privately if private else train_without_privacy
    app = (private_client if private else plain_client)(plan.task, plan.config)

    def start(observe, resume=None):
        writer = RunWriter(Path(name), plan, resume.round if resume else None)
        strategy = PrivateStrategy(
            build_strategy(plan.config),
            plan,
            accounts=RunAccounts if private else NullBooks,
            run_id="run",
            observers=[writer, observe],
            checkpoints=Path(name),
            resume=resume,
        )
        population = kind(plan.task, plan.config, train) if kind else None
        strategy.grid = Counting(app, plan.config.clients, {}, population=population)
        strategy.start(strategy.grid)
        return strategy

    def stop(record):
        if record.round == stop_in:
            raise KeyboardInterrupt

    random.seed(0)  # by which Flower samples
    if stop_in:
        with pytest.raises(KeyboardInterrupt):
            start(stop)
        random.seed(99)
    resume = load_checkpoint(Path(name)) if stop_in else None
    finished = start(lambda record: records.update({record.round: record}), resume)
    finished.records = records
    return finished


def spent(record):
    """The charges of each client. The last bits of an epsilon depend on which others are computed with it."""
    return {client: replace(its, epsilon=round(its.epsilon, 9)) for client, its in record.spent.items()}


def check_equal(one, other, most=0.0):
    """Check that two runs have one outcome, but for so much in the model, and then in what is measured of it."""
    assert (model_of(one) - model_of(other)).abs().max() <= most
    for number, record in one.records.items():
        its = other.records[number]
        assert spent(record) == spent(its)
        measured = {"metrics": its.metrics, "held_out": its.held_out} if most else {}
        assert replace(record, spent={}, **measured) == replace(its, spent={})
    own, others = one.grid.kept.own, other.grid.kept.own
    assert own.keys() == others.keys()
    assert all((kept - others[client]).abs().max() <= 10 * most for client, kept in own.items())
    assert one.result.stopped_because == other.result.stopped_because


def is_quick(number):
    """The runs that everybody makes: the first, and the first of each way whose clients keep something."""
    alike = [n for n, row in enumerate(ROWS) if row["way"] == ROWS[number]["way"] and row["algorithm"] in KEEPING]
    return number in (0, alike[0])


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{number} {row['way']}", marks=[] if is_quick(number) else pytest.mark.exhaustive)
        for number, row in enumerate(ROWS)
    ],
)
def test_a_run_has_the_outcome_of_its_messages(row):
    messages = run(row, "messages")
    last = max(messages.records)
    if row["way"] == "stopped":
        check_equal(run(row, "stopped", stop_in=last), messages)
        return
    together = run(row, "together", Population)
    assert not together.grid.trained
    check_equal(together, messages, FLOAT32)
    if row["way"] == "divided":
        check_equal(run(row, "divided", Divided), together)
    elif row["way"] == "stopped together":
        check_equal(run(row, "again", Population, stop_in=last), together)


@pytest.mark.exhaustive
@pytest.mark.parametrize("factor, value", SENT)
def test_a_population_gets_messages_where_it_needs_them(factor, value):
    row = USUAL | {factor: value}
    messages, together = run(row, "messages"), run(row, "together", Population)
    assert together.grid.trained == messages.grid.trained > 0
    check_equal(together, messages)
