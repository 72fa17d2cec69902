"""The noise of a release is normal noise rounded to whole steps, as large as its share says; and what people are told.

Seeds are fixed. Where a figure is a p-value, an unlucky seed would fail with probability 1e-4 or less.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr

import fedprivacy as fp
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import add_lattice_noise
from fedprivacy.questions.answers import NOT_TOLD, Answers, Told
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import Estimate
from fedprivacy.questions.lattice import STEPS
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers, NoisyTotals, deviation
from fedprivacy.tasks.cells import TableError
from fedprivacy.values.events import PoissonSampledGaussian
from tests.accounting.oracles import gaussian_delta
from tests.questions.kinds import CORNERS, all_questions, table_of

KEY = Keystream.from_seed(1, "client-0")
HERE = Position(1, 1)
NOBODY = table_of([])
MANY = 200_000


@dataclass(frozen=True, kw_only=True)
class Marks(Question):
    """The number of records, `size` times in steps of `mark`: the smallest lattice, where rounding is seen."""

    kind = "marks"
    mark: int = 1
    size: int = 1
    reads = ()
    per_count = 1.0

    def words_of(self, unit):
        return "marks"

    @property
    def width(self):
        return self.size

    @property
    def squared_sensitivity(self):
        return self.size * self.mark**2

    def sum_records(self, rows):
        return np.full(self.size, self.mark * len(rows), dtype=np.int64)

    def records(self, noisy):
        return float(noisy.totals[0]) / self.mark

    def figures(self, noisy):
        return [Estimate("marks")]


def released(questions, sigma, shares=(), table=NOBODY, key=KEY, position=HERE, cohort=0.0):
    """Noisy totals of each question, shape [groups, width]."""
    asked = Questionnaire(tuple(questions), shares)
    return GaussianAnswers(PoissonSampledGaussian(1.0, sigma), cohort).release(asked, table, key, position)


def noise(questions, sigma, shares=(), **where):
    """Noise of each question, flat."""
    return [answer.totals.ravel() for answer in released(questions, sigma, shares, **where)]


def p_of_whole_normal(drawn, scale):
    """The p-value of draws as normal noise of a deviation, rounded to whole numbers: by chi-square."""
    most = int(4.0 * scale)
    expected = np.diff(ndtr((np.arange(-most, most) + 0.5) / scale), prepend=0.0, append=1.0)
    return stats.chisquare(np.bincount(drawn.clip(-most, most) + most), len(drawn) * expected).pvalue


def p_of_normal(values):
    """The p-value of standard normal values: by chi-square over fifty cells of equal probability."""
    cells = np.bincount((ndtr(values) * 50).astype(int).clip(max=49), minlength=50)
    return stats.chisquare(cells).pvalue


# --- the distribution ---


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_noise_is_normal_noise_rounded_to_whole_steps(sigma):
    (drawn,) = noise([Marks(size=MANY, mark=1)], sigma / math.sqrt(MANY))
    assert drawn.dtype == np.int64 and p_of_whole_normal(drawn, sigma) > 1e-4


def test_noise_is_the_same_whoever_s_records_are_summed():
    for question in all_questions(by={"ward": ["a", "b"]}):
        table = table_of(CORNERS)
        (answered,), (empty,) = (noise([question], 3.0, table=each) for each in (table, NOBODY))
        assert np.array_equal(answered - question.totals(table).ravel(), empty)


# --- shares ---


def test_the_noise_of_each_question_is_as_its_share_says_and_together_they_are_one_gaussian():
    """Divided by what hides a record in it, all noise is one Gaussian of the event's noise multiplier."""
    sigma, shares = 2.0, (1.0, 3.0, 0.5)
    questions = [Marks(mark=1000, size=5000), Marks(mark=700, size=9000), Marks(mark=300, size=20_000)]
    whitened = []
    for question, share, drawn in zip(questions, shares, noise(questions, sigma, shares), strict=True):
        expected = sigma * math.sqrt(sum(shares) / share) * question.mark * math.sqrt(question.size)
        assert drawn.all() and abs(drawn.std() / expected - 1.0) < 4.2 / math.sqrt(2.0 * len(drawn))
        whitened.append(drawn / expected)
    assert p_of_normal(np.concatenate(whitened)) > 1e-4


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.floats(1e-2, 1e4))
def test_all_questions_together_are_never_less_noisy_than_the_event(shares, sigma):
    """The sum of (longest vector / deviation)^2 is, in exact numbers, at most 1 / sigma^2, and hardly less."""
    questions = [all_questions()[number % 10] for number in range(len(shares))]
    sigmas = Questionnaire(tuple(questions), tuple(shares)).noise_multipliers(sigma)
    signal = sum(
        Fraction(question.squared_sensitivity) / Fraction(deviation(question, each)) ** 2
        for question, each in zip(questions, sigmas, strict=True)
    )
    assert signal <= 1 / Fraction(sigma) ** 2
    for question in questions:
        assert Fraction(deviation(question, sigma)) ** 2 >= question.squared_sensitivity * Fraction(sigma) ** 2
    assert float(signal) * sigma**2 > 1.0 - 1e-10


