"""The built-in tasks: every record has one owner, the public ones none, and a deployed client reads the same shard."""

import numpy as np
import pytest
import torch

from fedprivacy.tasks import ShardSource, Task, load_task
from fedprivacy.tasks.cancer import PUBLIC_MEANS, PUBLIC_SCALES

SPLITS = {"digits": 10, "cancer": 5}


def shards(name):
    task = load_task(name)
    return [task.shard(ShardSource(partition_id=i, num_partitions=SPLITS[name])) for i in range(SPLITS[name])]


@pytest.mark.parametrize(("name", "records"), [("digits", 1797), ("cancer", 569)])
def test_every_private_record_belongs_to_exactly_one_client(name, records):
    task, parts = load_task(name), shards(name)
    (private, _), (public, _) = task._separated()
    assert len(private) + len(public) == records
    assert sum(len(part) for part in parts) == len(private)
    owned = torch.cat([part.inputs.flatten(1) for part in parts]).sort(0).values
    everything = torch.as_tensor(task.scaled(private), dtype=torch.float32).flatten(1).sort(0).values
    assert torch.equal(owned, everything)


@pytest.mark.parametrize("name", SPLITS)
def test_a_task_is_complete_and_its_loss_is_by_record(name):
    task, shard = load_task(name), shards(name)[0]
    assert isinstance(task, Task)
    assert task.loss(task.model()(shard.inputs), shard.targets).shape == (len(shard),)
    assert 0.0 <= task.evaluate(task.model())["accuracy"] <= 1.0


@pytest.mark.parametrize("name", SPLITS)
def test_a_deployed_client_reads_the_same_shard_from_its_folder(name, tmp_path):
    task = load_task(name)
    task.write_folder(ShardSource(partition_id=1, num_partitions=SPLITS[name]), tmp_path)
    read, simulated = task.shard(ShardSource(folder=tmp_path)), shards(name)[1]
    assert torch.equal(read.inputs, simulated.inputs) and torch.equal(read.targets, simulated.targets)


def test_the_split_names_itself_and_stays_the_same():
    task = load_task("digits")
    assert task.partition(10) == "10 parts, Dirichlet alpha 1, seed 42" != task.partition(9)
    assert [len(part) for part in shards("digits")] == [140, 184, 209, 131, 179, 113, 150, 88, 108, 135]


def test_the_scaling_constants_of_cancer_are_those_of_the_public_records():
    (_, _), (public, _) = load_task("cancer")._separated()
    assert np.allclose(public.mean(0), PUBLIC_MEANS, rtol=0.05)
    assert np.allclose(public.std(0), PUBLIC_SCALES, rtol=0.05)


def test_a_client_without_folder_or_part_is_told_what_to_give():
    with pytest.raises(ValueError, match="give it a folder"):
        load_task("digits").shard(ShardSource())


@pytest.mark.parametrize("clients", [2, 50, 100])
def test_the_digits_can_be_split_over_few_and_many_clients(clients):
    task = load_task("digits")
    sizes = [len(task.shard(ShardSource(partition_id=i, num_partitions=clients))) for i in range(clients)]
    assert sum(sizes) == 1437 and min(sizes) > 0
