"""Simulated participation in whole runs: who is asked, whose update is averaged, and what everybody is charged."""

import pytest
import torch

from fedprivacy.accounting import pld
from fedprivacy.flower import RoundFailedError
from fedprivacy.ledger import ChargeState, Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.settings.configuration import ConfigError
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.deployment import DeployedGrid, deployed_plan, start
from tests.flower.runs import answering, model_of, run, tampered

NOISE = {"noise_multiplier": 2.0, "epsilon": 50.0}


@pytest.fixture
def plan(ledger_url):
    """Makes plans that share a ledger."""
    return lambda **settings: plan_of(BLOBS, **NOISE | {"ledger": ledger_url, "rounds": 4} | settings)


@pytest.fixture
def speeds(tmp_path):
    """A trace in which client n takes n + 1 seconds for a local step."""
    file = tmp_path / "speeds.csv"
    file.write_text("client,seconds\n" + "".join(f"{n},{n + 1}\n" for n in range(6)))
    return str(file)


def asked_in(records):
    """How often each client was asked."""
    everybody = [client for record in records for client in (*record.participants, *record.failures)]
    return {client: everybody.count(client) for client in records[-1].spent}


def assert_charged(done, plan):
    """Whoever was asked was charged for a whole round, on books that verify, and nobody else for anything."""
    asked, last = asked_in(done.records), done.records[-1]
    assert {c: spent.rounds for c, spent in last.spent.items()} == asked
    for client, spent in last.spent.items():
        steps = asked[client] * plan.config.local_steps
        assert spent.steps == steps
        expected = pld.epsilon({plan.event(30 + int(client[-1])): steps}, 1e-3) if steps else 0.0
        assert spent.epsilon == pytest.approx(expected)
    charges = verify_ledger(Ledger(plan.config.ledger)).replay.charges
    open_charges = {key.dataset_id for key, charge in charges.items() if charge.state is ChargeState.RESERVED}
    assert {dataset.rpartition("/")[2] for dataset in open_charges} == set(last.unreconciled)
    assert len(charges) == sum(asked.values())


def test_what_comes_too_late_is_not_in_the_average(plan, speeds, tmp_path):
    """The same model as if the slow had not been asked at all. A deadline is counted from its own round's beginning."""
    late = run(plan(rounds=2, speeds=speeds, deadline=4.0))
    assert [record.participants for record in late.records] == [("client-0", "client-1")] * 2
    assert [record.clock for record in late.records] == [4.0, 8.0]
    assert_charged(late, plan(rounds=2))
    there = tmp_path / "two.csv"
    there.write_text("client,from,to\n0,0,100\n1,0,100\n")
    two = run(plan(rounds=2, availability=str(there), ledger=f"sqlite:///{tmp_path / 'other.db'}"))
    assert torch.equal(model_of(late), model_of(two))


def test_a_client_with_few_steps_left_is_waited_for_no_longer_than_these_take(plan, speeds):
    (record,) = run(plan(rounds=1, local_steps=9, epsilon=2.0, speeds=speeds)).records
    assert 1 < record.spent["client-3"].steps < 9
    assert record.seconds == 4 * record.spent["client-3"].steps


def test_a_drop_out_trains_nothing_and_stays_charged(plan):
    plan, asked = plan(drop_out=0.4, rounds=6), []

    def heard(message, context, reply):
        asked.append(f"client-{context.node_config['partition-id']}")
        return reply

    done = run(plan, client=answering(plan, heard))
    dropped = [client for record in done.records for client, why in record.failures.items() if why == "dropped-out"]
    assert dropped and len(asked) + len(dropped) == 24
    assert sorted(asked) == sorted(client for record in done.records for client in record.participants)
    assert set(done.records[-1].unreconciled) == set(dropped)
    assert_charged(done, plan)


@pytest.mark.exhaustive
def test_a_round_that_chance_emptied_does_not_end_the_run_and_one_that_failures_emptied_does(plan):
    done = run(plan(drop_out=0.9, rounds=6, clients=2))
    assert len(done.records) == 6 and any(not record.participants for record in done.records)

    def fail(message, reply):
        raise RuntimeError

    failing = plan(cohort_size=2, drop_out=0.01, ledger="sqlite:///other.db")
    with pytest.raises(RoundFailedError, match="brought no usable update"):
        run(failing, client=tampered(failing, fail, [f"client-{n}" for n in range(4)]))


@pytest.mark.exhaustive
def test_only_who_is_there_is_asked_and_the_clock_waits(plan, speeds, tmp_path):
    """The last two of four clients come after 20 seconds, and everybody leaves after 57."""
    away = tmp_path / "availability.csv"
    away.write_text("client,from,to\n0,0,57\n1,0,57\n2,20,57\n3,20,57\n")
    plan = plan(availability=str(away), speeds=speeds, rounds=20)
    done = run(plan)
    for record in done.records:
        there = 4 if record.clock - record.seconds >= 20 else 2
        assert len(record.participants) + len(record.failures) == there
    last = done.records[-1]  # begins at 52, and two clients are not done when they leave
    assert last.failures == {"client-2": "dropped-out", "client-3": "dropped-out"}
    assert (last.round, last.clock, last.seconds) == (10, 57.0, 5.0)
    assert done.result.stopped_because == "no client with budget left is ever there again"
    assert_charged(done, plan)


def deployed(tmp_path, **settings):
    plan = deployed_plan(tmp_path, **NOISE | settings)
    return plan, DeployedGrid(plan, tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {"drop_out": 0.1, "availability": "diurnal:0.5"},
        {"deadline": 9.0, "speeds": "equal"},
        {"over_selection": 1.5, "cohort_size": 2},
    ],
    ids=str,
)
def test_nobody_makes_up_what_real_clients_do(settings, tmp_path):
    plan, grid = deployed(tmp_path, **settings)
    with pytest.raises(ConfigError) as refused:
        start(plan, grid)
    named = {line.split()[0].replace("-", "_") for line in refused.value.problems}
    assert named == settings.keys() - {"cohort_size"}
    assert "these are deployed ones; leave" in refused.value.problems[0]
    assert not any(grid.guard(plan, name).history() for name in grid.names.values())
