"""Frequent texts through the real ServerApp and ClientApp: six clients, two books, each depth an ordinary question."""

from __future__ import annotations

import pytest

import fedprivacy as fp
from fedprivacy._support.signing import server_key
from fedprivacy.accounting import pld
from fedprivacy.questions.frequent import Search
from fedprivacy.runs.plans.question_plan import question_plan
from fedprivacy.simulation.ask import frequent_among
from fedprivacy.values.events import PoissonSampledGaussian
from tests.flower.blobs import Blobs
from tests.flower.deployment import DeployedGrid, charged

pytestmark = pytest.mark.usefixtures("undrawn", "repeatable")

CLIENTS = 6
ALPHABET = "ABCDEFGHIJ0123456789."
FREQUENT = {"A01.1": 40, "A01": 36, "B20": 32, "J45": 28}
RECORDS = [code for code, count in FREQUENT.items() for _ in range(count)]
RECORDS += [f"{letter}{number:02}" for letter in "CDEF" for number in range(100)]
LOOKING = Search(column="icd", alphabet=ALPHABET, length=8)
ALLOWED = {"questions": "prefixes", "question-columns": "icd", "smallest-cohort": 0.0}


class Hospitals(Blobs):
    """Each client holds 536 records. Alone, a frequent code has fewer than its noise hides."""

    def table(self, source: fp.ShardSource) -> fp.Table:
        return fp.Table({"icd": RECORDS, "drug": [None] * len(RECORDS)})


def plan_of(folder, **settings):
    given = {"clients": CLIENTS, "delta": 1e-3, "ledger": str(folder / "ledger.db")}
    given |= {"signing-key": str(folder / "server.key")} | settings
    return question_plan(given, Hospitals())


@pytest.fixture
def plan(tmp_path):
    server_key(tmp_path / "server.key")
    return plan_of(tmp_path, epsilon=3.0, spend=2.0)


def charges(plan, grid):
    """The charges of every client, the same in both books."""
    one, *others = [charged(plan, grid, client) for client in grid.names.values()]
    assert all(history == one for history in others)
    return one


def texts(found):
    return {row["text"] for row in found.texts}


def test_the_spend_is_divided_beforehand_and_what_is_not_asked_is_not_charged(plan, tmp_path):
    grid = DeployedGrid(plan, tmp_path, **ALLOWED)
    found = frequent_among(grid, plan, LOOKING)
    assert FREQUENT.keys() <= texts(found)  # nearly always these alone
    assert len(found.answers) == 5 and not found.stopped  # of 8
    ((event, times),) = charges(plan, grid).items()
    assert times == 5
    assert pld.epsilon({event: 8}, 1e-3) == pytest.approx(2.0, rel=1e-3)
    last = found.answers[-1].spent["hospital-0"]
    assert last.epsilon == pytest.approx(pld.epsilon({event: 5}, 1e-3)) and last.epsilon < 1.6
    assert event == PoissonSampledGaussian(1.0, found.answers[0].event.noise_multiplier, plan.relation)
    for row in found.texts:
        assert abs(row["value"] - CLIENTS * FREQUENT.get(row["text"], 1)) < 7 * row["error"]
    assert found.by_depth[0]["clients"] == CLIENTS
    assert CLIENTS * max(FREQUENT.values()) > found.surely > max(FREQUENT.values())


@pytest.mark.exhaustive
def test_what_was_found_until_the_budget_ends_is_told_and_found_again_for_nothing(tmp_path):
    server_key(tmp_path / "server.key")
    once = PoissonSampledGaussian(1.0, 5.0, fp.NeighbouringRelation.ZERO_OUT)
    three = {"noise-multiplier": 5.0, "epsilon": pld.epsilon({once: 3}, 1e-3) * 1.02, "filter": "fixed-mechanism"}
    for_three = plan_of(tmp_path, **three)
    grid = DeployedGrid(for_three, tmp_path, **ALLOWED | {"filter": "fixed-mechanism"})
    found = frequent_among(grid, for_three, LOOKING)
    assert texts(found) >= {"A01", "B20", "J45"}  # of 900 others, one is above the threshold once in 1,000 runs
    assert found.beginnings[0]["beginning"] == "A01"
    assert "hospital-0 has spent" in found.stopped
    assert charges(for_three, grid) == {once: 3}
    again = frequent_among(grid, for_three, LOOKING)
    assert again.texts == found.texts and again.stopped and charges(for_three, grid) == {once: 3}


@pytest.mark.exhaustive
def test_a_search_that_was_broken_off_goes_on_with_what_a_call_may_spend(tmp_path):
    """The answers that are there cost nothing; those that are lacking share the spend."""
    server_key(tmp_path / "server.key")
    settings = {"epsilon": 4.0, "spend": 1.5}
    grid = DeployedGrid(plan_of(tmp_path, **settings), tmp_path, **ALLOWED)
    first = frequent_among(grid, plan_of(tmp_path, **settings), Search(column="icd", alphabet=ALPHABET, length=2))
    ((event, times),) = charges(plan_of(tmp_path, **settings), grid).items()
    assert times == 2
    found = frequent_among(grid, plan_of(tmp_path, **settings), LOOKING)
    assert [bool(answers.spent) for answers in found.answers] == [False, False, True, True, True]
    assert texts(found) == FREQUENT.keys() and not first.texts
    noises = {answers.event.noise_multiplier for answers in found.answers[2:]}
    assert len(noises) == 1 and noises != {event.noise_multiplier}
    assert found.answers[-1].spent["hospital-0"].epsilon < 3.0


@pytest.mark.exhaustive
def test_the_front_door_finds_reads_again_and_asks_anew(tmp_path):
    settings = {"clients": 3, "noise_multiplier": 2.0, "epsilon": 20.0, "out": tmp_path, "seed": 1}
    looking = {"alphabet": ALPHABET, "length": 5, "where": {"icd": ["A01", "A01.1", "B20"]}}
    found = fp.ask.frequent(Hospitals(), "icd", **looking, **settings)
    assert texts(found) == {"A01", "A01.1", "B20"}
    again = fp.ask.frequent(task := Hospitals(), "icd", **looking, **settings)
    assert again.texts == found.texts and not any(answers.spent for answers in again.answers)
    anew = fp.ask.frequent(task, "icd", **looking, **settings, anew=True)
    assert texts(anew) == texts(found) and anew.texts != found.texts
    assert anew.answers[-1].spent["client-0"].steps == 2 * found.answers[-1].spent["client-0"].steps


def test_everything_that_is_wrong_is_said_before_anything_is_asked(tmp_path):
    for wrong in ({"alphabet": ""}, {"length": 0}, {"where": 5}, {"spent": 1.0}, {"rounds": 3}):
        given = {"alphabet": "a", "length": 2, "out": tmp_path, "clients": 2} | wrong
        with pytest.raises(fp.ConfigError, match=next(iter(wrong))):
            fp.ask.frequent(Hospitals(), "icd", **given)
