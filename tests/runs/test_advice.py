"""Advice that is given before anything is spent.

Settings that make one algorithm another are said to, and really do; a delta that promises nothing is said to be one,
by public sizes alone.
"""

import logging

import pytest
import torch

import fedprivacy as fp
from tests.commands.running import fedprivacy, unwrapped
from tests.flower.blobs import Blobs, DeepBlobs

COMMON = {"clients": 4, "rounds": 4, "local_steps": 2, "learning_rate": 0.5, "sampling_rate": 1.0, "seed": 1}

DITTO, FEDAVGM = {"algorithm": "ditto", "personal_steps": 2, "local_steps": 4}, {"strategy": "fedavgm"}
LOCAL = {"algorithm": "local"}

CLAIMS = [
    ({"algorithm": "mr-mtl", "pull": 2.0}, {"algorithm": "fedavg"}, "global", "'mr-mtl' trains as fedavg"),
    ({"algorithm": "mr-mtl", "pull": 0.0}, LOCAL, "own", "own models are then trained as by local"),
    (DITTO | {"pull": 2.0}, {"fine_tuning_rounds": 1}, "own", "'ditto' trains as fedavg with fine-tuning-rounds 1"),
    (DITTO | {"pull": 0.0}, LOCAL, "own", "trained as by local, in 2 of each round's local-steps"),
    ({"strategy": "fedprox", "proximal_mu": 0.0}, {}, "global", "strategy is 'fedprox', which then trains as fedavg"),
    (FEDAVGM | {"server_momentum": 0.0, "server_learning_rate": 1.0}, {}, "global", "'fedavgm', which then trains as"),
    ({"algorithm": "scaffold", "local_steps": 1}, {"local_steps": 1}, "global", "'scaffold', which then trains as"),
    *(
        ({"algorithm": name, "clients": 1}, LOCAL | {"clients": 1}, "own", "is nobody to")
        for name in ("mr-mtl", "scaffold")
    ),
]


def said(settings, caplog):
    """The warnings of planning a run."""
    caplog.clear()
    fp.plan(DeepBlobs(), **COMMON | settings)
    return [record.getMessage() for record in caplog.records]


def trained(settings, whose, out):
    """The parameters of the global model, or of the last client's own, without noise, as steps have their numbers."""
    settings = COMMON | settings
    run = fp.simulate(DeepBlobs(), **settings, privacy=False, out=out, progress=False)
    model = run.model(client_id=f"client-{settings['clients'] - 1}") if whose == "own" else run.model()
    return torch.nn.utils.parameters_to_vector(model.parameters())


@pytest.mark.exhaustive
@pytest.mark.parametrize(("settings", "other", "whose", "words"), CLAIMS)
def test_what_is_warned_of_is_the_other_algorithm(settings, other, whose, words, tmp_path, undrawn):
    one, two = trained(settings, whose, tmp_path / "one"), trained(other, whose, tmp_path / "two")
    moved = trained({**other, "rounds": 2, "fine_tuning_rounds": 0}, "global", tmp_path / "less")
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    assert (one - moved).abs().max() > 1e-2


@pytest.mark.parametrize(("settings", "other", "whose", "words"), CLAIMS)
def test_it_is_said_in_one_line_and_not_of_the_other(settings, other, whose, words, caplog):
    (line,) = said(settings, caplog)
    assert words in line and "Give" in line and "or choose" in line
    assert said({**other, "clients": 4, "local_steps": 2}, caplog) == []


NEIGHBOURS = [
    {"algorithm": "mr-mtl", "pull": 1.9},
    {"algorithm": "mr-mtl", "pull": 0.1},
    {"algorithm": "ditto", "pull": 1.0},
    {"strategy": "fedprox", "proximal_mu": 0.5},
    FEDAVGM | {"server_momentum": 0.0, "server_learning_rate": 0.5},
    FEDAVGM | {"server_momentum": 0.5, "server_learning_rate": 1.0},
    {"algorithm": "scaffold", "local_steps": 1, "fraction_train": 0.5},
    {"clients": 1, "algorithm": "ditto"},
]


def test_sensible_neighbours_pass_in_silence(caplog):
    assert [said(settings, caplog) for settings in NEIGHBOURS] == [[]] * len(NEIGHBOURS)


def test_a_falling_learning_rate_begins_as_the_other(caplog):
    (line,) = said({"algorithm": "mr-mtl", "pull": 2.0, "learning_rate_schedule": "cosine"}, caplog)
    assert "'mr-mtl' begins as fedavg" in line


DEGENERATE = {"algorithm": "mr-mtl", "pull": "1", "learning-rate": "12"}
TOLD = (
    "pull is 1 and learning-rate is 12: from a product of 1 on, each round begins at the global model, and algorithm "
    "'mr-mtl' trains as fedavg. Give a smaller pull, such as 0.024, which leaves a client half of its own way in a "
    "round, or choose algorithm fedavg."
)


@pytest.mark.parametrize("command", ["plan", pytest.param("sweep", marks=pytest.mark.exhaustive)])
def test_each_command_says_it_once_before_the_first_round(command, tmp_path, caplog):
    options = [f"--{key}={value}" for key, value in DEGENERATE.items()] + ["--task=cancer", "--clients=2", "--rounds=1"]
    options += ["--jobs=1", "--out=swept", "--epsilon=1,2"] * (command == "sweep")
    run = fedprivacy(command, *options, cwd=tmp_path, columns=80)
    printed = [unwrapped(run.stderr), *caplog.messages]  # of pytest's logging, plan's warnings reach no terminal
    assert sum(words.count(TOLD) for words in printed) == 1


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
