"""Shards spread over the GPUs that are there."""

import pytest
import torch

from fedprivacy.runs.settings.device import choose_device


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_auto_spreads_clients_over_the_gpus_and_a_named_device_is_kept(two_gpus):
    assert [str(choose_device("auto", number)) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [str(choose_device(name, 1)) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda:1"]
