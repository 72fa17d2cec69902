"""No two releases of a seeded simulation on one ledger have the same noise: questions, training, and both together."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from flwr.app import RecordDict

import fedprivacy as fp
from fedprivacy.flower.wire.messages import ASK, QUESTION_GRANT
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.values.events import NeighbouringRelation
from tests.flower.asked import PrivatelyTabled, a_question
from tests.privacy.asking import Client


class Scaled(fp.Task):
    """Thirty made-up records of two columns, by which its inputs are standardised."""

    recipe = fp.Recipe(clients=2, rounds=2, local_steps=2, sampling_rate=0.5, learning_rate=0.5, delta=1e-3)
    standardise = fp.ask.mean_and_scale({"one": (-3, 3), "other": (-3, 3)})

    def model(self):
        return torch.nn.Linear(2, 2)

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id or 0)
        return fp.Shard(torch.randn(30, 2, generator=generator), torch.randint(2, (30,), generator=generator))

    def table(self, source):
        inputs = self.shard(source).inputs.numpy()
        return fp.Table({"one": inputs[:, 0], "other": inputs[:, 1]})

    def partition(self, num_partitions):
        return f"{num_partitions} parts"


@pytest.fixture
def drawn(monkeypatch):
    """The words from which each noise was drawn: a key, a purpose and a position."""
    found, reader = [], Keystream.reader

    def noting(self, purpose, position):
        if purpose is not Purpose.SAMPLING:
            found.append(((self.key, self.stream), purpose, position))
        return reader(self, purpose, position)

    monkeypatch.setattr(Keystream, "reader", noting)
    return found


@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_no_noise_is_drawn_twice_on_one_ledger(drawn, tmp_path):
    task, kept = Scaled(), {"clients": 2, "seed": 7, "ledger": str(tmp_path / "ledger.db"), "epsilon": 50.0}
    settings = kept | {"noise_multiplier": 4.0, "out": str(tmp_path / "asked")}
    count, spread = fp.ask.count(), fp.ask.mean_and_scale({"one": (-3, 3)})
    fp.ask(task, count, **settings)
    fp.ask(task, count, spread, fp.ask.count(), shares=(1, 2, 3), **settings)
    fp.ask(task, count, anew=True, **settings)
    fp.ask(task, count, anew=True, **settings)
    asked = len(drawn)
    assert asked == 2 * (1 + 3 + 1 + 1)
    fp.ask(task, spread, count, **settings)  # the answers are there
    assert len(drawn) == asked
    training = kept | {"noise_multiplier": 2.0, "question_spend": 0.5}
    fp.simulate(task, out=str(tmp_path / "first"), **training)
    own = [purpose for _, purpose, _ in drawn[asked:]]
    assert Counter(own) == {Purpose.ANSWERS: 2, Purpose.NOISE: 2 * 2 * 2}
    fp.simulate(task, out=str(tmp_path / "second"), local_evaluation=1, **training)  # its question was asked before
    fp.ask(task, count, anew=True, **settings)
    assert len(set(drawn)) == len(drawn)


def test_whatever_names_an_answer_gives_it_other_noise(drawn):
    """Rounds, attempts, earlier runs, clients and questions; and not the questions' text, nor how much noise it is."""
    client = Client(PrivatelyTabled(), seed=5)
    positions = [{}, {"round": 2}, {"attempt": 2}, {"earlier_runs": 1}, {"attempt": 2, "earlier_runs": 1}]
    for named in positions:
        grant = a_question(fp.ask.count(), fp.ask.count(), relation=NeighbouringRelation.ADD_OR_REMOVE_ONE, **named)
        client.send(ASK, RecordDict({QUESTION_GRANT: grant.to_record()}))
    assert len(drawn) == 2 * len(positions)
    assert len(set(drawn)) == len(drawn)
    assert {position for _, _, position in drawn} == {Position(n, m) for n in (1, 2) for m in (1, 2)}
