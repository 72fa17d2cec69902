"""Questions through the real ServerApp and ClientApp: three deployed clients, two books, one epsilon."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import fedprivacy as fp
from fedprivacy._support.signing import server_key
from fedprivacy.flower import BudgetSpentError
from fedprivacy.flower.server.ask_clients import ask_clients
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.runs.plans.plan import QuestionPlan
from fedprivacy.runs.records.witnesses import WITNESS
from tests.flower.blobs import Blobs
from tests.flower.deployment import DeployedGrid
from tests.runs.witnessed import Host

CLIENTS = 3
ALL = {"questions": "count,spread,categories,quantiles,mean", "question-columns": "*", "smallest-cohort": 0.0}
AGE = fp.ask.mean("age", 0, 100)


class Hospitals(Blobs):
    """Each client holds 30 records, whose age and ward everybody here may know."""

    def table(self, source: fp.ShardSource) -> fp.Table:
        ages = [float(30 + n) for n in range(30)]
        return fp.Table({"age": ages, "ward": ["a", "b", "c"] * 10, "code": np.full(30, 2.0**53)})


def plan_of(folder, **settings):
    given = {"clients": CLIENTS, "epsilon": 3.0, "delta": 1e-3, "ledger": str(folder / "ledger.db")}
    given |= {"signing-key": str(folder / "server.key")} | (settings or {"spend": 0.5})
    return QuestionPlan.of(given, Hospitals())


@pytest.fixture
def plan(tmp_path):
    server_key(tmp_path / "server.key")
    return plan_of(tmp_path)


def ask(plan, grid, *questions, anew=False):
    return ask_clients(grid, plan, Questionnaire(questions), anew=anew)


def test_nobody_is_asked_on_a_ledger_that_lacks_what_a_run_beside_it_signed(plan, tmp_path):
    plan = replace(plan, config=replace(plan.config, out=str(tmp_path / "runs" / "asked")))
    grid = DeployedGrid(plan, tmp_path, **ALL)
    host = Host(tmp_path)
    host.run("before", "ledger")
    host.copy("ledger", "old")
    host.run("signed", "ledger")
    host.copy("old", "ledger")
    with pytest.raises(LedgerError, match="Nothing is granted on it"):
        ask(plan, grid, AGE)
    assert not any(grid.guard(plan, name).history() for name in grid.names.values())
    (host.runs / "signed" / WITNESS).unlink()
    assert len(ask(plan, grid, AGE).told) == CLIENTS


@pytest.mark.exhaustive
def test_questions_that_are_asked_together_each_have_the_error_of_their_share_now_and_when_read_again(plan, tmp_path):
    """A quarter of the privacy loss doubles the noise; the clients' noise adds up by its squares."""
    plan = plan_of(tmp_path, **{"noise-multiplier": 1.2})
    grid, asked = DeployedGrid(plan, tmp_path, **ALL), Questionnaire((fp.ask.count(), AGE), (1.0, 3.0))
    for answers in (ask_clients(grid, plan, asked), ask_clients(grid, plan, asked)):
        alone, with_the_mean, mean = (*answers.figures(0)[:1], *answers.figures(1)[:2])
        assert alone.error == pytest.approx(1.2 * 2.0 * math.sqrt(CLIENTS))
        assert with_the_mean.error == pytest.approx(1.2 * math.sqrt(4 / 3) * math.sqrt(2) * math.sqrt(CLIENTS))
        for figure, truth in ((alone, 30.0 * CLIENTS), (mean, 44.5)):
            assert abs(figure.value - truth) < 5 * figure.error
    assert len(answers.reread) == CLIENTS


def test_the_newest_answer_is_read_again_for_nothing_and_asked_anew_for_its_price(plan, tmp_path):
    grid = DeployedGrid(plan, tmp_path, **ALL)
    first = ask(plan, grid, AGE)
    again = ask(plan, grid, AGE)
    assert again.federation == first.federation
    assert again.reread == tuple(sorted(grid.names.values()))
    assert sum(grid.guard(plan, "hospital-0").history().values()) == 1
    anew = ask(plan_of(tmp_path), grid, AGE, anew=True)
    assert anew.federation != first.federation
    assert sum(grid.guard(plan, "hospital-0").history().values()) == 2
    assert ask(plan, grid, AGE).federation == anew.federation
    with_another = ask(plan_of(tmp_path), grid, AGE, fp.ask.count())
    assert not with_another.reread and len(with_another.told) == CLIENTS


@pytest.mark.exhaustive
def test_an_answer_is_read_again_when_nothing_is_left_to_spend(tmp_path):
    """Its noise was left open: there is none any more that would fit."""
    server_key(tmp_path / "server.key")
    everything = {"epsilon": 0.5, "spend": 0.5}
    grid = DeployedGrid(plan_of(tmp_path, **everything), tmp_path, **ALL)
    first = ask(plan_of(tmp_path, **everything), grid, AGE)
    assert ask(plan_of(tmp_path, **everything), grid, AGE).federation == first.federation
    with pytest.raises(BudgetSpentError, match=r"hospital-0 has spent .* not one more step"):
        ask(plan_of(tmp_path, **everything), grid, fp.ask.count())


@pytest.mark.exhaustive
def test_who_comes_later_is_asked_alone(plan, tmp_path):
    few = replace(plan, config=replace(plan.config, clients=2))
    ask(few, DeployedGrid(few, tmp_path, **ALL), AGE)
    everybody = DeployedGrid(plan, tmp_path, **ALL)
    asked = ask(plan, everybody, AGE)
    assert asked.reread == ("hospital-0", "hospital-1") and len(asked.told) == CLIENTS
    assert sum(everybody.guard(plan, "hospital-0").history().values()) == 1


@pytest.mark.parametrize(
    ("node", "question"),
    [
        ({"questions": "count"}, AGE),
        ({"question-columns": "age"}, fp.ask.mean("age", 0, 100, by={"ward": ["a"]})),
        ({}, fp.ask.mean("height", 0, 100)),
        ({}, fp.ask.count(where={"code": "9007199254740993"})),  # which floats do not tell from its neighbours
    ],
)
def test_what_the_data_owner_does_not_allow_is_refused_and_costs_nothing(plan, tmp_path, node, question):
    grid = DeployedGrid(plan, tmp_path, **ALL | node)
    asked = ask(plan, grid, question)
    assert asked.failures == dict.fromkeys(grid.names.values(), "question-not-allowed")
    assert not asked.told
    assert grid.guard(plan, "hospital-0").history() == {}
    assert not any(account.history for account in Ledger(plan.config.ledger).accounts(["blobs/hospital-0"]).values())


def test_questions_have_a_budget_of_their_own(plan, tmp_path):
    grid = DeployedGrid(plan, tmp_path, **ALL | {"question-epsilon": 0.7})
    ask(plan, grid, AGE)
    second = ask(plan_of(tmp_path), grid, fp.ask.count())
    assert set(second.failures.values()) == {"questions-exhausted"}
    assert sum(grid.guard(plan, "hospital-0").history().values()) == 1
    assert second.spent["hospital-0"].epsilon == pytest.approx(second.before["hospital-0"].epsilon)
