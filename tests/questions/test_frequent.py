"""The search for frequent texts: what it finds, what it never finds, and what it says of both."""

from __future__ import annotations

import itertools
import json
import math
import string
from collections import Counter

import numpy as np
import pytest
from scipy.special import ndtri

import fedprivacy as fp
from fedprivacy.questions.answers import Answers, Told
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.conditions import conditions
from fedprivacy.questions.frequent import Depth, Search, frequent
from fedprivacy.questions.prefixes import MOST_PREFIXES
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import NoisyTotals, deviation

CLIENTS, SIGMA = 6, 5.0
DIGITS = string.digits


class SpentError(Exception):
    """A budget ends."""


class Asking:
    """Answers of clients with normal noise, and what they were asked."""

    def __init__(self, parts, seed=0, *, sigma=SIGMA, most=99, column="icd"):
        self.tables = [fp.Table({column: list(part)}) for part in parts]
        self.random = np.random.default_rng(seed)
        self.sigma, self.most = sigma, most
        self.asked = []

    def __call__(self, asked):
        if len(self.asked) >= self.most:
            raise SpentError("the budget is spent")
        self.asked.append(asked)
        return Answers(asked, {f"client-{n}": (self.told(asked, table),) for n, table in enumerate(self.tables)})

    def told(self, asked, table):
        (question,), (sigma,) = asked.questions, asked.noise_multipliers(self.sigma)
        totals = question.totals(table)
        noise = np.rint(self.random.normal(0.0, deviation(question, sigma), totals.shape)).astype(np.int64)
        return Told(sigma, NoisyTotals(totals + noise, np.ones(1, dtype=bool)))


def search(alphabet=DIGITS, length=4, **changed):
    return Search(column="icd", alphabet=alphabet, length=length, **changed)


def texts(found):
    return [row["text"] for row in found.texts]


def zipf(records=6000, domain=3000):
    """Parts of six clients, each of which has a sixth of every code; the n-th code's share is as 1 / (n + 80)."""
    random = np.random.default_rng([1, 5])
    codes = random.permutation([f"{letter}{n:03}" for letter in "ABCDEFGH" for n in range(1000)])[:domain]
    weights = 1.0 / np.arange(81, domain + 81)
    drawn = np.sort(random.choice(codes, CLIENTS * records, p=weights / weights.sum()))
    return [drawn[part::CLIENTS].tolist() for part in range(CLIENTS)]


ZIPF = search(DIGITS + "ABCDEFGH", 4, most=1000)


def test_what_is_frequent_in_the_federation_is_found_though_it_is_rare_at_each_client():
    """Nothing is found that nobody has."""
    parts = zipf()
    asking = Asking(parts)
    found = frequent(ZIPF, asking)
    truth = Counter(text for part in parts for text in part)
    frequent_ones = [text for text, count in truth.items() if count >= found.surely]
    assert len(frequent_ones) >= 10
    assert set(frequent_ones) <= set(texts(found)) <= truth.keys()
    last = found.answers[-1]
    for client, part in zip(last.told, parts, strict=True):
        (question,) = last.asked.questions
        alone = Depth.of(question, last.figures(0, client))
        assert max(Counter(part).values()) < alone.threshold
        assert len(alone.texts) < len(frequent_ones) / 3
    for row in found.texts:
        assert row["error"] == pytest.approx(SIGMA * math.sqrt(CLIENTS))
        assert abs(row["value"] - truth[row["text"]]) < 5 * row["error"]
        assert row["low"] < row["value"] < row["high"]
    counts = [row["value"] for row in found.texts]
    assert counts == sorted(counts, reverse=True)
    assert [row["characters"] for row in found.by_depth] == [1, 2, 3, 4] and not found.stopped