# --- the privacy loss ---


def joint(totals, scales):
    """Probabilities of all that may be released of some totals, over a domain that holds all but 1e-12."""
    columns = []
    for total, scale in zip(totals, scales, strict=True):
        steps = np.arange(-int(9 * scale) - 12, int(9 * scale) + 13) - total
        columns.append(ndtr((steps + 0.5) / scale) - ndtr((steps - 0.5) / scale))
    return functools.reduce(np.multiply.outer, columns).ravel()


@pytest.mark.parametrize("sigma", [0.4, 0.7, 1.3])
@pytest.mark.parametrize(
    ("questions", "shares"),
    [
        ([Marks()], ()),
        ([Marks(mark=3)], ()),
        ([Marks(size=2)], ()),
        ([Marks(), Marks()], (1.0, 1.0)),
        ([Marks(), Marks(mark=2)], (5.0, 1.0)),
        ([Marks(by=None), Marks(where=fp.ask.count(where={"ward": "a"}).where)], (1.0, 2.0)),
    ],
)
def test_two_neighbouring_tables_are_no_easier_told_apart_than_by_the_charged_event(questions, shares, sigma):
    """Exactly: by every set of answers, from the probabilities of each whole number that may be released."""
    table, neighbour = table_of(CORNERS[:3]), table_of(CORNERS[:2])
    asked = Questionnaire(tuple(questions), shares)
    sigmas = asked.noise_multipliers(sigma)
    scales = np.concatenate([[deviation(q, s)] * q.width for q, s in zip(questions, sigmas, strict=True)])
    more, less = (np.concatenate([q.totals(each).ravel() for q in questions]) for each in (table, neighbour))
    one, other = joint(more - less, scales), joint(np.zeros_like(less), scales)
    assert one.sum() > 1.0 - 1e-9
    for epsilon in (0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0):
        charged = float(gaussian_delta(1.0 / sigma, epsilon))
        for more, less in ((one, other), (other, one)):
            found = np.maximum(more - math.exp(epsilon) * less, 0.0).sum()
            assert found <= charged + 1e-9
            assert found > 0.5 * charged or epsilon  # not far less either: the charge is for what is released


def test_noise_of_answers_is_not_that_of_training():
    (drawn,) = noise([Marks(size=4000)], 1000.0 / math.sqrt(4000))
    nothing = torch.zeros(4000, dtype=torch.float64)
    for purpose in set(Purpose) - {Purpose.ANSWERS}:
        other = add_lattice_noise(nothing, 1000.0, 1.0, KEY.reader(purpose, HERE)).numpy()
        assert (drawn == other).mean() < 0.01 and stats.pearsonr(drawn, other).pvalue > 1e-6


# --- what is told ---


def test_without_a_smallest_cohort_every_group_is_told_below_zero_too():
    question = Questions.count(by={"ward": [str(n) for n in range(200)]})
    (answer,) = released([question], 4.0)
    assert answer.told.all() and (answer.totals < 0).any()


