"""The central accountant alone: what it grants, gives back and shows, without a round around it.

Its odometer reads again only where the ledger was written, reads the same as from scratch, and costs that much.
"""

import datetime
import itertools
import random
from types import SimpleNamespace

import pytest

from fedprivacy.accounting import FILTERS, pld
from fedprivacy.ledger import Allowance, Ledger, LedgerError
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.plans.noise import RunNoise, Standing, standings_on
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.runs import Roster, RoundResult
from tests.flower.blobs import Blobs, plan_of
from tests.operations import operations

EVENT = PoissonSampledGaussian(0.1, 1.0)
LITTLE, OTHER = PoissonSampledGaussian(0.1, 3.0), PoissonSampledGaussian(0.1, 2.0)
BUDGET = PrivacyBudget(3.0, 1e-5)
QUOTA = FILTERS["fixed-mechanism"](BUDGET).quota({}, EVENT)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


ROUND = Attempt("run", 1)


def enrolled(ledger):
    accountant = CentralAccountant(ledger, EVENT.relation, BUDGET, "fixed-mechanism")
    accountant.enrol({"one": "a", "two": "b"}, {"one": EVENT, "two": EVENT})
    return accountant


def test_the_whole_quota_is_granted_over_all_runs_and_not_one_step_more(ledger):
    assert enrolled(ledger).grant(ROUND, {"one": QUOTA - 1}) == {"one": QUOTA - 1}
    another = enrolled(ledger)
    assert another.spent()["one"].steps_left == 1 and not another.spent()["one"].exhausted
    assert another.grant(Attempt("another", 1), {"one": 5, "two": 5}) == {"one": 1, "two": 5}
    assert another.grant(Attempt("another", 2), {"one": 1}) == {}
    spent = another.spent()["one"]
    assert (spent.steps, spent.steps_left, spent.exhausted, spent.rounds) == (QUOTA, 0, True, 2)
    assert spent.epsilon == pytest.approx(pld.epsilon({EVENT: QUOTA}, BUDGET.delta), rel=1e-5)
    assert spent.epsilon <= BUDGET.epsilon < pld.epsilon({EVENT: QUOTA + 1}, BUDGET.delta)


def test_a_round_is_charged_once_unless_it_is_another_attempt_or_said_to_be_resumed(ledger):
    accountant = enrolled(ledger)
    assert accountant.grant(ROUND, {"one": 2}) == {"one": 2}
    with pytest.raises(LedgerError, match="charged before"):
        accountant.grant(ROUND, {"one": 2})
    assert accountant.grant(ROUND, {"one": 2}, resumed=True) == {"one": 2}
    assert accountant.spent()["one"].steps == 2
    assert accountant.grant(ROUND.again, {"one": 2}) == {"one": 2}
    assert accountant.spent()["one"].steps == 4
    assert accountant.charged(ROUND) == accountant.charged(ROUND.again) == {"one"}
    assert accountant.charged(ROUND.again.again) == accountant.charged(Attempt("run", 2)) == set()


def test_what_is_settled_is_the_attempt_that_is_named_and_the_first_if_none_is(ledger):
    accountant = enrolled(ledger)
    for attempt in (ROUND, ROUND.again):
        accountant.grant(attempt, {"one": 3, "two": 3})
    assert accountant.unreconciled("run") == {ROUND: {"one", "two"}, ROUND.again: {"one", "two"}}
    accountant.commit(ROUND, {"one": None})
    accountant.void(ROUND, ["two"])
    assert accountant.unreconciled("run") == {ROUND.again: {"one", "two"}}
    assert {client: spent.steps for client, spent in accountant.spent().items()} == {"one": 6, "two": 3}
    accountant.void(ROUND.again, ["one"])
    accountant.commit(ROUND.again, {"two": None})
    assert accountant.unreconciled("run") == {}
    assert {client: spent.steps for client, spent in accountant.spent().items()} == {"one": 3, "two": 3}
    assert accountant.histories(["one", "two"]) == {"one": {EVENT: 3}, "two": {EVENT: 3}}


