"""A client on a full disk: it refuses before it charges, and what it has charged it can seal and send."""

import logging
import resource
from pathlib import Path

import pytest
from torch import nn

import fedprivacy as fp
from fedprivacy.flower.wire.messages import RECEIPT, RefusalCode
from fedprivacy.training.dpsgd import DPSGD
from tests.commands.stopping import fill
from tests.flower.asked import ANSWERS_ALL, Tabled, ask, code, named, spent, train
from tests.flower.blobs import Blobs
from tests.processes import in_child

KB = 1024


class Wide(Blobs):
    """The same task with a model of 16 bytes for each unit: 400 KB, which is more than there is room for."""

    name = dataset = "wide"

    def __init__(self, units=25_000):
        self.units = units

    def model(self):
        return nn.Sequential(nn.Linear(2, self.units, bias=False), nn.Linear(self.units, 2, bias=False))


WIDE = Wide()


def trained(node, round, task=WIDE, **changed):
    return train(node, task=task, round=round, noise_multiplier=8.0, **changed)


@pytest.mark.exhaustive
def test_a_client_with_too_little_memory_charges_nothing_and_goes_on_once_there_is_some(node, monkeypatch, caplog):
    task, left = Wide(31_000), iter([4_959_999, 4_960_000])  # ten times 16 bytes for each unit
    monkeypatch.setattr("fedprivacy.flower.client.local.attainable_bytes", lambda: next(left))
    with caplog.at_level(logging.ERROR, "fedprivacy.client"):
        assert code(trained(node, 1, task)) is RefusalCode.NO_MEMORY
    assert spent(node) == 0 and sealed(node) == []
    assert "takes 4.96 MB of memory at least, and this process may hold 4.96 MB. Nothing was charged." in caplog.text
    assert RECEIPT in trained(node, 1, task).content
    assert RECEIPT in trained(node, 2, task).content  # the process holds already what it takes, and is not asked again


def limit_files_to(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def sealed(node):
    return sorted(path.name for path in Path(node["folder"]).glob("guard.log.*.sealed/*"))


def test_a_client_with_too_little_room_charges_nothing_and_goes_on_once_there_is_some(node, caplog):
    assert RECEIPT in trained(node, 1).content
    before = sealed(node)

    def act():
        limit_files_to(300 * KB)  # enough for the charge, not for the update
        with caplog.at_level(logging.ERROR, "fedprivacy.client"):
            assert code(trained(node, 2)) is RefusalCode.NO_ROOM
        assert spent(node) == 2 and sealed(node) == before
        assert "Nothing was charged. Make room on the disk of" in caplog.text
        limit_files_to(resource.RLIM_INFINITY)
        assert RECEIPT in trained(node, 2).content

    assert in_child(act) == 0
    assert spent(node) == 4 and len(sealed(node)) == 2


def test_answers_and_the_vector_that_a_client_keeps_need_room_as_well(node):
    task = Tabled()

    def act():
        limit_files_to(64 * KB)
        assert code(ask(node | ANSWERS_ALL, fp.ask.count(), task=task)) is RefusalCode.NO_ROOM
        limit_files_to(600 * KB)  # enough for the update, not for two vectors
        assert code(trained(node, 1, algorithm=named("local"))) is RefusalCode.NO_ROOM
        assert spent(node) == 0
        assert RECEIPT in trained(node, 1).content

    assert in_child(act) == 0


@pytest.mark.exhaustive
def test_a_disk_that_fills_up_in_training_stops_nothing(disk, node, monkeypatch):
    """On a real file system, filled to the last byte between charge and seal."""
    node |= {"folder": str(disk)}
    train_steps, kept = DPSGD.train, {"task": Wide(8_000), "algorithm": named("local")}

    def fills_meanwhile(*given, **named):
        fill(disk, 0)
        return train_steps(*given, **named)

    monkeypatch.setattr(DPSGD, "train", fills_meanwhile)
    first = trained(node, 1, **kept)
    assert RECEIPT in first.content and spent(node) == 2
    assert code(trained(node, 2, **kept)) is RefusalCode.NO_ROOM and spent(node) == 2
    assert dict(trained(node, 1, **kept).content[RECEIPT]) == dict(first.content[RECEIPT])
    (disk / "filler").unlink()
    assert RECEIPT in trained(node, 2, **kept).content and spent(node) == 4
    assert not list(disk.glob("*/.*"))
