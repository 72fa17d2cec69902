"""A client trains on its own records: which part of a split a task is asked for."""

from fedprivacy.tasks import ShardSource
from tests.flower.blobs import Blobs, plan_of
from tests.flower.runs import run


def test_every_simulated_client_asks_for_its_own_part_of_one_split(ledger_url):
    """A record that two clients held would be charged to two accounts, and neither would show what it lost."""
    asked = set()

    class Split(Blobs):
        def shard(self, source):
            asked.add(source)
            return super().shard(source)

    run(plan_of(Split(), clients=3, rounds=1, ledger=ledger_url))
    assert asked == {ShardSource(partition_id=i, num_partitions=3) for i in range(3)}