def test_nothing_is_granted_or_shown_as_left_once_a_budget_has_expired(ledger):
    accountant = enrolled(ledger)
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    ledger.set_budget("a", BUDGET, long_ago, "the study is over")
    assert accountant.grant(ROUND, {"one": 2, "two": 2}) == {"two": 2}
    spent = accountant.spent()
    assert spent["one"].exhausted and spent["one"].steps_left == 0
    assert spent["two"].steps_left == QUOTA - 2 and accountant.most_charged() == {EVENT: 2}


def test_a_client_s_own_book_counts_where_it_holds_more_and_says_how_much_more(ledger):
    accountant = CentralAccountant(ledger, EVENT.relation, BUDGET, "fixed-mechanism")
    datasets, events = {"one": "a", "two": "b"}, {"one": EVENT, "two": EVENT}
    assert accountant.enrol(datasets, events, {"one": {("elsewhere", EVENT): 7}, "two": {}}) == {"one": 7}
    assert accountant.enrol(datasets, events, {"one": {("elsewhere", EVENT): 5}}) == {}
    assert accountant.spent()["one"].steps == 7
    assert accountant.spent()["one"].steps_left == QUOTA - 7
    untouched = accountant.spent()["two"]
    assert (untouched.epsilon, untouched.steps, untouched.rounds, untouched.steps_left) == (0.0, 0, 0, QUOTA)


def spending(ledger, run_id, filter="adaptive"):
    """The accountant of a run that may take so much of each budget."""
    accountant = CentralAccountant(ledger, EVENT.relation, BUDGET, filter, keep_filter=True, run_id=run_id, spend=1.0)
    accountant.enrol({"one": "a", "two": "b"}, {"one": LITTLE, "two": LITTLE})
    return accountant


def test_a_run_that_goes_on_has_its_spend_once(ledger):
    first = spending(ledger, "first")
    half = first.spent()["one"].steps_left // 2
    first.grant(Attempt("first", 1), {"one": half})
    left = first.spent()["one"].steps_left
    again = spending(ledger, "first")
    assert again.spent()["one"].steps_left == left > 0
    again.grant(Attempt("first", 2), {"one": 10**6})
    assert pld.epsilon(ledger.accounts(["a"])["a"].history, 1e-5) <= 1.0
    again.void(Attempt("first", 2), ["one"])  # what is returned counts neither for the budget nor for the spend
    assert again.spent()["one"].steps_left == left


def test_a_dataset_keeps_the_filter_of_its_first_run_unless_the_run_names_another(ledger):
    spending(ledger, "first", filter="fixed-mechanism")
    spending(ledger, "second", filter="adaptive")
    assert {allowance.filter for allowance in ledger.allowances(["a", "b"]).values()} == {"fixed-mechanism"}
    named = CentralAccountant(ledger, EVENT.relation, BUDGET, "adaptive")
    with pytest.raises(LedgerError, match=r"filter fixed-mechanism, and this run asks for .* filter adaptive"):
        named.enrol({"one": "a"}, {"one": EVENT})


FUTURE = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


def accountant_of(url, clients, run_id="run", event=OTHER):
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
    runs = {"run": accountant_of(url, clients), "another": accountant_of(url, clients[4:], "another", LITTLE)}
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
        ledger.reconcile(draw.choice(clients), {("a run elsewhere", draw.choice([OTHER, LITTLE])): draw.randint(1, 9)})

    def wait():
        clock.now += datetime.timedelta(days=1)

    charge()
    for _ in range(30):
        for act in draw.choices([charge, settle, budget, claim, wait], k=draw.randint(1, 5)):
            act()
        read, scratch = runs["run"].spent(), accountant_of(url, clients).spent()
        epsilons = [[each.epsilon for each in spent.values()] for spent in (read, scratch)]
        assert epsilons[0] == pytest.approx(epsilons[1])
        assert [_without_epsilon(each) for each in read.values()] == [_without_epsilon(s) for s in scratch.values()]
        kept.append((read, dict(scratch)))
    for read, scratch in kept:  # whoever kept a reading has what it was
        assert [_without_epsilon(each) for each in read.values()] == [_without_epsilon(s) for s in scratch.values()]
    assert len({tuple(read.exhausted) for read, _ in kept}) > 2


def _without_epsilon(spent):
    return (spent.client_id, spent.budget_epsilon, spent.delta, spent.rounds, spent.steps, spent.steps_left)


