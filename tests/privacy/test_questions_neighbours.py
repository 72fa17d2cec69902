"""Two tables that differ in one record, asked through the real ClientApp: what differs in the bytes that leave.

With the noise frozen, only noisy totals may differ, and they by no more than what is charged for. Whether a group is
told is decided by them alone.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import RecordDict
from scipy import stats

import fedprivacy as fp
from fedprivacy.audit.our_client.replies import fields_of
from fedprivacy.audit.subject import NOISED
from fedprivacy.flower.wire.messages import ASK, QUESTION_GRANT, RECEIPT
from fedprivacy.questions.release import deviation
from fedprivacy.values.events import NeighbouringRelation
from tests.flower.asked import ANSWERS_ALL, PrivatelyTabled, Tabled, a_question, ask
from tests.privacy.asking import Client, binomial_range

SIGMA = 4.0
BOUNDS = {"age": (0, 100), "stay": (-1, 1)}
WHERE = {"where": {"ward": ["a", "b"]}}
EVERYTHING = [
    fp.ask.count(),
    fp.ask.count(where={"age": (30, 60), "ward": "a"}, by={"ward": ["a", "b", "z"]}),
    fp.ask.categories("ward", ["a", "b", True], **WHERE),
    fp.ask.heavy_hitters("age", ["31", "32.0", "nothing"]),
    fp.ask.histogram("age", 0, 100, 7, by={"ward": ["a", "b"]}),
    fp.ask.sum("age", 0, 100, by={"ward": ["a", "1"]}),
    fp.ask.mean("stay", -1, 1),
    fp.ask.mean_and_scale(BOUNDS, **WHERE),
    fp.ask.covariance(BOUNDS, by={"ward": ["a", "b"]}),
    fp.ask.quantiles("age", 0, 100, (0.1, 0.5), points=16),
]
SHARES = tuple(float(2**n) for n in range(-5, 5))


class Raising:
    """A cell that fails whoever looks at it."""

    def _fail(self, *_):
        raise RuntimeError("patient 4711")

    __str__ = __repr__ = __float__ = __int__ = __index__ = __eq__ = __hash__ = __bool__ = __len__ = _fail
    __class__ = property(_fail)


CELLS = [55.0, -1.7e308, math.nan, " b\t", "9" * 10**6, "\ud800", 10**5000, Raising()]
"""One of each sort; `tests/tasks/test_columns.py` reads all of them."""

USUAL = {"age": [31.0, 32.0, 250.0, "33", None], "stay": [0.5, -0.5, "x", 0.0, 1e300], "ward": ["a", "b", "a", 1, ""]}


def columns_with(cell):
    """The usual records, and among them one of which every cell is this; None: without it."""
    return {name: [*cells[:2], cell, *cells[2:]] for name, cells in USUAL.items()}


def reply_of(kind, columns):
    """To a question of everything, with the noise frozen."""
    relation = NeighbouringRelation.ZERO_OUT if kind.shard_sizes_public else NeighbouringRelation.ADD_OR_REMOVE_ONE
    task, grant = kind(**columns), a_question(*EVERYTHING, shares=SHARES, noise_multiplier=SIGMA, relation=relation)
    return Client(task, seed=3).send(ASK, RecordDict({QUESTION_GRANT: grant.to_record()}))


def totals(reply):
    return [array.numpy()[:, 1:] for array in reply.content["arrays"].values()]


def beside_noise(reply):
    """All that crosses, but for the noisy totals."""
    return [(name, value) for name, value in fields_of(reply) if not name.startswith(NOISED)]


def check_neighbours(kind, with_it, without):
    """Nothing but noisy totals differs, and all of them together by no more than is charged for."""
    one, other = reply_of(kind, with_it), reply_of(kind, without)
    assert RECEIPT in one.content and RECEIPT in other.content
    assert beside_noise(one) == beside_noise(other)
    grant = a_question(*EVERYTHING, shares=SHARES, noise_multiplier=SIGMA)
    moved = 0.0
    sigmas = grant.questionnaire.noise_multipliers(SIGMA)
    for question, sigma, here, there in zip(EVERYTHING, sigmas, totals(one), totals(other), strict=True):
        change = (here - there).astype(np.float64)  # exact: the noise is the same
        moved += float(np.square(change).sum()) / deviation(question, sigma) ** 2
    assert moved <= 1.0 / SIGMA**2
    return moved


@pytest.mark.parametrize("place", range(len(CELLS)))
def test_one_record_moves_noisy_totals_by_what_is_charged_and_nothing_else(place):
    with_it = columns_with(CELLS[place])
    check_neighbours(PrivatelyTabled, with_it, USUAL)
    check_neighbours(Tabled, with_it, columns_with(None))


def test_the_bound_is_reached():
    """Otherwise it would be no test: a record at all bounds moves the totals by most of what is charged."""
    extreme = {"age": [*USUAL["age"], 30], "stay": [*USUAL["stay"], 1.0], "ward": [*USUAL["ward"], "a"]}
    assert check_neighbours(PrivatelyTabled, extreme, USUAL) > 0.5 / SIGMA**2


# Whether a group is told


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("people", [0, 9, 11])
def test_whether_a_group_is_told_is_decided_by_its_noisy_number_alone(node, people):
    """As often as the noise says, on both sides of the smallest cohort; a cohort by the true number is always one."""
    draws, sigma, table = 250, 20.0, Tabled(age=[40.0] * people, ward=["a"] * people)
    own = node | ANSWERS_ALL | {"epsilon": 1e9, "smallest-cohort": 10.0, "least-noise-multiplier": 1e-3}
    count = fp.ask.count(by={"ward": ["a"]})
    reply = ask(own, *[count] * draws, task=table, noise_multiplier=sigma / math.sqrt(draws))
    rows = np.concatenate([array.numpy() for array in reply.content["arrays"].values()])
    told, noisy = rows[:, 0] == 1, rows[:, 1] / 2.0**20
    assert (noisy[told] >= 10).all() and (noisy[~told] == 0).all()
    low, high = binomial_range(draws, float(stats.norm.sf((10 - people) / sigma)), 1e-5)
    assert low <= told.sum() <= high


def test_a_data_owner_who_sets_no_smallest_cohort_tells_nothing_of_three_people(node):
    """Nearly without noise, so that it is the default that hides them."""
    table = Tabled(age=[40.0] * 33, ward=["few"] * 3 + ["many"] * 30)
    own = node | {"questions": "count", "question-columns": "ward", "epsilon": 1e9, "least-noise-multiplier": 1e-3}
    reply = ask(own, fp.ask.count(by={"ward": ["few", "many"]}), task=table, noise_multiplier=0.01)
    few, many = next(iter(reply.content["arrays"].values())).numpy()
    assert not few.any() and many[0] == 1
    assert many[1] / 2.0**20 == pytest.approx(30.0, abs=0.2)
