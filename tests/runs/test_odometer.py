"""The odometer reads again only where the ledger was written, reads the same as from scratch, and costs that much."""

import datetime
import random
from types import SimpleNamespace

import pytest

from fedprivacy.ledger import Ledger
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.runs import Roster, RoundResult
from tests.flower.blobs import Blobs, plan_of
from tests.operations import operations

EVENT, OTHER = PoissonSampledGaussian(0.1, 2.0), PoissonSampledGaussian(0.1, 3.0)
BUDGET = PrivacyBudget(3.0, 1e-5)
FUTURE = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


def accountant(url, clients, run_id="run", event=EVENT):
    """The accountant of a run on these clients, who are its datasets, with a connection of its own to the ledger."""
    made = CentralAccountant(Ledger(url), EVENT.relation, BUDGET, "fixed-then-adaptive", run_id=run_id)
    made.enrol({c: c for c in clients}, dict.fromkeys(clients, event))
    return made


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def clock(monkeypatch):
    """The time, for budgets; it can be set."""
    time = SimpleNamespace(now=datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))
    fake = SimpleNamespace(datetime=SimpleNamespace(now=lambda _: time.now), UTC=datetime.UTC)
    monkeypatch.setattr("fedprivacy.values.budget.datetime", fake)
    monkeypatch.setattr("fedprivacy.runs.accountant.datetime", fake)
    return time


@pytest.mark.exhaustive
def test_after_any_acts_of_two_runs_every_client_is_read_as_from_scratch(url, clock):
    draw, clients = random.Random(2), [f"c{number:02}" for number in range(12)]
    runs = {"run": accountant(url, clients), "another": accountant(url, clients[4:], "another", OTHER)}
    ledger, charged, kept = Ledger(url), [], []

    def charge():
        run_id, some = draw.choice(list(runs)), draw.sample(clients[4:], 3)
        attempt = Attempt(run_id, len(charged) + 1)
        granted = runs[run_id].grant(attempt, dict.fromkeys(some, draw.randint(1, 4)))
        charged.append((attempt, sorted(granted)))

    def settle():
        attempt, granted = draw.choice(charged)
        some, run = draw.sample(granted, draw.randint(0, len(granted))), runs[attempt.run_id]
        if draw.random() < 0.5:
            run.commit(attempt, dict.fromkeys(some))
        else:
            run.void(attempt, some)

    def budget():
        ends = draw.choice([None, FUTURE, clock.now + datetime.timedelta(days=draw.randint(-2, 4))])
        ledger.set_budget(draw.choice(clients), PrivacyBudget(draw.choice([1.0, 2.0, 8.0]), 1e-5), ends, "decided")

    def claim():
        ledger.reconcile(draw.choice(clients), {("a run elsewhere", draw.choice([EVENT, OTHER])): draw.randint(1, 9)})

    def wait():
        clock.now += datetime.timedelta(days=1)

    charge()
    for _ in range(30):
        for act in draw.choices([charge, settle, budget, claim, wait], k=draw.randint(1, 5)):
            act()
        read, scratch = runs["run"].spent(), accountant(url, clients).spent()
        assert {c: each.epsilon for c, each in read.items()} == pytest.approx(
            {c: s.epsilon for c, s in scratch.items()}
        )
        assert [_without_epsilon(each) for each in read.values()] == [_without_epsilon(s) for s in scratch.values()]
        kept.append((read, dict(scratch)))
    for read, scratch in kept:  # whoever kept a reading has what it was
        assert [_without_epsilon(each) for each in read.values()] == [_without_epsilon(s) for s in scratch.values()]
    assert len({tuple(read.exhausted) for read, _ in kept}) > 2


def _without_epsilon(spent):
    return (spent.client_id, spent.budget_epsilon, spent.delta, spent.rounds, spent.steps, spent.steps_left)


def test_a_budget_that_ends_between_two_readings_leaves_nothing_though_nobody_writes(url, clock):
    run = accountant(url, ["a", "b"])
    run.spent()
    Ledger(url).set_budget("a", BUDGET, clock.now + datetime.timedelta(days=2), "until the study ends")
    assert not run.spent()["a"].exhausted
    clock.now += datetime.timedelta(days=1)
    assert not run.spent()["a"].exhausted
    clock.now += datetime.timedelta(days=1)
    assert run.spent().exhausted == ("a",)
    Ledger(url).set_budget("a", BUDGET, None, "prolonged")
    assert run.spent().exhausted == ()


def test_a_client_that_joins_later_is_read_with_what_it_spent_before(url):
    accountant(url, ["late"], "another").grant(Attempt("another", 1), {"late": 7})
    run = accountant(url, ["early"])
    run.spent()
    run.enrol({"late": "late"}, {"late": EVENT})
    assert {client: each.steps for client, each in run.spent().items()} == {"early": 0, "late": 7}


@pytest.fixture
def of_a_round(tmp_path):
    """The number of operations that the books of a round of 5 clients take, where so many are enrolled."""

    def count(enrolled):
        clients = [f"c{number:05}" for number in range(enrolled)]
        run = accountant(f"sqlite:///{tmp_path / f'{enrolled}.db'}", clients)
        write, roster = RunWriter(tmp_path / str(enrolled), plan_of(Blobs(), noise_multiplier=1.0)), Roster(9)
        draw = random.Random(3)

        def round(number):
            attempt, asked = Attempt("run", number), draw.sample(clients, 5)
            open_to = run.spent()
            granted = run.grant(attempt, {c: 1 for c in asked if c not in open_to.exhausted}) if number else {}
            run.commit(attempt, dict.fromkeys(granted))
            result = RoundResult(number, {}, run.spent(), tuple(granted), {})
            roster.add(result)
            write(result)
            assert result.point.clients == enrolled

        for number in range(4):  # what is made once is made
            round(number)
        return min([operations(lambda number=number: round(number)) for number in range(4, 8)][1:])

    return count


@pytest.mark.exhaustive
def test_the_books_of_a_round_cost_what_is_asked_and_not_what_is_enrolled(of_a_round):
    few, many = of_a_round(100), of_a_round(3000)
    assert many - few < 1000 < few  # a third of an operation for each client more