def test_a_budget_that_ends_between_two_readings_leaves_nothing_though_nobody_writes(url, clock):
    accountant_of(url, ["late"], "another").grant(Attempt("another", 1), {"late": 7})
    run = accountant_of(url, ["a", "b"])
    run.spent()
    Ledger(url).set_budget("a", BUDGET, clock.now + datetime.timedelta(days=2), "until the study ends")
    assert not run.spent()["a"].exhausted
    clock.now += datetime.timedelta(days=1)
    assert not run.spent()["a"].exhausted
    clock.now += datetime.timedelta(days=1)
    assert run.spent().exhausted == ("a",)
    Ledger(url).set_budget("a", BUDGET, None, "prolonged")
    assert run.spent().exhausted == ()
    run.enrol({"late": "late"}, {"late": OTHER})  # a client that joins later is read with what it spent before
    assert run.spent()["late"].steps == 7


@pytest.mark.exhaustive
def test_the_books_of_a_round_cost_what_is_asked_and_not_what_is_enrolled(tmp_path):
    def operations_of_a_round(enrolled):
        """The number of operations that the books of a round of 5 clients take, where so many are enrolled."""
        clients = [f"c{number:05}" for number in range(enrolled)]
        run = accountant_of(f"sqlite:///{tmp_path / f'{enrolled}.db'}", clients)
        write, roster = RunWriter(tmp_path / str(enrolled), plan_of(Blobs(), noise_multiplier=1.0)), Roster(9)
        draw = random.Random(3)

        def round(number):
            attempt, asked, open_to = Attempt("run", number), draw.sample(clients, 5), run.spent()
            granted = run.grant(attempt, {c: 1 for c in asked if c not in open_to.exhausted}) if number else {}
            run.commit(attempt, dict.fromkeys(granted))
            result = RoundResult(number, {}, run.spent(), tuple(granted), {})
            roster.add(result)
            write(result)
            assert result.point.clients == enrolled

        for number in range(4):  # what is made once is made
            round(number)
        return min([operations(lambda number=number: round(number)) for number in range(4, 8)][1:])

    few, many = operations_of_a_round(100), operations_of_a_round(3000)
    assert many - few < 1000 < few  # a third of an operation for each client more


def test_a_run_goes_on_with_the_most_noise_that_it_has_charged_at_a_rate(tmp_path):
    """Only a client's guard can have reported several: a run that went on with less would change its mechanism."""
    noises, allowance = (2.0, 1.0, 1.5), Allowance(PrivacyBudget(8.0, 1e-5), "adaptive")
    for order in itertools.permutations(noises):
        events = {PoissonSampledGaussian(0.1, noise): 1 for noise in order} | {PoissonSampledGaussian(0.2, 7.0): 4}
        standing = Standing({PoissonSampledGaussian(0.1, 9.0): 3}, allowance, charged=events)
        assert [standing.charged_at(rate) for rate in (0.1, 0.2, 0.3)] == [2.0, 7.0, None]
    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        ledger.open_budgets({"a": allowance})
        claims = {("stopped", PoissonSampledGaussian(0.1, noise)): 2 for noise in noises}
        ledger.reconcile("a", claims | {("other", PoissonSampledGaussian(0.1, 9.0)): 3})
        standing = standings_on(ledger, "stopped", {"ward": "a"}, lambda *_: allowance)["ward"]
    assert standing.charged_at(0.1) == 2.0 and standing.past == {PoissonSampledGaussian(0.1, 9.0): 3}
    assert standing.charged == {event: steps for (run_id, event), steps in claims.items()}


def test_the_bounds_of_a_run_s_noise_are_those_of_the_clients_that_come():
    noise = RunNoise(shared=2.0, own={"a": 1.0, "b": 5.0})
    assert noise.bounds(["a", "b", "c"]) == (1.0, 5.0) and RunNoise(9.0, {"a": 1.0}).bounds(["a", "c"]) == (1.0, 9.0)
    assert RunNoise(9.0, {"a": 1.0}).bounds(["a"]) == (1.0, 1.0) and RunNoise(2.0, {}).bounds(["a"]) == (2.0, 2.0)
    assert RunNoise(None, {"a": 1.0}).bounds(["a"]) is None