def test_the_noise_alone_makes_something_in_less_than_one_of_a_thousand_answers():
    tables = [[]] * CLIENTS
    found = [frequent(search(string.ascii_letters, 3), Asking(tables, seed)) for seed in range(600)]
    assert sum(bool(each.depths[0].texts or each.depths[0].beginnings) for each in found) <= 4  # 0.3 are expected
    assert sum(len(each.answers) == 1 and not each.texts and not each.stopped for each in found) >= 596


def test_as_many_records_as_it_says_are_found_as_surely_as_it_says():
    def found_of(count, seed):
        return frequent(search(length=3), Asking([["123"] * count], seed, sigma=10.0))

    surely = math.ceil(found_of(1000, 0).surely)
    missed = sum(texts(found_of(surely, seed)) != ["123"] for seed in range(1, 401))
    assert missed <= 13  # at most 4 are expected
    assert sum(texts(found_of(surely - 35, seed)) != ["123"] for seed in range(1, 101)) > 50


def test_texts_end_where_they_end_and_as_many_are_told_as_are_asked_for():
    parts = [["1"] * 90 + ["12"] * 80 + ["123"] * 70 + ["1234"] * 60] * CLIENTS
    found = frequent(search(most=9), Asking(parts, sigma=1.0))
    assert texts(found) == ["1", "12", "123", "1234"] and found.left_out == 0
    for row, count in zip(found.texts, (540, 480, 420, 360), strict=True):
        assert abs(row["value"] - count) < 5 * row["error"]
    assert not found.beginnings
    fewer = frequent(search(most=2), Asking(parts, sigma=1.0))
    assert texts(fewer) == ["1", "12"] and fewer.left_out == 2


def test_no_question_is_asked_that_is_not_needed():
    asking = Asking([["1", "22"] * 50] * CLIENTS)
    found = frequent(search("2103456789", length=9), asking)  # in any order
    assert texts(found) == ["1", "22"] or texts(found) == ["22", "1"]
    assert len(asking.asked) == 2 and not found.stopped
    assert not frequent(search(), Asking([[]])).texts


def test_characters_of_any_script_and_blanks_within():
    words = ["naïve", "наив", "天真", "😀 😀", "na ve"]
    alphabet = "".join(set("".join(words)))
    found = frequent(search(alphabet, 6), Asking([words * 100] * CLIENTS, sigma=2.0))
    assert set(texts(found)) == set(words)


def test_what_is_longer_is_told_by_its_beginning():
    found = frequent(search(length=2), Asking([["12345"] * 40 + ["12"] * 30 + ["99999"]] * CLIENTS, sigma=1.0))
    assert texts(found) == ["12"]
    (row,) = found.beginnings
    assert row["beginning"] == "12" and abs(row["value"] - 240) < 5 * row["error"]


def test_what_the_alphabet_lacks_is_told_by_how_many_there_are_and_where():
    parts = [["I10.1"] * 40 + ["X99"] * 20] * CLIENTS
    found = frequent(search("I" + DIGITS, 5), Asking(parts, sigma=1.0))
    assert not found.texts
    assert [row["beginning"] for row in found.beginnings] == ["I10"]
    assert found.by_depth[0]["other"] == pytest.approx(120, abs=5 * found.by_depth[0]["error"])
    assert found.by_depth[3]["other"] == pytest.approx(360, abs=5 * found.by_depth[3]["error"])


def test_what_was_found_until_the_budget_ends_is_told_with_the_reason():
    parts = [["1"] * 90 + ["12"] * 80 + ["123"] * 70] * CLIENTS
    found = frequent(search(), Asking(parts, sigma=1.0, most=2), stops=(SpentError,))
    assert texts(found) == ["1", "12"]
    assert [row["beginning"] for row in found.beginnings] == ["12"]
    assert found.stopped == "the budget is spent" and len(found.by_depth) == 2
    with pytest.raises(SpentError):
        frequent(search(), Asking(parts, most=0), stops=(SpentError,))
    with pytest.raises(SpentError):
        frequent(search(), Asking(parts, most=1))


