"""A client trains on its own records: which part of a split a task is asked for."""

from pathlib import Path

from fedprivacy.flower.wire.messages import ENROLMENT
from fedprivacy.tasks import ShardSource
from tests.flower.asked import enrol
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


def test_a_deployed_client_reads_the_folder_that_its_owner_names(node):
    asked = []

    class Filed(Blobs):
        def shard(self, source):
            asked.append(source)
            return super().shard(source)

    assert ENROLMENT in enrol(node, task=Filed()).content
    assert asked == [ShardSource(folder=Path(node["folder"]))]
