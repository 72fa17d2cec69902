"""A task on public records reads no private one, is charged to no private dataset, and learns what the task would."""

import copy

import pytest
import torch

import fedprivacy as fp
from fedprivacy.ledger import Ledger
from fedprivacy.tasks import TaskError
from fedprivacy.tasks.loader import open_task
from fedprivacy.tasks.opened import is_task
from tests.commands.running import fedprivacy
from tests.flower.blobs import Blobs

pytestmark = pytest.mark.usefixtures("undrawn")


class Secret(Blobs):
    """A task whose private records nobody reads here."""

    def shard(self, source):
        raise AssertionError("a private record is read")

    table = shard

    def held_out(self, source):
        return Blobs().shard(source)


def on_public(repeat=1):
    return fp.tasks.OnPublic(Secret(), Blobs().shard, repeat=repeat)


def test_it_is_a_task_with_the_records_that_it_is_given():
    task = on_public(repeat=3)
    assert is_task(task) and is_task(copy.copy(task)) and open_task(task=task).word == "object:OnPublic"
    source = fp.ShardSource(partition_id=1, num_partitions=2)
    shard, once = task.shard(source), Blobs().shard(source)
    assert len(shard) == 3 * len(once) and all(torch.equal(part, once.inputs) for part in shard.inputs.split(len(once)))
    assert all(torch.equal(part, once.targets) for part in shard.targets.split(len(once)))
    assert open_task(task=task).offers("held_out") and not open_task(task=task).offers("table")
    assert (task.recipe, task.metric, task.shard_sizes_public) == (Blobs.recipe, "accuracy", True)
    with pytest.raises(AttributeError, match="nothing"):
        _ = task.nothing


@pytest.mark.exhaustive
def test_a_run_on_public_records_learns_and_charges_no_private_dataset(tmp_path):
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    settings = {"clients": 2, "epsilon": 3.0, "ledger": ledger, "seed": 1, "progress": False}
    run = fp.simulate(on_public(repeat=2), out=tmp_path / "run", **settings)
    assert run.metrics["accuracy"] > 0.6
    with pytest.raises(AssertionError, match="a private record is read"):
        Secret().shard(fp.ShardSource(partition_id=0, num_partitions=2))
    accounts = Ledger(ledger).accounts([f"blobs{of}/client-{n}" for of in ("", "-public") for n in range(2)])
    assert accounts.keys() == {"blobs-public/client-0", "blobs-public/client-1"}


@pytest.mark.exhaustive
def test_a_sweep_takes_it_from_a_file(tmp_path):
    (tmp_path / "tuning.py").write_text(
        "import fedprivacy as fp\n"
        "from tests.flower.blobs import Blobs\n"
        "PUBLIC = fp.tasks.OnPublic(Blobs(), lambda source: Blobs().shard(source))\n"
    )
    swept = "--clients", 2, "--rounds", 2, "--learning-rate", "0.1,1", "--seeds", 1, "--jobs", 1, "--out", "sweep"
    printed = fedprivacy("sweep", "--task", "tuning.py:PUBLIC", *swept, cwd=tmp_path)
    assert (tmp_path / "sweep" / "sweep.csv").read_text().count("\n") == 3, printed.output


class Standardising(Blobs):
    standardise = "a question"


@pytest.mark.parametrize(
    ("task", "repeat", "words"),
    [
        (Blobs(), 0, "repeat is 0; give 1 or more"),
        (Standardising(), 1, "task blobs standardises by what its private records answer"),
    ],
)
def test_what_cannot_be_tuned_on_public_records_is_refused(task, repeat, words):
    with pytest.raises(TaskError, match=words):
        fp.tasks.OnPublic(task, task.shard, repeat=repeat)
