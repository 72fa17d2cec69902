"""A delta that promises nothing is said to be one, by public sizes alone."""

import logging

import pytest
import torch

import fedprivacy as fp
from tests.commands.running import fedprivacy
from tests.flower.blobs import Blobs

WARNED = "to publish each of them with that probability would keep the promise"


class Hidden(Blobs):
    """Blobs whose sizes nobody may know; some have many more records than the public guess."""

    name = "hidden"
    dataset = "hidden"
    shard_sizes_public = False
    nominal_shard_size = 40

    def __init__(self, records=40):
        self.records = records

    def shard(self, source):
        return fp.Shard(torch.zeros(self.records, 4), torch.zeros(self.records, dtype=torch.long))


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if WARNED in record.getMessage()]


@pytest.mark.exhaustive
def test_plan_and_simulate_warn_of_a_delta_above_one_over_the_records(tmp_path, caplog):
    options = "--task", "cancer", "--clients", "2", "--rounds", "1", "--noise-multiplier", "5", "--delta", "0.5"
    for command in ("plan", "simulate"):
        fedprivacy(command, *options, cwd=tmp_path)
    first, second = warnings(caplog)
    assert first == second
    assert first.startswith("delta is 5e-1, and client-")
    assert first.endswith("for example 1e-4.")


@pytest.mark.parametrize("records", [0, 40, 5_000])
def test_private_sizes_decide_nothing(records, caplog):
    """At 1 / 5,000 the true size would be warned of; the words are the same whatever the size."""
    caplog.set_level(logging.WARNING)
    fp.plan(Hidden(records), clients=2, rounds=1, noise_multiplier=5.0, delta=1e-3)
    assert warnings(caplog) == []
    fp.plan(Hidden(records), clients=2, rounds=1, noise_multiplier=5.0, delta=0.1)
    (said,) = warnings(caplog)
    assert "a client has about 40 records (the task's nominal_shard_size)" in said