def test_where_no_client_tells_that_is_said():
    def nobody(asked):
        return Answers(asked, {})

    found = frequent(search(), nobody)
    assert "no client told" in found.stopped
    assert not found.texts and not found.beginnings and not found.by_depth and found.surely is None
    assert len(found.answers) == 1


def test_of_more_beginnings_than_a_question_holds_the_largest_are_followed():
    alphabet = "".join(map(chr, range(0x4E00, 0x4E00 + 500)))
    room = search(alphabet, 2).room(2)
    assert room * 2 * 500 <= MOST_PREFIXES < (room + 1) * 2 * 500
    parts = [[f"{first}{alphabet[0]}" for rank, first in enumerate(alphabet[:60]) for _ in range(200 - rank)]]
    found = frequent(search(alphabet, 2, most=99), Asking(parts, sigma=0.1))
    assert set(texts(found)) == {f"{first}{alphabet[0]}" for first in alphabet[:room]}
    assert {row["beginning"] for row in found.beginnings} == set(alphabet[room:60])
    assert 200 - room - 1 < found.surely < 200 - room + 1


def test_a_beginning_for_which_the_next_question_has_no_room_is_not_surely_found():
    """Longer texts take more room, so that fewer beginnings are followed than the same question would hold now."""
    alphabet = "".join(map(chr, range(0x1F600, 0x1F600 + 150)))
    looking = search(alphabet, 2, most=999)
    room, before = looking.room(2), looking.room(1)
    assert room + 2 < before < 150
    parts = [[f"{first}{alphabet[0]}" for rank, first in enumerate(alphabet[: room + 2]) for _ in range(300 - rank)]]
    found = frequent(looking, Asking(parts, sigma=0.05))
    assert len(found.beginnings) == 2
    assert found.surely == pytest.approx(300 - room, abs=0.5)  # the first beginning left out


@pytest.mark.parametrize("length", [1, 2, 6])
def test_a_text_may_be_missed_at_every_depth_so_that_more_depths_need_more_records(length):
    """99 % by the union bound: threshold of the 21 counts, and what the noise takes away at one depth of all."""
    found = frequent(search(length=length), Asking([["123456"[:length]] * 5000], sigma=10.0))
    assert len(found.depths) == length
    threshold = 10.0 * math.sqrt(2.0 * math.log(1000.0 * 21))
    assert found.surely == pytest.approx(threshold + 10.0 * ndtri(1.0 - 0.01 / length), rel=1e-9)


@pytest.mark.parametrize(
    ("alphabet", "length"), [(DIGITS, 13), ('"\\', 64), ("😀😁", 13), ("\x00\x01", 64), ("äöü", 1), (" x", 13)]
)
def test_there_is_room_for_every_question_of_a_search(alphabet, length):
    """The beginnings that take most room in a question's text, as many as are followed."""
    looking = search(alphabet, length, where=conditions({"ward": [f"ward {n}" for n in range(100)]}))
    widest = max(alphabet.strip(), key=lambda each: len(json.dumps(json.dumps(each))))
    beginnings = map("".join, itertools.product(widest, *[sorted(alphabet, key=widest.__ne__)] * (length - 2)))
    followed = list(itertools.islice(beginnings, looking.room(length))) if length > 1 else [""]
    assert Questionnaire((looking.question(followed),)).columns == {"icd", "ward"}


@pytest.mark.parametrize(
    "changed",
    [
        {"alphabet": "  "},
        {"alphabet": ["a", "b"]},
        {"alphabet": "\ud800"},
        {"alphabet": "".join(map(chr, range(0x4E00, 0x9000)))},
        {"alphabet": "".join(map(chr, range(0x10000, 0x10400))), "length": 64},
        {"length": 0},
        {"length": 65},
        {"length": True},
        {"most": 0},
        {"most": 1001},
        {"column": ""},
    ],
)
def test_what_cannot_be_looked_for_is_refused(changed):
    with pytest.raises(QuestionError):
        Search(**{"column": "icd", "alphabet": "ab", "length": 3} | changed)
