"""The noise of a release is normal noise rounded to whole steps, as large as its share says, and of nothing else.

Seeds are fixed. Where a figure is a p-value, an unlucky seed would fail with probability 1e-4 or less.
"""

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
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import Estimate
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers, NoisyTotals, combine, deviation
from fedprivacy.tasks.cells import TableError
from fedprivacy.values.events import PoissonSampledGaussian
from tests.questions.kinds import CORNERS, all_questions, table_of

KEY = Keystream.from_seed(1, "client-0")
HERE = Position(1, 1)
NOBODY = table_of([])
MANY = 200_000
GROUPS = fp.ask.count(by={"ward": [str(n) for n in range(500)]}).by


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


def event(sigma):
    return PoissonSampledGaussian(1.0, sigma)


def released(questions, sigma, shares=(), table=NOBODY, key=KEY, position=HERE, cohort=0.0):
    """Noisy totals of each question, shape [groups, width]."""
    asked = Questionnaire(tuple(questions), shares)
    return GaussianAnswers(event(sigma), cohort).release(asked, table, key, position)


def noise(questions, sigma, shares=(), **where):
    """Noise of each question, flat."""
    return [answer.totals.ravel() for answer in released(questions, sigma, shares, **where)]


def draws(question, sigma, count, **where):
    """So many draws of the noise of one question, from as many rounds as it takes."""
    rounds = -(-count // (len(question.groups) * question.width))
    keys = [Keystream.from_seed(7, "client-0", attempt=attempt) for attempt in range(1, rounds + 1)]
    return np.concatenate([noise([question], sigma, key=key, **where)[0] for key in keys])[:count]


def whole_normal(steps, scale):
    """The exact probabilities of whole numbers under rounded normal noise."""
    return ndtr((steps + 0.5) / scale) - ndtr((steps - 0.5) / scale)


def p_of_whole_normal(drawn, scale):
    """The p-value of draws as normal noise of a deviation, rounded to whole numbers: by chi-square."""
    most = int(4.0 * scale) + 1
    steps = np.arange(-most, most + 1)
    expected = len(drawn) * whole_normal(steps, scale)
    expected = np.append(expected, len(drawn) - expected.sum())
    observed = np.append([(drawn == step).sum() for step in steps], (np.abs(drawn) > most).sum())
    many = expected >= 5.0
    observed, expected = (np.append(counts[many], counts[~many].sum()) for counts in (observed, expected))
    return stats.chisquare(observed, expected).pvalue


def p_of_normal(values):
    """The p-value of standard normal values: by chi-square over fifty cells of equal probability."""
    cells = np.bincount((ndtr(values) * 50).astype(int).clip(max=49), minlength=50)
    return stats.chisquare(cells).pvalue


# --- the distribution ---


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_noise_is_normal_noise_rounded_to_whole_steps(sigma):
    (drawn,) = noise([Marks(size=MANY, mark=1)], sigma / math.sqrt(MANY))
    assert drawn.dtype == np.int64 and p_of_whole_normal(drawn, sigma) > 1e-4


@pytest.mark.parametrize("mark", [2, 5])
def test_noise_is_in_proportion_to_the_sensitivity_not_to_its_square(mark):
    drawn = draws(Marks(mark=mark, by=GROUPS, size=4), 1.5, 40_000)
    assert p_of_whole_normal(drawn, 1.5 * mark * math.sqrt(4)) > 1e-4
    for wrong in (mark**2 * 4, mark * 2 / 2, mark):
        assert p_of_whole_normal(drawn, 1.5 * wrong) < 1e-12


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
        assert abs(drawn.std() / expected - 1.0) < 4.2 / math.sqrt(2.0 * len(drawn))
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

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def gaussian_deltas(sigma):
    """Hockey-stick divergences of N(1, sigma^2) and N(0, sigma^2), the event (Balle and Wang 2018)."""
    half, tail = 0.5 / sigma, EPSILONS * sigma
    return ndtr(half - tail) - np.exp(EPSILONS) * ndtr(-half - tail)


def joint(totals, scales):
    """Probabilities of all that may be released of some totals, over a domain that holds all but 1e-12."""
    reach = [np.arange(-int(9 * scale) - 12, int(9 * scale) + 13) for scale in scales]
    columns = [whole_normal(steps - total, scale) for steps, total, scale in zip(reach, totals, scales, strict=True)]
    found = columns[0]
    for column in columns[1:]:
        found = np.multiply.outer(found, column)
    return found.ravel()


def deltas(one, other):
    return np.array([np.maximum(one - math.exp(epsilon) * other, 0.0).sum() for epsilon in EPSILONS])


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
    for found in (deltas(one, other), deltas(other, one)):
        assert np.all(found <= gaussian_deltas(sigma) + 1e-9)
        assert found[0] > 0.5 * gaussian_deltas(sigma)[0]  # not far less either: the charge is for what is released


# --- independence ---


def correlated(one, other):
    one, other = one / one.std(), other / other.std()
    return abs((one * other).sum()) > 5.0 * math.sqrt(len(one))


def test_noise_of_answers_is_not_that_of_training():
    (drawn,) = noise([Marks(size=4000)], 1000.0 / math.sqrt(4000))
    nothing = torch.zeros(4000, dtype=torch.float64)
    for purpose in set(Purpose) - {Purpose.ANSWERS}:
        other = add_lattice_noise(nothing, 1000.0, 1.0, KEY.reader(purpose, HERE)).numpy()
        assert (drawn == other).mean() < 0.01 and not correlated(drawn, other)


def test_noise_of_groups_and_of_entries_is_independent():
    question = Marks(size=40, by=fp.ask.count(by={"ward": [str(n) for n in range(5000)]}).by)
    (answer,) = released([question], 100.0)
    assert answer.totals.shape == (5000, 40)
    rows = answer.totals.astype(float)
    for lag in (1, 2, 3):
        assert not correlated(rows[:-lag].ravel(), rows[lag:].ravel())
        assert not correlated(rows[:, :-lag].ravel(), rows[:, lag:].ravel())
    cells = (ndtr(rows / rows.std()) * 8).astype(int)
    assert stats.chisquare(np.bincount((8 * cells[:, :-1] + cells[:, 1:]).ravel(), minlength=64)).pvalue > 1e-4


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


# --- clients together ---


def test_totals_of_clients_add_up_and_so_do_the_squares_of_their_noise():
    question = Questions.count(by={"ward": ["a", "b", "c"]})
    one = NoisyTotals(np.array([[5], [0], [0]]), np.array([True, False, False]))
    other = NoisyTotals(np.array([[7], [-2], [0]]), np.array([True, True, False]))
    both, alone, nobody = combine(question, [3.0, 4.0], [one, other])
    step = math.sqrt(question.squared_sensitivity)
    assert both.totals.tolist() == [12.0] and both.deviation == pytest.approx(5.0 * step)
    assert alone.totals.tolist() == [-2.0] and alone.deviation == pytest.approx(4.0 * step)
    assert nobody is None
