"""The number of threads: at most what the user allows, the fastest, and never one with other bits."""

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, engine, methods
from fedprivacy.gradients.surroundings import by_speed, computing_with
from tests.gradients.oracle import cross_entropy

BATCH = torch.rand(150, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.arange(150) % 4


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(800, 4))


def prepared(allowed):
    made = GradientEngine(model(), cross_entropy)
    with computing_with(allowed):
        made.prepare(*BATCH)
    return made


def test_torch_has_as_many_threads_afterwards_as_before():
    before = torch.get_num_threads()
    with computing_with(before + 2):
        GradientEngine(model(), cross_entropy).clip(*BATCH, 1.0)
        assert torch.get_num_threads() == before + 2
        with pytest.raises(ZeroDivisionError), computing_with(1):
            1 / 0  # noqa: B018
        assert torch.get_num_threads() == before + 2
    assert torch.get_num_threads() == before


class Machine:
    """A machine on which a step takes what is said: seconds by number of threads, and others' share of its turns."""

    def __init__(self, quiet, busy=lambda threads, turn: 0.0):
        self.now, self.quiet, self.busy, self.turns = 0.0, quiet, busy, dict.fromkeys(quiet, 0)

    def step(self):
        threads = torch.get_num_threads()
        self.now += self.quiet[threads] + self.busy(threads, self.turns[threads])
        self.turns[threads] += 1


@pytest.mark.parametrize("scale", [0.001, 1.0], ids=["a short step", "a step longer than there is time to try"])
@pytest.mark.parametrize("busy", [(), (1,), (2,), (1, 2)], ids=["nobody", "one", "two", "both"])
@pytest.mark.parametrize(
    ("quiet", "fastest"), [({1: 1.0, 2: 0.6, 3: 0.9}, 2), ({1: 1.0, 2: 0.95}, 1), ({1: 1.0, 2: 8.0}, 1)]
)
def test_moments_in_which_others_have_the_cores_change_nothing(quiet, fastest, busy, scale, monkeypatch):
    """Others take three of four turns of some numbers of threads."""
    others = lambda threads, turn: 20 * scale * (threads in busy and turn % 4 != 2)  # noqa: E731
    machine = Machine({threads: scale * seconds for threads, seconds in quiet.items()}, others)
    monkeypatch.setattr("time.perf_counter", lambda: machine.now)
    with computing_with(len(quiet)):
        numbers = by_speed(machine.step)
    assert numbers[0] == fastest and sorted(numbers) == list(quiet)
    assert max(machine.turns.values()) <= 12


@pytest.mark.parametrize("fastest", [1, 2])
def test_a_seeded_sum_has_the_same_bits_whichever_number_was_faster(fastest, monkeypatch):
    """On some processors a convolution has other bits with two threads, which are not used then."""
    alone = prepared(1).clip(*BATCH, 1.0)
    monkeypatch.setattr(engine, "by_speed", lambda step: [fastest, 3 - fastest])
    made = prepared(2)
    assert made.threads in {1, fastest}
    with computing_with(2):
        assert made.clip(*BATCH, 1.0).same_as(alone)


@pytest.mark.parametrize("fastest", [1, 2])
def test_the_fastest_number_that_changes_no_bit_is_used(fastest, monkeypatch):
    monkeypatch.setattr(engine, "by_speed", lambda step: [fastest, 3 - fastest])
    monkeypatch.setattr(engine.Clipped, "same_as", lambda *_: True)  # as it is on most processors
    monkeypatch.setattr(engine, "still_apart", lambda *_: True)
    assert prepared(2).threads == fastest


class Counting(nn.Linear):
    """Its result tells how many threads there are."""

    def forward(self, x):
        return super().forward(x) * (1.0 + 2.0**-20 * torch.get_num_threads())


def test_a_number_of_threads_that_changes_a_bit_is_not_used_however_fast(monkeypatch):
    monkeypatch.setattr(engine, "by_speed", lambda step: [2, 1])
    made = GradientEngine(Counting(6, 4), cross_entropy)
    with computing_with(2):
        made.prepare(torch.rand(3, 6), torch.arange(3))
    assert made.threads == 1


def test_a_number_of_threads_with_which_records_are_not_apart_is_not_used(monkeypatch):
    monkeypatch.setattr(engine, "by_speed", lambda step: [2, 1])
    monkeypatch.setattr(engine.Clipped, "same_as", lambda *_: True)  # so that only this decides
    monkeypatch.setattr(engine, "still_apart", lambda *_: torch.get_num_threads() == 1)
    assert prepared(2).threads == 1


def test_a_large_model_has_all_threads(monkeypatch):
    """Its bits may depend on their number, which is therefore not a matter of speed."""
    monkeypatch.setattr(methods, "_fastest", lambda *_, **__: 8)
    monkeypatch.setattr(engine, "by_speed", lambda step: pytest.fail("measured"))
    assert prepared(2).threads == 2