@pytest.mark.parametrize(("cohort", "told"), [(9.5, True), (10.0, True), (10.5, False), (0.0, True)])
def test_a_group_is_told_from_the_smallest_cohort_on(cohort, told):
    question = Questions.count(by={"ward": ["a"]})
    (answer,) = released([question], 1e-9, table=fp.Table({"ward": ["a"] * 10}), cohort=cohort)
    assert answer.told.tolist() == [told] and (answer.totals != 0).tolist() == [[told]]


def test_what_a_client_sends_of_a_group_that_it_does_not_tell_is_dropped():
    """Whatever its row says: neither kept, nor shown, nor added to what others tell."""
    sent = NoisyTotals.from_rows(np.array([[0, 5, 7], [1, 8, -9], [0, 0, 0], [-1, 3, 4]]))
    assert sent.told.tolist() == [False, True, False, True]
    assert sent.totals.tolist() == [[0, 0], [8, -9], [0, 0], [3, 4]]
    assert sent.rows.tolist() == [[0, 0, 0], [1, 8, -9], [0, 0, 0], [1, 3, 4]]


def test_a_missing_column_is_found_before_any_record_is_read(monkeypatch):
    read = []
    monkeypatch.setattr(fp.Table, "numbers", lambda *_: read.append(1))
    with pytest.raises(TableError, match=r"^the table has no column 'weight'; it has age\.$"):
        released([Questions.mean("age", 0, 1), Questions.mean("weight", 0, 1)], 1.0, table=fp.Table({"age": [1]}))
    assert not read


def test_a_question_is_asked_of_all_records():
    with pytest.raises(ValueError, match="at 1"):
        GaussianAnswers(PoissonSampledGaussian(0.5, 1.0))


# --- answers for people ---

COUNT = Questions.count(by={"ward": ["a", "b", "c"]})
MEAN = Questions.mean("age", 0, 100)


def told(sigma, rows, groups=None):
    totals = np.array(rows) * STEPS
    return Told(sigma, NoisyTotals(totals, np.array(groups or [True] * len(rows))))


ANSWERS = Answers(
    Questionnaire((COUNT, MEAN)),
    {
        "south": [told(4.0, [[20], [0], [0]], [True, False, False]), told(1.0, [[100, 50]])],
        "north": [told(3.0, [[30], [7], [0]], [True, True, False]), told(1.0, [[300, -50]])],
    },
)


def test_the_federation_s_figures_are_of_all_clients_records_together():
    a, b, c, *mean = ANSWERS.federation
    assert (a["question"], a["group"], a["figure"]) == ("number of records", "a", "count")
    assert a["value"] == 50.0 and a["error"] == pytest.approx(5.0)
    assert a["low"] == pytest.approx(50 - 1.96 * 5, abs=0.01) and a["high"] == pytest.approx(50 + 1.96 * 5, abs=0.01)
    assert (b["group"], b["value"], b["error"]) == ("b", 7.0, pytest.approx(3.0))
    assert (c["group"], c["figure"], c["value"], c["error"]) == ("c", NOT_TOLD, None, None)
    assert [row["figure"] for row in mean] == ["count", "mean of age"] and all(row["group"] == "" for row in mean)
    assert mean[0]["value"] == 400.0 and mean[0]["error"] == pytest.approx(math.sqrt(2) * math.sqrt(2))
    assert mean[1]["value"] == pytest.approx(50.0)


def test_one_estimate_is_found_by_its_name():
    assert ANSWERS.value("count", "a") == 50.0
    assert ANSWERS.value("mean of age", number=1) == pytest.approx(50.0)
    for name, group in (("count", "c"), ("count", ""), ("median of age", "a"), (NOT_TOLD, "c")):
        with pytest.raises(KeyError, match=name):
            ANSWERS.value(name, group)
    with pytest.raises(KeyError):
        ANSWERS.figures(0, "west")


def test_the_records_of_an_answer_are_those_of_every_group_that_is_told():
    assert ANSWERS.records(0, "north") == 37.0 and ANSWERS.records(0, "south") == 20.0
    assert ANSWERS.records(1, "north") == 300.0


def test_who_does_not_tell_of_a_group_is_named():
    assert ANSWERS.silent() == {"b": ["south"], "c": ["north", "south"]}
    assert ANSWERS.silent(1) == {}
