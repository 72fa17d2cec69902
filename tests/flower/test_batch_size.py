"""A batch size for all, and so a sampling rate for each: every client's loss is its own."""

import pytest

from fedprivacy.accounting import filters, pld
from fedprivacy.commands.run_tables import plan_table
from fedprivacy.ledger import Ledger
from fedprivacy.runs.configuration import ConfigError
from fedprivacy.runs.plan import RunPlan, client_groups
from fedprivacy.runs.prospect import spending
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian
from tests.flower.blobs import Blobs, PrivateSizes, plan_of
from tests.flower.runs import run


def test_every_client_pays_for_its_own_sampling_rate(ledger_url):
    plan = plan_of(Blobs(), batch_size=10.0, noise_multiplier=2.0, epsilon=50.0, rounds=3, ledger=ledger_url)
    spent = run(plan).records[-1].spent
    for number in range(4):  # client i holds 30 + i records
        event = PoissonSampledGaussian(10 / (30 + number), 2.0, plan.relation)
        client = spent[f"client-{number}"]
        assert client.sampling_rate == event.sampling_rate
        assert client.epsilon == pytest.approx(pld.epsilon({event: 6}, 1e-3))
        account = Ledger(ledger_url).accounts([f"blobs/client-{number}"])[f"blobs/client-{number}"]
        assert account.history == {event: 6}


def test_the_smallest_shards_are_exhausted_first(ledger_url):
    plan = plan_of(Blobs(), batch_size=10.0, noise_multiplier=1.0, epsilon=4.0, rounds=40, ledger=ledger_url)
    records = run(plan).records
    left_in = [next(record.round for record in records if record.spent[f"client-{n}"].exhausted) for n in range(4)]
    assert left_in == sorted(left_in)
    assert left_in[0] < left_in[-1]
    assert records[-1].max_epsilon <= 4.0


def test_a_batch_larger_than_the_shard_is_the_whole_shard():
    plan = plan_of(Blobs(), batch_size=1_000.0, noise_multiplier=2.0)
    assert plan.event(30).sampling_rate == 1.0


def test_private_shard_sizes_share_the_public_guess():
    plan = plan_of(PrivateSizes(), batch_size=5.0, noise_multiplier=2.0)
    assert {plan.event(size).sampling_rate for size in (0, 10, 10_000)} == {5.0 / 25}


def test_the_plan_knows_each_simulated_client():
    plan = plan_of(Blobs(), batch_size=10.0, noise_multiplier=2.0, epsilon=50.0, clients=8)
    groups = client_groups(plan)
    assert [group.event.sampling_rate for group in groups] == [10 / (30 + n) for n in range(8)]
    rows = spending(plan)
    table = plan_table(plan, rows).renderables[-1]
    assert [column.header for column in table.columns] == ["round", "client-7", "client-3", "client-0"]
    assert "sampling rate 10 / shard size" in plan_table(plan, rows).renderables[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch-size": 8, "sampling-rate": 0.1, "noise-multiplier": 1.0}, "give one of them"),
        ({"batch-size": 0.0, "noise-multiplier": 1.0}, "batch-size is 0.0; choose a number above 0"),
    ],
)
def test_what_a_batch_size_does_not_go_with(settings, message):
    with pytest.raises(ConfigError, match=message):
        RunPlan.of(settings, Blobs())


def test_the_quota_of_a_rate_is_sought_once_however_many_rates_there_are(monkeypatch):
    """A cache of fewer entries than there are rates would seek every quota anew, three times a round."""
    sought = []
    monkeypatch.setattr(filters, "step_quota", lambda event, budget: sought.append(event) or 10**6)
    kept = filters.FixedMechanismFilter(PrivacyBudget(4.125, 1e-5))
    events = [PoissonSampledGaussian(1 / (2 + number), 1.0) for number in range(3_000)]
    for event in events * 2:
        kept.quota({}, event)
    filters._whole_quota.cache_clear()
    assert sought == events
